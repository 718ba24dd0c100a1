"""Certificates: valid for the names that the API server verifies, renewed in time, and never untrusted on the
way."""

import ssl
from datetime import timedelta

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from certs import authority
from certs.authority import CA_LIFE, SERVING_LIFE, Material, MaterialError
from certs.rotation import load

NAMES = authority.server_names("startgate-webhook", "startgate-system")
NOW = 1_800_000_000.0
DAY = timedelta(days=1).total_seconds()


def certificate(material: Material) -> x509.Certificate:
    return x509.load_pem_x509_certificate(material.certificate)


def bundle(material: Material) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(material.bundle)


def verifies(bundle_of: Material, served: Material, name: str = NAMES[2]) -> bool:
    """Whether a real TLS client that has the one's bundle accepts the other's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(server, served)
    client = ssl.create_default_context(cadata=bundle_of.bundle.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    two = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, two):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_a_new_one_is_good_for_each_name_of_the_service() -> None:
    import time

    made = authority.create(NAMES, time.time())
    authority.check(made, NAMES, time.time())
    assert NAMES == (
        "startgate-webhook",
        "startgate-webhook.startgate-system",
        "startgate-webhook.startgate-system.svc",
        "startgate-webhook.startgate-system.svc.cluster.local",
    )
    for name in NAMES:
        assert verifies(made, made, name)
    assert not verifies(made, made, "elsewhere.startgate-system.svc")
    assert not verifies(authority.create(NAMES, time.time()), made), "another CA"


def test_what_is_in_it() -> None:
    made = authority.create(NAMES, NOW)
    (ca,), serving = bundle(made), certificate(made)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert not serving.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert serving.not_valid_after_utc - serving.not_valid_before_utc == SERVING_LIFE + authority.SLACK
    assert ca.not_valid_after_utc - ca.not_valid_before_utc == CA_LIFE + authority.SLACK
    assert authority.ends(made) == NOW + 90 * DAY


@pytest.mark.parametrize(("days", "due"), [(0, False), (59.9, False), (60.1, True), (89, True), (200, True)])
def test_due_at_two_thirds_of_its_life(days: float, due: bool) -> None:
    assert authority.due(certificate(authority.create(NAMES, NOW)), NOW + days * DAY) is due


def test_nothing_is_renewed_before_it_is_due() -> None:
    made = authority.create(NAMES, NOW)
    assert authority.renew(made, NAMES, NOW + 59 * DAY, trusted=True) == made


def test_a_serving_certificate_is_renewed_under_the_same_ca() -> None:
    made = authority.create(NAMES, NOW)
    later = NOW + 61 * DAY
    renewed = authority.renew(made, NAMES, later, trusted=True)
    assert (renewed.bundle, renewed.authority_key) == (made.bundle, made.authority_key)
    assert renewed.certificate != made.certificate
    assert renewed.key != made.key
    assert authority.ends(renewed) == later + 90 * DAY
    authority.check(renewed, NAMES, later)


def test_a_new_ca_is_in_the_bundle_before_anything_is_issued_by_it() -> None:
    old = authority.create(NAMES, NOW)
    later = NOW + 244 * DAY
    old = authority.renew(old, NAMES, NOW + 200 * DAY, trusted=True)
    both = authority.renew(old, NAMES, later, trusted=True)
    assert (both.certificate, both.key) == (old.certificate, old.key)
    assert [each.subject for each in bundle(both)][1:] == [bundle(old)[0].subject]
    assert bundle(both)[0].subject != bundle(old)[0].subject
    assert authority.renew(both, NAMES, later + 1, trusted=False) == both, "not trusted everywhere yet"
    after = authority.renew(both, NAMES, later + 60, trusted=True)
    assert after.bundle == both.bundle
    assert certificate(after).issuer == bundle(after)[0].subject
    authority.check(after, NAMES, later + 60)
    assert authority.renew(after, NAMES, later + 120, trusted=True) == after


def test_a_ca_that_has_ended_leaves_the_bundle() -> None:
    state = authority.create(NAMES, NOW)
    first = bundle(state)[0].subject
    for day in range(0, 3 * 365, 5):
        for _ in range(2):
            state = authority.renew(state, NAMES, NOW + day * DAY, trusted=True)
    assert first not in [each.subject for each in bundle(state)]
    assert len(bundle(state)) <= 2


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.01, 25), min_size=30, max_size=60))
def test_however_looks_are_spread_what_is_served_is_valid_and_trusted(gaps: list[float]) -> None:
    """A client may have the bundle of the look before; it must accept what is served from this one on."""
    now, state = NOW, authority.create(NAMES, NOW)
    for gap in gaps:
        now += gap * DAY
        before = state
        state = authority.renew(state, NAMES, now, trusted=True)
        authority.check(state, NAMES, now)
        authority.check(Material(state.certificate, state.key, before.bundle, before.authority_key), NAMES, now)
        assert authority.ends(state) <= bundle(state)[0].not_valid_after_utc.timestamp()


MADE = authority.create(NAMES, NOW)
OTHER = authority.create(NAMES, NOW)


@pytest.mark.parametrize(
    ("material", "why"),
    [
        (Material(b"", MADE.key, MADE.bundle, MADE.authority_key), "can't be read"),
        (Material(b"garbage", MADE.key, MADE.bundle, MADE.authority_key), "can't be read"),
        (Material(MADE.certificate, b"garbage", MADE.bundle, MADE.authority_key), "key can't be read"),
        (Material(MADE.certificate, MADE.key, b"", MADE.authority_key), "can't be read"),
        (Material(MADE.certificate, OTHER.key, MADE.bundle, MADE.authority_key), "doesn't belong to"),
        (Material(MADE.certificate, MADE.key, MADE.bundle, OTHER.authority_key), "doesn't belong to"),
        (Material(MADE.certificate, MADE.key, OTHER.bundle, OTHER.authority_key), "isn't signed by"),
    ],
)
def test_what_cannot_be_served_is_said(material: Material, why: str) -> None:
    with pytest.raises(MaterialError, match=why):
        authority.check(material, NAMES, NOW)


def test_ended_or_foreign_certificates_are_said() -> None:
    with pytest.raises(MaterialError, match="valid until"):
        authority.check(MADE, NAMES, NOW + 91 * DAY)
    with pytest.raises(MaterialError, match="isn't for other"):
        authority.check(MADE, ["other"], NOW)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.sampled_from(Material.__struct_fields__), st.integers(0, 700))
def test_whatever_is_damaged_it_is_said(damage: bytes, field: str, where: int) -> None:
    values = {name: getattr(MADE, name) for name in Material.__struct_fields__}
    whole: bytes = values[field]
    values[field] = whole[:where] + damage + whole[where + len(damage) :]
    try:
        authority.check(Material(**values), NAMES, NOW)
    except MaterialError as error:
        assert str(error)
