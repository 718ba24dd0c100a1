"""Certificates: the program makes its own, tells the API server, and renews them while reviews go on.

The webhook runs with a shorter pause between two looks here, and is else the program as it ships.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import pytest
import pytest_asyncio
from cryptography import x509

from certs import authority
from certs.authority import Material
from certs.rotation import FILES
from localcluster.deploy import Startgate
from startgate.kube.errors import ApiError
from startgate.kube.kinds import JOBS, SECRETS, Secret
from startgate.model import names
from startgate.model.gang import Phase
from tests.behaviour.kit import Field, eventually, job_of

QUICK: Final = (
    "from certs import rotation; rotation.LOOK_EVERY = rotation.RETRY_EVERY = 0.5; from webhook import main; main.run()"
)
"""python -m webhook, but it looks after its certificate twice a second."""

SERVER_NAMES: Final = authority.server_names(names.WEBHOOK_SERVICE, names.SYSTEM_NAMESPACE)
CONFIGURATIONS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{names.WEBHOOK_CONFIGURATION}"
    for kind in ("mutating", "validating")
)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def quick(startgate: Startgate) -> AsyncIterator[None]:
    webhook = startgate.webhook
    ships = webhook._command
    assert ships.argv[1:3] == ["-m", "webhook"]
    await webhook.stop()
    webhook._command = dataclasses.replace(ships, argv=[ships.argv[0], "-c", QUICK, *ships.argv[3:]])
    try:
        await webhook.start()
        await webhook.wait_ready()
        await startgate.wait_effective()
        yield
    finally:
        webhook._command = ships
        await webhook.stop()
        await webhook.start()
        await webhook.wait_ready()
        await startgate.wait_effective()


async def secret(field: Field) -> Secret:
    return await field.client.get(SECRETS, names.CERTIFICATE_SECRET, names.SYSTEM_NAMESPACE)


async def held(field: Field) -> Material | None:
    """What the Secret has; None while there is no usable one."""
    try:
        found = await secret(field)
        material = Material(**{part: (found.data or {})[file] for part, file in FILES.items()})
        authority.check(material, SERVER_NAMES, time.time())
    except (ApiError, KeyError, authority.MaterialError):
        return None
    return material


async def put(field: Field, material: Material) -> None:
    data = {file: getattr(material, part) for part, file in FILES.items()}
    await field.client.patch(SECRETS, names.CERTIFICATE_SECRET, {"data": data}, names.SYSTEM_NAMESPACE)


async def bundles(field: Field) -> list[bytes]:
    """The caBundle of each of our webhooks, as the API server has it."""
    found: list[bytes] = []
    for path in CONFIGURATIONS:
        whole = json.loads(await field.client.request("GET", path))
        texts = [each["clientConfig"].get("caBundle", "") for each in whole["webhooks"]]
        found += msgspec.convert(texts, list[bytes])
    return found


async def served(field: Field) -> bytes:
    """The certificate that whoever connects now gets, as PEM."""
    where = ("127.0.0.1", field.startgate.webhook.port)
    return (await asyncio.to_thread(ssl.get_server_certificate, where)).encode()


async def settles(field: Field, wanted: Callable[[Material], bool], what: str) -> Material:
    """Returns what is held once it is as wanted, is what is served, and is what the API server trusts."""

    async def read() -> Material | None:
        material = await held(field)
        if material is None or not wanted(material) or await served(field) != material.certificate:
            return None
        return material if set(await bundles(field)) == {material.bundle} else None

    found = await eventually(read, bool, what)
    assert found is not None
    return found


async def takes_jobs(field: Field) -> None:
    """Returns when a labelled Job has been let in, gated, and started: what the API server knows lags a little."""
    await field.nodes(1)
    queue = await eventually(partial(try_, field.queue()), bool, "a queue is let in")
    assert isinstance(queue, str)

    async def submitted() -> bool:
        return bool(await try_(field.submit("a", pods=1, queue=queue)))

    await eventually(submitted, bool, "a Job is let in")
    await field.phase("a", Phase.RUNNING)
    assert all(change.new is None or change.new.gated for change in field.pod_changes if change.old is None)


async def try_(work: Awaitable[object]) -> object:
    try:
        return await work
    except ApiError:
        return None


def issued(age: timedelta, ca: x509.Certificate, key: bytes) -> tuple[bytes, bytes]:
    """A serving certificate and its key, as this CA would have made them so long ago."""
    made, its_key = authority._issue(SERVER_NAMES, ca, authority._read_key(key), datetime.now(UTC) - age)
    return authority._pem(made), authority._pem_key(its_key)


@asynccontextmanager
async def jobs_keep_coming(field: Field, queue: str) -> AsyncIterator[list[int]]:
    """Labelled Jobs, as dry runs, several at a time without a pause; any that is refused fails the test.

    Gives the number of those let in by each of the submitters so far.
    """
    counts = [0] * 4
    over = asyncio.Event()

    async def submit(number: int) -> None:
        while not over.is_set():
            job = job_of(f"j{number}", pods=1, queue=queue)
            await field.client.create(JOBS, job, field.namespace, dry_run=True)
            counts[number] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(len(counts)):
            tasks.create_task(submit(number))
        yield counts
        over.set()


async def test_secret_and_bundles_are_of_the_programs_own_making(field: Field) -> None:
    material = await settles(field, lambda _: True, "all is as the program made it")
    assert (await secret(field)).type == "kubernetes.io/tls"
    (certificate,) = x509.load_pem_x509_certificates(material.certificate)
    names_in_it = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    asked = f"{names.WEBHOOK_SERVICE}.{names.SYSTEM_NAMESPACE}.svc"  # what the API server verifies
    assert asked in names_in_it.get_values_for_type(x509.DNSName)
    trusted = ssl.create_default_context(cadata=material.bundle.decode())
    where = ("127.0.0.1", field.startgate.webhook.port)
    _, writer = await asyncio.open_connection(*where, ssl=trusted, server_hostname=asked)
    writer.close()
    assert len(await bundles(field)) == 3, "of Jobs, pods and queues"
    lines = field.cluster.audit_log.read_text().splitlines()
    made = [
        entry["user"]["username"]
        for entry in map(json.loads, lines)
        if entry["verb"] == "create"
        and (it := entry.get("objectRef", {})).get("resource") == "secrets"
        and it.get("namespace") == names.SYSTEM_NAMESPACE
    ]
    assert set(made) == {f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.WEBHOOK_ACCOUNT}"}


@pytest.mark.parametrize("how", ["deleted", "garbage", "another key"])
async def test_a_secret_that_is_lost_or_spoilt_is_made_anew(field: Field, how: str) -> None:
    before = await settles(field, lambda _: True, "all is well")
    if how == "deleted":
        await field.client.delete(SECRETS, names.CERTIFICATE_SECRET, names.SYSTEM_NAMESPACE)
    elif how == "garbage":
        await put(field, msgspec.structs.replace(before, certificate=b"garbage"))
    else:
        other = authority.create(SERVER_NAMES, time.time())
        await put(field, msgspec.structs.replace(before, key=other.key))
    after = await settles(field, lambda it: it.certificate != before.certificate, "made anew, served and trusted")
    assert after.key != before.key
    assert not authority.due(x509.load_pem_x509_certificate(after.certificate), time.time())
    await takes_jobs(field)


async def test_a_certificate_that_is_due_is_renewed_and_no_job_refused_meanwhile(field: Field) -> None:
    before = await settles(field, lambda _: True, "all is well")
    (ca,) = x509.load_pem_x509_certificates(before.bundle)
    certificate, key = issued(timedelta(days=80), ca, before.authority_key)  # of 90
    assert authority.due(x509.load_pem_x509_certificate(certificate), time.time())
    queue = await field.queue()
    async with jobs_keep_coming(field, queue) as counts:
        await put(field, msgspec.structs.replace(before, certificate=certificate, key=key))
        old = {before.certificate, certificate}
        after = await settles(field, lambda it: it.certificate not in old, "it is renewed")
        then = list(counts)

        async def more() -> bool:
            return all(now > was for now, was in zip(counts, then, strict=True))

        await eventually(more, bool, "and Jobs go on coming in")
    assert after.bundle == before.bundle, "its authority wasn't due"
    ends = x509.load_pem_x509_certificate(after.certificate).not_valid_after_utc
    assert ends > datetime.now(UTC) + timedelta(days=89)
    assert min(counts) > 5


async def test_an_authority_that_is_due_is_followed_by_another(field: Field) -> None:
    """First both are trusted, then the new one issues: never is anything served that is not trusted."""
    made, key = authority._new_authority(datetime.now(UTC) - timedelta(days=300))  # of 365
    old_bundle, old_key = authority._pem(made), authority._pem_key(key)
    certificate, its_key = issued(timedelta(days=1), made, old_key)
    await put(field, Material(certificate, its_key, old_bundle, old_key))
    after = await settles(field, lambda it: it.certificate != certificate and old_bundle in it.bundle, "followed")
    new, old = x509.load_pem_x509_certificates(after.bundle)
    assert authority._pem(old) == old_bundle
    x509.load_pem_x509_certificate(after.certificate).verify_directly_issued_by(new)
    await takes_jobs(field)
