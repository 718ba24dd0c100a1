"""What can be the key of a label (Kubernetes: "Labels and Selectors", syntax).

What always holds: what is said to be wrong with a key is what the API server would refuse in a label.
"""

import re
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST_NAME: Final = 63
LONGEST_DOMAIN: Final = 253


def key_problem(key: str) -> str:
    """What is wrong with this key, in words that stand by themselves; empty where nothing is."""
    domain, slash, name = key.rpartition("/")
    if not name:
        return "a label's key can't be empty" if not slash else "there has to be a name behind the slash"
    if len(name) > LONGEST_NAME:
        return f"the name of a label has at most {LONGEST_NAME} characters"
    if not NAME.fullmatch(name):
        return "the name of a label has letters, digits, '-', '_' and '.', and a letter or digit at both ends"
    if slash and not (len(domain) <= LONGEST_DOMAIN and DOMAIN.fullmatch(domain)):
        return "before the slash there has to be one domain name, in lower case"
    return ""
