"""Our programs are killed before and after each kind of write, many times, on a real control plane under load.

`world` is the load: small stories of users, made from a seed. `crashes` kills and brings back, through the gateway of
tests/faults. `invariants` and `audit` look from outside. `run` puts them together, round by round; `python -m
tests.chaos` (`make chaos`) is the command.
"""
