"""Reviews that nobody should send, and what must hold whatever is sent.

`reviews` makes them up, `target` sends them to the real server over TLS and checks each answer. Hypothesis drives both
in CI (tests/behaviour/test_webhook_fuzz.py), atheris in `make fuzz` (`python -m tests.fuzz`), which looks for inputs
that reach code that none before reached.
"""
