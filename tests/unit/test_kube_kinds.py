"""Paths, and what a name from outside can't do to them."""

import pytest

from startgate.kube.kinds import GANGS, NODES, PODS


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "status") == "/api/v1/namespaces/ns/pods/a/status"
    assert NODES.path(name="n1") == "/api/v1/nodes/n1"
    assert GANGS.path("ns", "job-a") == "/apis/startgate.dev/v1alpha1/namespaces/ns/gangs/job-a"


@pytest.mark.parametrize("name", ["..", ".", "a/b", "%2e%2e", "../../nodes"])
def test_no_name_leads_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match="can't be a name"):
        PODS.path("ns", name)
    with pytest.raises(ValueError, match="can't be a name"):
        PODS.path(name, "a")


def test_what_a_url_would_take_for_its_own_is_quoted() -> None:
    assert PODS.path("ns", "a?b#c d") == "/api/v1/namespaces/ns/pods/a%3Fb%23c%20d"


def test_an_empty_list_may_be_null() -> None:
    page = PODS.decode_page(b'{"metadata":{"resourceVersion":"7"},"items":null}')
    assert (page.items, page.metadata.resource_version, page.metadata.continue_) == (None, "7", "")
