"""Quantities: exact or refused as the API server does (cases.md, 9)."""

from decimal import Decimal
from fractions import Fraction
from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model.quantity import Quantity, QuantityError, format_amount, parse_milli, parse_units

LARGEST = 2**63 - 1

# Value() and MilliValue() of apimachinery v0.37.2, run on these texts.
MEASURED = {
    "0": (0, 0),
    "1": (1, 1000),
    "300m": (1, 300),
    "0.5": (1, 500),
    ".5": (1, 500),
    "1.": (1, 1000),
    "+5": (5, 5000),
    "1e3": (1000, 10**6),
    "1E3": (1000, 10**6),
    "1e+3": (1000, 10**6),
    "1e-3": (1, 1),
    "1e-007": (1, 1),
    "1Ki": (1024, 1_024_000),
    "1.1Ki": (1127, 1_126_400),
    ".5Ki": (512, 512_000),
    "1.G": (10**9, 10**12),
    "1n": (1, 1),
    "0.1n": (1, 1),
    "1000000n": (1, 1),
    "1000001n": (1, 2),
    "1u": (1, 1),
    "00.100": (1, 100),
    "-5": (-5, -5000),
    "-1500m": (-2, -1500),
}
REFUSED = [
    "",
    " 5",
    "5 ",
    "5\n",
    "1_000",
    "NaN",
    "inf",
    "Infinity",
    "0x10",
    "1,5",
    "1..2",
    "1.2.3",
    "--5",
    "+-5",
    "1e",
    "1e+",
    "1e3.5",
    "1ee3",
    "1k5",
    "1ki",
    "1K",
    "1KI",
    "1mi",
    "1Kii",
    "1 Gi",
    "four",
    "٣",
    "1e99999999999",
    "9" * 5000,
    # The scanner of the API server takes these for 0; documented, they have no number.
    "+",
    ".",
    "Ki",
    "m",
    "e5",
]


@pytest.mark.parametrize(("text", "units", "milli"), [(text, *both) for text, both in MEASURED.items()])
def test_reads_what_the_api_server_reads(text: str, units: int, milli: int) -> None:
    assert parse_units(text) == units
    assert parse_milli(text) == milli


@pytest.mark.parametrize("text", REFUSED)
def test_refuses_what_is_no_quantity_and_names_it(text: str) -> None:
    for parse in (parse_units, parse_milli):
        with pytest.raises(QuantityError) as caught:
            parse(text)
        assert repr(text[:40])[:-1] in str(caught.value)


def test_the_sentence_says_what_is_allowed() -> None:
    with pytest.raises(QuantityError, match=r"'1_000' is not a quantity: write a number such as 4, 0\.5 or 1e3"):
        parse_units("1_000")


def test_a_thousand_times_300m_is_300() -> None:
    assert sum(parse_milli("300m") for _ in range(1000)) == parse_milli("300")


def test_sums_near_the_limit_stay_exact() -> None:
    assert parse_units("9223372036854775807") + parse_units("1") == 2**63
    assert parse_units("9223372036854775806.5") == LARGEST
    assert parse_units("-9223372036854775807") == -LARGEST
    assert parse_units("9223372036854775805") + parse_units("1") == LARGEST - 1


@pytest.mark.parametrize(
    ("text", "units"),
    [("1E", 10**18), ("7Ei", 7 * 2**60), ("8Ei", LARGEST), ("9223372036854775.807k", LARGEST)],
)
def test_milli_units_are_capped_where_those_of_apimachinery_overflow(text: str, units: int) -> None:
    assert parse_units(text) == units
    assert parse_milli(text) == LARGEST


@pytest.mark.parametrize("text", ["9223372036854775808", "9Ei", "9.3E", "1e100", "1e2000000000", "1" * 3999])
def test_beyond_the_limit_it_is_capped_on_both_sides(text: str) -> None:
    assert parse_units(text) == LARGEST
    assert parse_units("-" + text) == -LARGEST
    assert parse_milli(text) == LARGEST


@pytest.mark.parametrize("text", ["1e-100", "1e-5000", "0.1e-2000000000"])
def test_whoever_asks_for_something_gets_something(text: str) -> None:
    assert parse_units(text) == parse_milli(text) == 1
    assert parse_milli("-" + text) == -1


@pytest.mark.parametrize(("text", "milli"), [("4", 4000), ("0.1", 100), ("1e3", 10**6), ("0.30000000000000004", 301)])
def test_reads_the_numbers_of_json(text: str, milli: int) -> None:
    decoded: Quantity = msgspec.json.decode(text, type=Quantity)
    assert not isinstance(decoded, str)
    assert parse_milli(decoded) == milli


@pytest.mark.parametrize("value", [True, False, float("nan"), float("inf")])
def test_refuses_what_only_python_takes_for_a_number(value: float) -> None:
    with pytest.raises(QuantityError):
        parse_units(value)


SCALES = {
    **dict(
        zip(
            ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"),
            (Fraction(1000) ** i for i in range(-3, 7)),
            strict=True,
        )
    ),
    **{suffix: Fraction(1024) ** i for i, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
NUMBERS = st.from_regex(
    r"[+-]?([0-9]{1,20}(\.[0-9]{0,12})?|\.[0-9]{1,12})",
    fullmatch=True,
    alphabet=st.characters(max_codepoint=127),
)
SUFFIX = st.sampled_from(sorted(SCALES)) | st.integers(-15, 15).map(lambda power: f"e{power}")


@given(NUMBERS, SUFFIX)
def test_agrees_with_fractions(number: str, suffix: str) -> None:
    factor = Fraction(10) ** int(suffix[1:]) if suffix.startswith("e") else SCALES[suffix]
    exact = Fraction(Decimal(number)) * factor

    def rounded(scale: int) -> int:
        nano = ceil(abs(exact) * 10**9)
        size = min(ceil(Fraction(nano, 10**9) * scale), LARGEST)
        return size if exact >= 0 else -size

    assert parse_units(number + suffix) == rounded(1)
    assert parse_milli(number + suffix) == rounded(1000)


@given(st.text(alphabet="0123456789.+-eEkKMGTPinum_ ", max_size=8))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        units, milli = parse_units(text), parse_milli(text)
    except QuantityError:
        return
    assert any(character.isdigit() for character in text)
    assert not {" ", "_"} & set(text)
    assert abs(milli) == LARGEST or abs(units) == -(-abs(milli) // 1000)


AMOUNTS = st.integers(-LARGEST, LARGEST)


@given(AMOUNTS)
def test_what_is_written_reads_the_same(amount: int) -> None:
    assert parse_milli(format_amount("cpu", amount)) == amount
    for resource in ("memory", "hugepages-2Mi", "nvidia.com/gpu", "pods"):
        assert parse_units(format_amount(resource, amount)) == amount


@given(st.integers(1, 1023), st.integers(0, 5))
def test_bytes_get_the_largest_exact_suffix(count: int, power: int) -> None:
    assert format_amount("memory", count * 1024**power) == f"{count}{('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi')[power]}"


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", 0, "0"),
        ("cpu", -500, "-500m"),
        ("cpu", -1500, "-1500m"),
        ("memory", 8 << 30, "8Gi"),
        ("memory", 1536 << 20, "1536Mi"),
        ("memory", -(1 << 30), "-1Gi"),
        ("memory", 1000, "1000"),
        ("memory", 0, "0"),
        ("ephemeral-storage", 1 << 60, "1Ei"),
        ("hugepages-1Gi", 2 << 30, "2Gi"),
        ("nvidia.com/gpu", 1024, "1024"),
        ("pods", 110, "110"),
    ],
)
def test_writes_as_kubernetes_does(resource: str, amount: int, text: str) -> None:
    assert format_amount(resource, amount) == text
