"""Keeps the webhook's certificate: in one Secret that all replicas share, trusted by the webhook
configurations.

Runs in each replica of the webhook, without a leader: a leader would have to be elected by something that
works before the webhook does, and its absence would let a certificate end. Instead each write has a
precondition. Two replicas that find the same thing due make two certificates, the API server takes the first,
and the second replica reads it at its next glance.

What always holds:

* A replica serves only what stands in the Secret, and only once the configurations trust its CA; so any
  replica may answer any review, and a restart changes nothing.
* A new CA is in each `caBundle` from one look to the next (a minute) before anything is issued by it, since API
  servers learn of the configuration by a watch.
* What somebody else does to the Secret is noticed within seconds: as soon as one replica has made it anew, nobody
  trusts what the others serve. They glance at its version and need no right to watch Secrets for that.
* Of the configurations only `caBundle` is written, only of webhooks that point to our Service, only if it
  differs.
* What can't be used (garbage, an ended certificate) is made anew, and said.
"""

import asyncio
import logging
import os
import random
import ssl
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from certs import authority
from certs.authority import Material, MaterialError
from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError, KubeError
from startgate.kube.kinds import SECRETS, Kind, Secret
from startgate.model import names
from startgate.model.objects import ObjectMeta, rfc3339

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 60.0
GLANCE_EVERY: Final = 3.0
RETRY_EVERY: Final = 5.0


class ServiceReference(Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class ClientConfig(Struct, rename="camel", frozen=True):
    service: ServiceReference | None = None
    ca_bundle: bytes | None = None


class Webhook(Struct, rename="camel", frozen=True):
    name: str
    client_config: ClientConfig


class Configuration(Struct, frozen=True):
    """A Mutating- or ValidatingWebhookConfiguration."""

    metadata: ObjectMeta
    webhooks: list[Webhook] | None = None


CONFIGURATIONS: Final = tuple(
    Kind("admissionregistration.k8s.io", "v1", f"{kind.lower()}s", kind, False, Configuration)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)
FILES: Final = {"certificate": "tls.crt", "key": "tls.key", "bundle": "ca.crt", "authority_key": "ca.key"}
"""Material in the Secret; the first two are as its type kubernetes.io/tls wants them."""


class Keeper:
    """One replica's part. `on_material` gets what is to be served from now on, whenever it changes."""

    def __init__(
        self,
        client: Client,
        on_material: Callable[[Material], None],
        *,
        namespace: str = names.SYSTEM_NAMESPACE,
        service: str = names.WEBHOOK_SERVICE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._on_material = on_material
        self._namespace = namespace
        self._service = service
        self._names = authority.server_names(service, namespace)
        self._clock = clock
        self._served: Material | None = None
        self._version = ""
        """Of the Secret that it stands in."""
        self._trusted_bundle = b""
        """What a look before this one already found in the configurations."""

    async def run(self) -> None:
        """Looks each minute and glances in between, for ever. What fails is said and tried again; what is served stays
        meanwhile."""
        while True:
            try:
                await self.look()
                await self._glance(LOOK_EVERY * _spread())
            except KubeError as error:
                log.warning("The certificate could not be looked after: %s", error)
                await asyncio.sleep(RETRY_EVERY * _spread())

    async def look(self) -> None:
        """One look: the Secret is there and good, the configurations trust it, it is served, and what is due of it is
        renewed. KubeError."""
        secret, material = await self._serve()
        now = self._clock()
        trusted = self._trusted_bundle == material.bundle
        self._trusted_bundle = material.bundle
        renewed = authority.renew(material, self._names, now, trusted=trusted)
        if renewed != material:
            log.info("Renewing what is due of the certificates in Secret %s", names.CERTIFICATE_SECRET)
            await self._replace(secret, renewed)

    async def _glance(self, seconds: float) -> None:
        """For so long: whenever the Secret isn't the one that was seen last, what is in it is served. KubeError."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, GLANCE_EVERY * _spread()))
            if await self._moved():
                await self._serve()

    async def _moved(self) -> bool:
        try:
            secret = await self._client.get(SECRETS, names.CERTIFICATE_SECRET, self._namespace)
        except ApiError as error:
            if error.not_found:
                return True
            raise
        return secret.metadata.resource_version != self._version

    async def _serve(self) -> tuple[Secret, Material]:
        """What is in the Secret is good, trusted, and served from now on."""
        secret, material = await self._usable()
        await self._trust(material.bundle)
        if material != self._served:
            self._on_material(material)
            self._served = material
            log.info("Serving a certificate that ends at %s", rfc3339(authority.ends(material)))
        self._version = secret.metadata.resource_version
        return secret, material

    async def _usable(self) -> tuple[Secret, Material]:
        """The Secret and what is in it, made or made anew where need be."""
        while True:
            try:
                secret = await self._client.get(SECRETS, names.CERTIFICATE_SECRET, self._namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
                await self._create()
                continue
            try:
                material = _material(secret)
                authority.check(material, self._names, self._clock())
            except MaterialError as error:
                log.warning("Secret %s is made anew: %s", names.CERTIFICATE_SECRET, error)
                await self._replace(secret, authority.create(self._names, self._clock()))
                continue
            return secret, material

    async def _create(self) -> None:
        made = authority.create(self._names, self._clock())
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": names.CERTIFICATE_SECRET, "namespace": self._namespace},
            "type": "kubernetes.io/tls",
            "data": _data(made),
        }
        try:
            await self._client.create(SECRETS, secret, self._namespace)
        except ApiError as error:
            if not error.conflict:  # else another replica was first: theirs is as good
                raise

    async def _replace(self, secret: Secret, material: Material) -> None:
        # The uid too: without it, a patch would also hit a Secret that was deleted and made again.
        meta = {"resourceVersion": secret.metadata.resource_version, "uid": secret.metadata.uid}
        patch = {"metadata": meta, "data": _data(material)}
        try:
            await self._client.patch(SECRETS, names.CERTIFICATE_SECRET, patch, self._namespace)
        except ApiError as error:
            if not (error.conflict or error.not_found):  # else somebody else has changed it: read it again
                raise

    async def _trust(self, bundle: bytes) -> None:
        for kind in CONFIGURATIONS:
            try:
                found = await self._client.get(kind, names.WEBHOOK_CONFIGURATION)
            except ApiError as error:
                if not error.not_found:
                    raise
                log.warning("There is no %s %s: apply the manifests", kind.kind, names.WEBHOOK_CONFIGURATION)
                continue
            stale = [each.name for each in found.webhooks or () if self._is_stale(each, bundle)]
            if stale:
                webhooks = [{"name": name, "clientConfig": {"caBundle": bundle}} for name in stale]
                meta = {"resourceVersion": found.metadata.resource_version}
                # By name: strategic merge keys webhooks so, and leaves those of others alone.
                await self._client.patch(
                    kind,
                    names.WEBHOOK_CONFIGURATION,
                    {"metadata": meta, "webhooks": webhooks},
                    how=Patch.STRATEGIC,
                )

    def _is_stale(self, webhook: Webhook, bundle: bytes) -> bool:
        ours = ServiceReference(self._service, self._namespace)
        return webhook.client_config.service == ours and webhook.client_config.ca_bundle != bundle


def _spread() -> float:
    """Sets the replicas apart."""
    return random.uniform(0.8, 1.2)  # noqa: S311


def _material(secret: Secret) -> Material:
    data = secret.data or {}
    missing = [file for file in FILES.values() if not data.get(file)]
    if missing:
        raise MaterialError(f"it lacks {', '.join(missing)}")
    return Material(**{field: data[file] for field, file in FILES.items()})


def _data(material: Material) -> dict[str, bytes]:
    """As the Secret has it; msgspec writes bytes as base64."""
    return {file: getattr(material, field) for field, file in FILES.items()}


def load(context: ssl.SSLContext, material: Material) -> None:
    """Handshakes from now on get this certificate; connections that are open stay as they are.

    ssl reads certificates from files only, so they are in memory for that moment, where no disk has the key.
    """
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(material.key + material.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
