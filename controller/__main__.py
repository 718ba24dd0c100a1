"""`python -m controller`: parts, put together. See `main`."""

from controller.main import run

run()
