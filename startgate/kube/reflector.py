"""Keeps a `Store` equal to what the API server has of one kind, by a list and the watches that follow it.

Always holds: `synced` is true only while the store is complete and in touch, so nobody decides on half a list
or on a picture that the network has cut off. A watch never stops for what one object contains; it never spins
against a server that refuses or ends it; and a callback that raises ends `run`, since a world that missed a
change is wrong from then on.

How a watch works: Kubernetes API concepts, "Efficient detection of changes"; bookmarks: KEP-956.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, overload

import msgspec

from startgate.kube.backoff import Backoff
from startgate.kube.client import PAGE, Client
from startgate.kube.errors import ApiError, KubeError, Unreachable, Unreadable
from startgate.kube.kinds import Kind, ListMeta, Metadata, RawPage, T
from startgate.kube.store import Change, Key, Listing, Store, V, version_of
from startgate.kube.transport import status_of

log = logging.getLogger(__name__)

IDLE = 90.0
"""Seconds without a byte after which a watch is given up. Bookmarks come about each minute (KEP-956)."""

WATCH_SECONDS = (300, 600)
"""How long one watch lasts, as client-go asks: spread, so that not all come back together."""

STALE_AFTER = 10.0
"""Seconds without a watch after which the picture is out of date."""

OWED = 10.0
"""Seconds in which a watch has to tell of a write of ours that was answered. One that doesn't has fallen silent."""

LOOK_EACH = 1.0
"""Seconds between two looks at what the watch owes."""

LONGEST_WAIT = 10.0
"""Seconds at most between two tries, if the server doesn't ask for more: so late is the start after an outage. A dozen
kinds and a few replicas are some requests a second then, all together.
"""

LONGEST_PAUSE = 60.0
"""Seconds at most that Retry-After can make us wait."""

SLICE = 50
"""Objects of a list that are taken in before anybody else has a turn: a few milliseconds."""


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Bare(msgspec.Struct, frozen=True):
    """Any object, its metadata alone: enough to know which one is gone, or can't be read."""

    metadata: _Meta


class _Event(msgspec.Struct, frozen=True):
    """metav1.WatchEvent; the object is decoded when its type is known."""

    type: str
    object: msgspec.Raw


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_bare = msgspec.json.Decoder(_Bare).decode
_decode_raw_page = msgspec.json.Decoder(RawPage).decode

_UNREADABLE = (msgspec.DecodeError, RecursionError)


class Reflector(Generic[T, V]):
    """One kind, followed. Counters for whoever measures: `events`, `relists`, `errors`, `store.unreadable`.

    `view` makes the compact form that is held of each object (default: the object); `on_change` is called
    synchronously for each change and must be quick. `synced` is false again `stale_after` seconds after the last watch
    was lost, and while a watch owes us word of a write of our own that was answered `owed` seconds ago.
    """

    @overload
    def __init__(
        self: Reflector[T, T],
        client: Client,
        kind: Kind[T],
        *,
        namespace: str = ...,
        label_selector: str = ...,
        field_selector: str = ...,
        on_change: Callable[[Change[T]], None] | None = ...,
        page: int = ...,
        idle: float = ...,
        stale_after: float = ...,
        owed: float = ...,
        clock: Callable[[], float] = ...,
        rand: Callable[[], float] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        view: Callable[[T], V],
        namespace: str = ...,
        label_selector: str = ...,
        field_selector: str = ...,
        on_change: Callable[[Change[V]], None] | None = ...,
        page: int = ...,
        idle: float = ...,
        stale_after: float = ...,
        owed: float = ...,
        clock: Callable[[], float] = ...,
        rand: Callable[[], float] = ...,
    ) -> None: ...
    def __init__(
        self: Reflector[T, Any],
        client: Client,
        kind: Kind[T],
        *,
        view: Callable[[T], Any] | None = None,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        on_change: Callable[[Change[Any]], None] | None = None,
        page: int = PAGE,
        idle: float = IDLE,
        stale_after: float = STALE_AFTER,
        owed: float = OWED,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.store: Store[T, V] = Store(view or (lambda obj: obj), on_change)
        self.kind = kind
        self.events = 0
        self.relists = 0
        self.errors = 0
        self.last_error = ""
        """The last error's sentence, "" while all is well."""
        self.last_contact = clock()
        """When the API server was last heard of, on `clock`."""
        self._client = client
        self._path = kind.path(namespace)
        self._selectors = {}
        if label_selector:
            self._selectors["labelSelector"] = label_selector
        if field_selector:
            self._selectors["fieldSelector"] = field_selector
        self._limit = page
        self._idle = idle
        self._stale_after = stale_after
        self._patience = owed
        self._owed: tuple[int, float] | None = None
        """A version that an answer has shown and the watch hasn't, and when that was first seen."""
        self._clock = clock
        self._rand = rand
        self._backoff = Backoff(longest=LONGEST_WAIT, rand=rand)
        self._listed = asyncio.Event()
        self._watching = False
        self._progress = False

    @property
    def synced(self) -> bool:
        """Whether the store is complete and in touch: what is read from it may be decided on."""
        if not self._listed.is_set() or self._silent:
            return False
        limit = self._idle if self._watching else self._stale_after
        return self._clock() - self.last_contact <= limit

    @property
    def _silent(self) -> bool:
        return self._owed is not None and self._clock() - self._owed[1] > self._patience

    async def wait_synced(self) -> None:
        """Returns once the first list is through."""
        await self._listed.wait()

    async def run(self) -> None:
        """For ever, until cancelled; raises only what `on_change` raises."""
        listed = False
        while True:
            self._progress = False
            pause = 0.0
            try:
                if not listed:
                    await self._list()
                    listed = True
                await self._watch()
            except KubeError as error:
                if isinstance(error, ApiError) and error.expired:
                    listed = False
                    log.info("%s: the watch is too old, listing again", self.kind.plural)
                else:
                    self.errors += 1
                    self.last_error = str(error)
                    log.warning("%s: %s", self.kind.plural, error)
                if isinstance(error, ApiError) and error.retry_after is not None:
                    pause = min(error.retry_after, LONGEST_PAUSE)
            if self._progress:
                self._backoff.reset()
            # Also after a watch that ended well: one that told something is followed at once (the first step
            # is short), one that told nothing later and later.
            await asyncio.sleep(max(pause, self._backoff.next()))

    def _touch(self) -> None:
        self.last_contact = self._clock()

    async def _list(self) -> None:
        """Reads all pages at one version and takes each in as it comes, while the next one is on its way. ApiError
        (`expired`) if that took too long.
        """
        self.relists += 1
        listing: Listing[T, V] | None = None
        body = await self._page("")
        while True:
            objects, kept, meta = self._decode(body)
            if listing is None:
                version = version_of(meta)
                if not version:
                    raise Unreadable(f"The list of {self.kind.plural} has no version that is a number.")
                listing = self.store.listing(version)
            following = asyncio.create_task(self._page(meta.continue_)) if meta.continue_ else None
            try:
                for key in kept:
                    listing.keep(key)
                for start in range(0, len(objects), SLICE):
                    for obj in objects[start : start + SLICE]:
                        listing.add(obj)
                    await asyncio.sleep(0)  # others have their turn, and the next page is asked for
                del objects
                if following is None:
                    break
                body = await following
            finally:
                if following is not None:
                    following.cancel()
        listing.done()
        self._touch()
        self._listed.set()

    async def _page(self, token: str) -> bytes:
        """The page of the list that this token stands for; "": the first."""
        # Without a resourceVersion the read is consistent, and all pages are of the first one's version.
        query = {**self._selectors, "limit": str(self._limit)}
        if token:
            query["continue"] = token
        return await self._client.request("GET", self._path, query=query)

    def _decode(self, body: bytes) -> tuple[Sequence[T], list[Key], ListMeta]:
        """A page: its objects, and the names of those that can't be decoded."""
        try:
            page = self.kind.decode_page(body)
        except _UNREADABLE:
            return self._salvage(body)
        return page.items or (), [], page.metadata

    def _salvage(self, body: bytes) -> tuple[Sequence[T], list[Key], ListMeta]:
        """Of a page that can't be decoded whole: what can be, one by one."""
        try:
            page = _decode_raw_page(body)
        except _UNREADABLE as error:
            raise Unreadable(f"The list of {self.kind.plural} can't be read: {error}") from error
        objects: list[T] = []
        kept: list[Key] = []
        for raw in page.items or ():
            try:
                objects.append(self.kind.decode(raw))
            except _UNREADABLE as error:
                bare = _bare(raw)
                kept.append((bare.namespace, bare.name))
                self.store.skip(bare, error)
        return objects, kept, page.metadata

    async def _watch(self) -> None:
        """Follows what comes after `store.seen` until the server ends it; `expired`: list again."""
        shortest, longest = WATCH_SECONDS
        query = {
            **self._selectors,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self.store.seen),
            "timeoutSeconds": str(int(shortest + self._rand() * (longest - shortest))),
        }
        try:
            async with (
                self._client.stream(self._path, query=query, idle=self._idle) as lines,
                asyncio.timeout(None) as limit,
            ):
                self._touch()
                self._watching = True
                self.last_error = ""
                looking = asyncio.create_task(self._look(limit))
                try:
                    async for line in lines:
                        if line:
                            self._touch()
                            self._take(line)
                            self._progress = True
                    self._touch()  # ended in order, it has told all that there was
                finally:
                    looking.cancel()
        except TimeoutError as error:
            raise Unreachable("The watch has fallen silent: it doesn't tell of our own writes.") from error
        finally:
            self._watching = False

    async def _look(self, limit: asyncio.Timeout) -> None:
        """Ends the watch when it owes us something for too long: another tells of it at once."""
        began = self._clock()
        while True:
            await asyncio.sleep(LOOK_EACH)
            if self._owed is not None and self._owed[0] <= self.store.seen:
                self._owed = None
            if self._owed is None and self.store.learned > self.store.seen:
                self._owed = self.store.learned, self._clock()
            if self._silent and self._clock() - began > self._patience:
                limit.reschedule(asyncio.get_running_loop().time())
                return

    def _take(self, line: bytes) -> None:
        """One watch event. ApiError for an ERROR; otherwise only what `on_change` raises."""
        try:
            event = _decode_event(line)
        except _UNREADABLE as error:
            self.store.skip(_Meta(), error)
            return
        self.events += 1
        if event.type in ("ADDED", "MODIFIED"):
            try:
                obj = self.kind.decode(event.object)
            except _UNREADABLE as error:
                meta: Metadata = _bare(event.object)
                self.store.skip(meta, error)
            else:
                meta = obj.metadata
                if not 0 < version_of(meta) <= self.store.seen:  # else it comes again, and may since have gone
                    self.store.put(obj)
        elif event.type == "ERROR":
            status = status_of(event.object)
            raise ApiError(status.code, status.reason, status.message or "The watch failed")
        else:
            meta = _bare(event.object)
            if event.type == "DELETED":
                self.store.drop(meta)
        self.store.seen = max(self.store.seen, version_of(meta))


def _bare(raw: msgspec.Raw) -> _Meta:
    try:
        return _decode_bare(raw).metadata
    except _UNREADABLE:
        return _Meta()
