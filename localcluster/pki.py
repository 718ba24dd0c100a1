"""The keys and certificates of one cluster: made with it, and worthless after it.

Everything is signed by one authority whose key stays in the cluster's directory, readable by its
owner alone; all keys are ECDSA P-256.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=365)
SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def _write(path: Path, content: bytes) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str, organizations: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
        + [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
    )


class Authority:
    """The cluster's certificate authority, and the files that its programs read, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("startgate-localcluster")
        certificate = (
            _unsigned(self._subject, self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self.certificate_file = _write(folder / "ca.crt", self.certificate)
        accounts = ec.generate_private_key(ec.SECP256R1())
        self.account_key_file = _write(folder / "service-accounts.key", _pem(accounts))
        self.account_public_key_file = _write(
            folder / "service-accounts.pub",
            accounts.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        )

    def _issue(self, subject: x509.Name, usage: x509.ObjectIdentifier, names: Sequence[x509.GeneralName]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _unsigned(subject, self._subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """What Kubernetes takes for `user`, a member of `groups`."""
        return self._issue(_name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, hosts: Sequence[str], addresses: Sequence[str]) -> Pair:
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        return self._issue(_name(hosts[0]), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def files(self, name: str, pair: Pair) -> tuple[Path, Path]:
        """The pair as the files name.crt and name.key."""
        return (
            _write(self.folder / f"{name}.crt", pair.certificate),
            _write(self.folder / f"{name}.key", pair.key),
        )
