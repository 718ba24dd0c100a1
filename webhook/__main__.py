"""`python -m webhook`."""

from webhook.main import run

if __name__ == "__main__":
    run()
