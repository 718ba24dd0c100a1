"""Kubernetes quantities as exact integers.

"300m", "8Gi" and "1e3" are how people and the API server write amounts; the engine counts in integers. What
always holds: no float takes part in the arithmetic, what is read rounds up as Quantity.Value() and
Quantity.MilliValue() do (away from zero), and each result fits an int64.

The grammar is the documented one (apimachinery, resource.Quantity): a decimal number, signed or not, then a
suffix n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent e or E. Differences from apimachinery's code, each
where that differs from its own documentation:

* "-", "." or "Ki" without a digit: its scanner takes most of them for 0, here they are refused.
* A negative number rounds away from zero, as documented for RoundUp; for many, its Value() is wrong ("-0.1n"
  is 1, "-4Pi" is 6917529028: measured with 0.37.2). The API server lets no pod ask for less than nothing.
* A number beyond 2^63-1 in magnitude is capped, as documented; its code does so for binary suffixes alone,
  and for others Value() overflows. Milli-units are capped at the same figure.
* White space around the number is refused, as by ParseQuantity and by CEL's quantity(); the JSON decoder of
  the API server trims it, and writes back what is left, so that stored pods never have any.
"""

import re
from functools import lru_cache
from typing import Final, TypeAlias

Quantity: TypeAlias = str | int | float
"""A quantity as JSON has it. A float is only ever the carrier of a JSON number such as 0.5: its shortest
decimal form is what is read, which is what the API server keeps of a number in a custom resource."""

LARGEST: Final = 2**63 - 1
LONGEST: Final = 4000
"""Characters; Python's int() refuses more digits than about that, and nothing real comes near."""

SUFFIXES: Final = {
    **{suffix: (10, 3 * power) for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)},
    **{suffix: (2, 10 * power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
PATTERN: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]?))"
)
BINARY: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")


class QuantityError(ValueError):
    """A text that isn't a quantity; its message is a sentence for whoever wrote it."""


def parse_units(text: Quantity) -> int:
    """The quantity in whole units, rounded up (Quantity.Value): "1.5Gi" is 1610612736, "100m" is 1."""
    return _parse(_text(text), 0)


def parse_milli(text: Quantity) -> int:
    """The quantity in thousandths, rounded up (Quantity.MilliValue): "300m" is 300, "2" is 2000."""
    return _parse(_text(text), 3)


def format_amount(resource: str, amount: int) -> str:
    """An amount of a resource as Kubernetes writes it; what it returns parses to the same amount.

    cpu is given in milli-units: 1500 is "1500m", 2000 is "2". Resources that are counted in bytes get the
    largest binary suffix that is exact ("8Gi", "1536Mi"). Everything else is a plain number.
    """
    if resource == "cpu":
        whole, rest = divmod(amount, 1000)
        return f"{amount}m" if rest else str(whole)
    if amount and is_bytes(resource):
        for power, suffix in zip(range(60, 0, -10), BINARY, strict=True):
            if amount % (1 << power) == 0:
                return f"{amount >> power}{suffix}"
    return str(amount)


def is_bytes(resource: str) -> bool:
    """Whether Kubernetes counts this resource in bytes."""
    return resource in ("memory", "ephemeral-storage", "storage") or resource.startswith("hugepages-")


def _text(quantity: Quantity) -> str:
    if isinstance(quantity, bool):
        raise QuantityError(_sentence(str(quantity).lower()))
    return quantity if isinstance(quantity, str) else repr(quantity)


@lru_cache(maxsize=8192)
def _parse(text: str, scale: int) -> int:
    """The quantity in units of 10^-scale, rounded away from zero and capped."""
    if len(text) > LONGEST:
        raise QuantityError(f"a quantity of {len(text)} characters is longer than any amount needs: {text[:40]!r}…")
    match = PATTERN.fullmatch(text)
    if match is None:
        raise QuantityError(_sentence(text))
    part = match["part"] or ""
    digits = match["whole"] + part
    if not digits:
        raise QuantityError(_sentence(text))
    if match["exponent"] is not None:
        base, power = 10, int(match["exponent"])
        if abs(power) > 2**31 - 1:
            raise QuantityError(_sentence(text))
    else:
        base, power = SUFFIXES[match["suffix"]]
    mantissa = int(digits)
    if mantissa == 0:
        return 0
    size = _scaled(mantissa, decimal=(power if base == 10 else 0) - len(part), binary=power if base == 2 else 0)
    step: int = 10 ** (9 - scale)
    size = min(-(-size // step), LARGEST)
    return -size if match["sign"] == "-" else size


def _scaled(mantissa: int, *, decimal: int, binary: int) -> int:
    """mantissa x 10^decimal x 2^binary in billionths, rounded up."""
    exponent = decimal + 9
    # What can only be capped, or is less than a billionth, isn't computed: its digits could fill the memory.
    if exponent > 40:
        return (LARGEST + 1) * 10**9
    if exponent < -LONGEST:
        return 1
    mantissa <<= binary
    factor: int = 10 ** abs(exponent)
    return mantissa * factor if exponent >= 0 else -(-mantissa // factor)


def _sentence(text: str) -> str:
    return (
        f"{text[:80]!r} is not a quantity: write a number such as 4, 0.5 or 1e3, with nothing around it,"
        " and after it at most one of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei"
    )
