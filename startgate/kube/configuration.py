"""Which cluster, and as whom: from a kubeconfig or a pod's ServiceAccount to what each request needs.

The one module that imports kubernetes_asyncio, and for nothing but this. The import takes most of a second
(it brings thousands of models), so `client` imports this module when it connects and not before.

Always holds: a credential that changes on disk or expires is renewed while we run, without a restart. Bound
tokens of ServiceAccounts change about hourly (KEP-1205).
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from startgate.kube.errors import ConfigurationError

Renew = Callable[[bool], Awaitable[None]]
"""Puts the newest token into the configuration; the argument says that the present one was refused."""

log = logging.getLogger(__name__)

RENEW_EVERY = 60.0
"""Seconds for which a credential isn't looked at again; client-go reads token files each minute too."""

IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass
class Target:
    """A cluster, and ourselves in it."""

    server: str
    namespace: str
    tls: ssl.SSLContext
    tls_server_name: str | None
    proxy: str | None
    credential: Credential


class Credential:
    """The Authorization header, kept fresh. Client certificates are in the TLS context instead."""

    def __init__(
        self,
        configuration: Any,
        renew: Renew | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configuration = configuration
        self._renew = renew
        self._clock = clock
        self._looked = clock()
        self._lock = asyncio.Lock()

    async def header(self) -> str | None:
        """What to send now; None: nothing."""
        if self._renew is not None and self._clock() - self._looked >= RENEW_EVERY:
            async with self._lock:
                if self._clock() - self._looked >= RENEW_EVERY:
                    await self._look(refused=False)
        return self._current

    async def replace(self, refused: str | None) -> bool:
        """Looks for another credential than the one that was refused (401); True if there is one."""
        async with self._lock:  # of many requests that were refused together, one looks
            if self._current == refused:
                await self._look(refused=True)
            return self._current != refused

    async def _look(self, *, refused: bool) -> None:
        if self._renew is None:
            return
        self._looked = self._clock()
        try:
            await self._renew(refused)
        except Exception as error:  # plugins fail in any way, and what we hold may still serve
            log.warning("The credential could not be renewed: %s", error)

    @property
    def _current(self) -> str | None:
        value = self._configuration.api_key.get("BearerToken")
        return str(value).strip() if value else None


async def load(kubeconfig: str | None, context: str | None) -> Target:
    """The target that `Client.connect` describes; ConfigurationError where there is none."""
    configuration = Configuration()
    paths = kubeconfig or os.environ.get("KUBECONFIG")
    inside = not paths and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    paths = paths or "~/.kube/config"
    where = "of the pod's ServiceAccount" if inside else f"in {paths}"
    if not inside and not _present(paths):
        raise ConfigurationError(f"There is no kubeconfig at {paths}.")
    renew: Renew | None
    try:
        if inside:
            namespace, renew = _from_pod(configuration)
        else:
            namespace, renew = await _from_files(configuration, paths, context)
        tls = _tls(configuration)
    except ConfigurationError:
        raise
    except Exception as error:  # the library asserts, indexes and converts what people wrote by hand
        raise ConfigurationError(f"The configuration {where} can't be used: {error}") from error
    return Target(
        server=str(configuration.host).rstrip("/"),
        namespace=namespace,
        tls=tls,
        tls_server_name=configuration.tls_server_name,
        proxy=configuration.proxy or _proxy_of_environment(str(configuration.host)),
        credential=Credential(configuration, renew),
    )


def _present(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


def _from_pod(configuration: Any) -> tuple[str, Renew]:
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    namespace = IN_CLUSTER_NAMESPACE.read_text().strip() if IN_CLUSTER_NAMESPACE.exists() else "default"

    async def renew(refused: bool) -> None:
        del refused  # reading a file is cheap: the newest token either way
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]

    return namespace, renew


async def _from_files(configuration: Any, paths: str, context: str | None) -> tuple[str, Renew | None]:
    async def read(into: Any) -> Any:
        return await config.load_kube_config(
            config_file=paths, context=context, client_configuration=into, persist_config=False
        )

    loader = await read(configuration)
    chosen = loader.current_context["context"]
    namespace = str(chosen.get("namespace") or "default")
    user = loader._user.value if loader._user is not None else {}

    async def run_plugin(refused: bool) -> None:
        # A plugin is run when what it gave expires or is refused, never on a timer: it may ask a person
        # (KEP-541).
        if refused:
            loader.__dict__.pop("exec_plugin_expiry", None)
        if refused or hasattr(loader, "exec_plugin_expiry"):
            await loader.load_from_exec_plugin()
            configuration.api_key["BearerToken"] = loader.token

    async def read_again(refused: bool) -> None:
        del refused
        fresh = Configuration()
        await read(fresh)
        configuration.api_key = fresh.api_key

    if "exec" in user:
        return namespace, run_plugin
    if "tokenFile" in user or "auth-provider" in user:
        return namespace, read_again
    return namespace, None


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Python 3.13 and later ask for extensions that many clusters' CAs lack and that Go, the language of every
    # other client of these servers, doesn't ask for. The chain and the name are still verified.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy_of_environment(server: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY, as kubectl honours them; once, not for each request."""
    parts = urlsplit(server)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)
