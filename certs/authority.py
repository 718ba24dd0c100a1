"""A small certificate authority for the webhook, and when its certificates are due for renewal.

Pure but for the keys, which are random: the time comes in. ECDSA P-256 throughout, which every TLS 1.2 and
1.3 client of Kubernetes has.

What always holds:

* A CA lives a year. It is only trusted for our own webhooks (`caBundle`), so a short life costs nobody
  anything, and a change of CA that happens three times in two years keeps working, unlike one that comes due
  after ten.
* A serving certificate lives 90 days and never outlives its CA.
* Either is due at two thirds of its life by the wall clock, however long nobody has looked, as cert-manager
  does: a third is then left for whatever stands in the way of renewing.
* A CA that was ever current stays in the bundle until it ends, so that no replica serves what is no longer
  trusted.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct
from msgspec.structs import replace

CA_LIFE: Final = timedelta(days=365)
SERVING_LIFE: Final = timedelta(days=90)
SLACK: Final = timedelta(minutes=5)
"""For clocks that are behind ours: certificates begin so much earlier."""


class MaterialError(ValueError):
    """What is held is no usable set of certificates and keys; the text says why."""


class Material(Struct, frozen=True):
    """All that serving needs, as PEM."""

    certificate: bytes
    """The serving certificate."""
    key: bytes
    bundle: bytes
    """CA certificates, the current one first."""
    authority_key: bytes
    """The current CA's."""


def server_names(service: str, namespace: str) -> tuple[str, ...]:
    """The names by which a Service is reached. kube-apiserver verifies `service.namespace.svc`, whatever the
    address that it connects to (apiserver, webhook.ClientManager), so that no other is needed on loopback.
    """
    return (
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    )


def create(names: Sequence[str], now: float) -> Material:
    """A new CA and a serving certificate of it. `now` in epoch seconds, as everywhere here."""
    ca, ca_key = _new_authority(_moment(now))
    certificate, key = _issue(names, ca, ca_key, _moment(now))
    return Material(_pem(certificate), _pem_key(key), _pem(ca), _pem_key(ca_key))


def check(material: Material, names: Sequence[str], now: float) -> None:
    """MaterialError unless it can be served: readable, keys that match, chained, valid now, for all the
    names."""
    try:
        _check(material, names, _moment(now))
    except MaterialError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # cryptography reads fields when asked for them
        raise MaterialError(f"a certificate can't be read: {error}") from error


def _check(material: Material, names: Sequence[str], moment: datetime) -> None:
    certificate, bundle = _read(material)
    issuer = next((ca for ca in bundle if _issued(ca, certificate)), None)
    if issuer is None:
        raise MaterialError("the serving certificate isn't signed by a CA of the bundle")
    for each in (certificate, *bundle):
        valid = each.not_valid_before_utc <= moment < each.not_valid_after_utc
        if not valid and each in (certificate, issuer):  # of another CA it is enough that it can be read
            raise MaterialError(f"{each.subject.rfc4514_string()} is valid until {each.not_valid_after_utc}")
    missing = set(names) - set(_names_of(certificate))
    if missing:
        raise MaterialError(f"the serving certificate isn't for {', '.join(sorted(missing))}")


def renew(material: Material, names: Sequence[str], now: float, *, trusted: bool) -> Material:
    """The same, with whatever is due made anew; equal to `material` if nothing is.

    `trusted`: everybody has this bundle. A new CA goes into the bundle alone at first; certificates are
    issued by it once it is trusted, so that no client meets a certificate that it can't verify. Raises
    MaterialError.
    """
    certificate, bundle = _read(material)
    moment = _moment(now)
    if due(bundle[0], now):
        ca, ca_key = _new_authority(moment)
        kept = [each for each in bundle if moment < each.not_valid_after_utc]
        return replace(material, bundle=b"".join(map(_pem, [ca, *kept])), authority_key=_pem_key(ca_key))
    if trusted and (due(certificate, now) or not _issued(bundle[0], certificate)):
        ca_key = _read_key(material.authority_key)
        fresh, key = _issue(names, bundle[0], ca_key, moment)
        return replace(material, certificate=_pem(fresh), key=_pem_key(key))
    return material


def due(certificate: x509.Certificate, now: float) -> bool:
    """Whether two thirds of its life are over."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return _moment(now) >= certificate.not_valid_before_utc + life * 2 / 3


def ends(material: Material) -> float:
    """When the serving certificate ends, in epoch seconds. MaterialError if it can't be read."""
    certificate, _ = _read(material)
    return certificate.not_valid_after_utc.timestamp()


def _moment(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)


def _read(material: Material) -> tuple[x509.Certificate, list[x509.Certificate]]:
    try:
        certificate = x509.load_pem_x509_certificate(material.certificate)
        bundle = x509.load_pem_x509_certificates(material.bundle)
    except ValueError as error:
        raise MaterialError(f"a certificate can't be read: {error}") from error
    for each, key in ((certificate, material.key), (bundle[0], material.authority_key)):
        if _read_key(key).public_key() != each.public_key():
            raise MaterialError(f"the key doesn't belong to {each.subject.rfc4514_string()}")
    return certificate, bundle


def _read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
        raise MaterialError(f"a key can't be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise MaterialError("a key isn't of the kind that we make (ECDSA)")
    return key


def _issued(ca: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


def _names_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)


def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # The date is in the name, so that verifiers with an old and a new one in their bundle tell them apart.
    name = _name(f"startgate-webhook-ca {now:%Y-%m-%dT%H:%M:%SZ}")
    builder = _builder(name, name, key, now, now + CA_LIFE)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(key, hashes.SHA256()), key


def _issue(
    names: Sequence[str], ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + SERVING_LIFE, ca.not_valid_after_utc)
    builder = _builder(_name(max(names, key=len)[:64]), ca.subject, key, now, end)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(alternatives, critical=False)
    builder = builder.add_extension(signer, critical=False)
    return builder.sign(ca_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
