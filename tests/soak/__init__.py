"""Our programs through a long stretch of ordinary life, in which something breaks every minute or so.

`churn` is the life: users who come and go. `harm` is what breaks. `footprint` measures what the programs take of the
machine. `run` puts them together and has tests/chaos/invariants.py look on from outside; `python -m tests.soak` (`make
soak`) is the command.
"""
