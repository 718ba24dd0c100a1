"""What all tests share: the fixture `cluster`, a real control plane (see localcluster.fixture)."""

pytest_plugins = ["localcluster.fixture"]
