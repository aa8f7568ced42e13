"""Cloud storage: the seven verbs over S3, Google Cloud Storage, Azure Blob Storage, or memory, through `obstore`.

Credentials come from the environment, from the role of the machine, or from `options`, the settings of a `Bucket`,
whose names are obstore's. No message and no file contains an option's value. The module `bucket` has the forms of URLs.

The surprise: an answer may be lost; the client then repeats a `create` that has succeeded, and gets "exists already".
S3 gives the same answer for a free name that another request is deleting. So every object carries a random mark of its
writer, and after "exists already" the mark is read: the mark of this call means True, another mark False, no object
means another try.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from .bucket import scrubbed, split_settings, split_url
from .errors import HybridStoreError, StorageUnreachableError
from .installed import installed
from .rounds import merged, side_by_side

LOGGER: Final = logging.getLogger("hybridstore")
# The attribute of an object that says which call of `create` wrote it. Letters only: Azure refuses a hyphen.
WRITER: Final = "hybridstorewriter"
# A request that fails for a passing reason is repeated for this time in all, with a line in the log at this interval.
RETRY_SECONDS: Final = 120.0
LINE_SECONDS: Final = 10.0
# How often `create` is tried after "exists already" for a name without an object (S3's 409 during a deletion).
_CREATES: Final = 5
# How many of obstore's stores are kept for the next one with the same settings.
_STORES: Final = 8

Result = TypeVar("Result")


_BEYOND = ("InvalidRange", "OutOfRange", "StartTooLarge")


class CloudStorage:
    """Objects of a bucket or container below a prefix. Safe to use from several threads; not in a forked child.

    url      where; see the module for the forms
    options  obstore's settings of the store (`endpoint`, `region`, `access_key_id`, `account_key`, ...), or None

    Raises HybridStoreError for a location that is not supported, and where obstore is not installed. No request is made
    before the first verb. Pickling carries the url and the options.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        self._address, self._base = split_url(url)
        installed(self._address, "obstore", _REMEDY)
        split_settings(self._address, self.options)
        self._client = _Client(self._address, self.options)

    @property
    def url(self) -> str:
        """The location, without options."""
        return f"{self._address}/{self._base}".rstrip("/")

    def __repr__(self) -> str:
        return f"CloudStorage({self.url!r})"

    def below(self, folder: str) -> CloudStorage:
        """See `Storage`. Shares the connections."""
        inner = CloudStorage.__new__(CloudStorage)
        inner.options, inner._address, inner._client = self.options, self._address, self._client
        inner._base = f"{self._base}{folder}/"
        return inner

    def within(self, seconds: float) -> CloudStorage:
        """Return the same storage with one time limit (seconds from now) for all requests together.

        For callers that need an answer in time. The returned storage has other connections.
        """
        inner = self.below("")
        inner._base = self._base
        inner._client = _Client(self._address, self.options, seconds)
        return inner

    # --- writing --------------------------------------------------------------------------------------------------

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage`. One request, and one more where the name is taken. Raises StorageUnreachableError."""
        import obstore

        writer = os.urandom(16).hex()
        for _ in range(_CREATES):
            try:
                self._ask(
                    name, lambda store, path: obstore.put(store, path, data, mode="create", attributes={WRITER: writer})
                )
            except FileNotFoundError as error:
                advice = "does the bucket or container exist?"
                raise _unreachable(f"{self.url}/{name}", error.__cause__ or error, self.options, advice) from None
            except FileExistsError:
                try:
                    return self._writer_of(name) == writer
                except FileNotFoundError:
                    continue  # no object has the name: S3 also answers "exists" for a name that is being deleted
            else:
                return True
        raise StorageUnreachableError(
            f"{self.url}/{name}: answered {_CREATES} times that the object exists, and that it does not (try again)"
        )

    def _writer_of(self, name: str) -> str | None:
        import obstore

        # A `head` does not help: its answer lacks an object's own attributes.
        answer: Any = self._ask(name, lambda store, path: obstore.get(store, path, options={"head": True}))
        return str(answer.attributes.get(WRITER)) if answer.attributes else None

    def take(self, name: str, source: CloudStorage, of: str) -> bool:
        """Create an object as a copy of the object `of` of another place, by the store itself: no byte comes here.
        False, and nothing is done, if the places are not of one bucket with the same settings.

        An object that has the name is replaced, so the caller must be alone there. One request. Raises
        FileNotFoundError, StorageUnreachableError.
        """
        import obstore

        if (source._address, source.options) != (self._address, self.options):
            return False
        path = source._base + of
        self._client.ask(lambda store: obstore.copy(store, path, self._base + name), f"{source.url}/{of}")
        return True

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage`. One request for up to 1,000 names on S3."""
        import obstore

        paths = [self._base + name for name in names]
        try:
            if paths:
                self._client.ask(lambda store: obstore.delete(store, paths), f"{self.url}/...")
        except FileNotFoundError:
            # One name was absent, and a store that says so may have stopped there.
            for path in paths:
                try:
                    self._client.ask(partial(obstore.delete, paths=path), f"{self._address}/{path}")
                except FileNotFoundError:
                    continue

    # --- reading --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        """See `Storage`. One request. Raises FileNotFoundError, StorageUnreachableError."""
        import obstore

        return self._ask(name, lambda store, path: bytes(obstore.get(store, path).bytes()))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """See `Storage`. A request for ranges that lie within 64 KiB of one another, all requests side by side."""
        spans = merged(ranges)
        parts = side_by_side(lambda span: self._range(name, *span), spans)
        starts = [start for start, _ in spans]
        result = []
        for start, length in ranges:
            at = bisect_right(starts, start) - 1
            begin = start - starts[at] if length > 0 else 0
            result.append(parts[at][begin : begin + length] if length > 0 else b"")
        return result

    def _range(self, name: str, start: int, end: int) -> bytes:
        import obstore

        # Not obstore's own `get_ranges`: it panics where a range begins beyond the end of an object that was cut short.
        try:
            return self._ask(name, lambda store, path: bytes(obstore.get_range(store, path, start=start, end=end)))
        except _RangeError:
            return b""

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        """See `Storage`. A request for every 1,000 names of the folder that come after `after`."""
        import obstore

        folder = self._base + prefix[: prefix.rfind("/") + 1]
        base, first, start = self._base, self._base + prefix, self._base + after if after else None

        def ask(store: Any) -> list[str]:
            names = []
            for page in obstore.list(store, prefix=folder.rstrip("/") or None, offset=start):
                paths = [entry["path"] for entry in page]
                names += [path for path in paths if path.startswith(first)]
                if paths and max(paths) > first and not max(paths).startswith(first):
                    break  # pages come in order: no further one has names of this prefix
            return names

        names = [name.removeprefix(base) for name in self._client.ask(ask, f"{self.url}/{prefix}")]
        return sorted(name for name in names if name > after)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the bytes of each object below a folder (`prefix` ends at a `/`, or is empty). A request for every
        1,000 names.
        """
        import obstore

        folder = (self._base + prefix).rstrip("/") or None
        entries = self._client.ask(
            lambda store: [entry for page in obstore.list(store, prefix=folder) for entry in page],
            f"{self.url}/{prefix}",
        )
        return {entry["path"].removeprefix(self._base): int(entry["size"]) for entry in entries}

    def folders(self, folder: str = "") -> Sequence[str]:
        """See `Storage`. A request for every 1,000 names directly in the folder."""
        import obstore

        base = self._base + (f"{folder}/" if folder else "")
        answer = self._client.ask(
            lambda store: obstore.list_with_delimiter(store, base.rstrip("/") or None), f"{self.url}/{folder}"
        )
        return sorted(prefix.rstrip("/").removeprefix(base) for prefix in answer["common_prefixes"])

    def size(self, name: str) -> int:
        """See `Storage`. One request."""
        import obstore

        return int(self._ask(name, lambda store, path: obstore.head(store, path)["size"]))

    def path(self, name: str) -> Path | None:
        """See `Storage`. None, without a request: nothing here is a local file."""
        return None

    # --- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, name: str, request: Callable[[Any, str], Result]) -> Result:
        path = self._base + name
        return self._client.ask(lambda store: request(store, path), f"{self.url}/{name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (CloudStorage, (self.url, self.options))


# What brings obstore.
_REMEDY: Final = "pip install 'hybridstore[cloud]'"
# Who is asked for the role of this machine where no credentials are given.
_METADATA: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
_ASKS_ROLE: Final = "; neither the environment nor the Bucket has credentials, so this machine was asked for a role"


class _RangeError(OSError):
    """A range begins beyond the end of its object."""


# The process that first used obstore. Its threads do not survive a fork: any use in the child, also of another store,
# hangs or ends the child.
_user: int | None = None


_Options = frozenset[tuple[str, Any]]


@lru_cache(maxsize=_STORES)
def _connected(address: str, config: _Options, client: _Options, retries: _Options, environment: _Options) -> Any:
    """Return obstore's store for these settings, the same one to all who have the same settings and environment.

    A store of its own would read the certificates of the machine, which takes 4 ms of a processor, and begin with
    connections of its own; an opening of a state asks for several.
    """
    import obstore.store as stores

    from_url: Any = stores.from_url  # its overloads want the options of one store
    return from_url(address, config=dict(config) or None, client_options=dict(client), retry_config=dict(retries))


class _Client:
    """The connections to one bucket, made at the first request, or taken from an earlier one with the same settings.

    With `seconds` all requests together are tried for so long, from now on, else each for RETRY_SECONDS.
    """

    def __init__(self, address: str, options: dict[str, Any], seconds: float | None = None) -> None:
        self.address = address
        self.options = options
        self._store: Any = None
        self._seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds

    def store(self) -> Any:
        """Return obstore's store.

        Raises HybridStoreError where obstore is missing or refuses the options, and in a child that was forked after
        its parent's first request.
        """
        global _user
        if _user not in (None, os.getpid()):
            raise HybridStoreError(
                f"{self.address}: process {_user} has used object stores before it forked process {os.getpid()} (start "
                "the child with the multiprocessing method 'spawn', or open the state after the fork only)"
            )
        if self._store is None:
            self._store = self._open()
            _user = os.getpid()
        return self._store

    def _open(self) -> Any:
        installed(self.address, "obstore", _REMEDY)
        if self.address.startswith("memory:"):
            from obstore.store import MemoryStore

            return MemoryStore()
        patience = 30.0 if self._seconds is None else max(1.0, self._seconds / 3)
        client: dict[str, Any] = {"timeout": timedelta(seconds=patience), "connect_timeout": timedelta(seconds=5)}
        named = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
        if next(filter(None, (self.options.get("endpoint"), *named)), "").startswith("http://"):
            client["allow_http"] = True
        retries = {"max_retries": 10, "retry_timeout": timedelta(seconds=min(LINE_SECONDS, patience / 2))}
        config, connection = split_settings(self.address, self.options)
        given = (frozenset(options.items()) for options in (config, client | connection, retries, os.environ))
        try:
            return _connected(self.address, *given)
        except Exception as error:
            raise _unreachable(self.address, error, self.options, "is a setting of the Bucket misspelt?") from None

    def ask(self, request: Callable[[Any], Result], where: str) -> Result:
        """Make a request, and repeat it after a passing failure until RETRY_SECONDS or the remaining time are over.

        Raises FileNotFoundError, FileExistsError, StorageUnreachableError.
        """
        store = self.store()
        from obstore import exceptions

        started = time.monotonic()
        limit = RETRY_SECONDS if self._until is None else max(0.0, self._until - started)
        while True:
            try:
                return request(store)
            except FileNotFoundError as error:
                # without a name of its own: an error that its frame refers to would keep the frames of all callers
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
            except exceptions.AlreadyExistsError:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where) from None
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
                advice = "do the environment or the Bucket have credentials that may read, write, list and delete here?"
                raise _unreachable(where, error, self.options, advice) from None
            except exceptions.GenericError as error:
                # not the number alone: an address or a duration may contain it
                if any(sign in str(error) for sign in ("416 Re", "416 The", "Range Not Satisfiable", *_BEYOND)):
                    raise _RangeError(errno.EINVAL, "range beyond the end", where) from None
                waited = time.monotonic() - started
                if waited >= limit or not _may_pass(error):
                    role = _ASKS_ROLE if any(host in str(error) for host in _METADATA) else ""
                    raise _unreachable(where, error, self.options, f"tried for {waited:.0f} s{role}") from None
                LOGGER.warning(
                    "%s: no answer for %.0f s (%s); trying for %.0f s",
                    where,
                    waited,
                    _brief(error, self.options),
                    limit,
                )
                time.sleep(min(1.0, waited / 10 + 0.05))
            except exceptions.BaseError as error:
                raise _unreachable(where, error, self.options, "the request is not one that the store takes") from None


def _may_pass(error: Exception) -> bool:
    """True for an error that another try may avoid: no connection, a timeout, too many requests, an error of the
    server.
    """
    status = re.search(r"status code: (\d{3})", str(error))
    return status is None or status[1] in ("408", "429") or status[1].startswith("5")


def _unreachable(where: str, error: BaseException, options: dict[str, Any], advice: str) -> StorageUnreachableError:
    return StorageUnreachableError(f"{where}: {_brief(error, options)} ({advice})")


def _brief(error: BaseException, options: dict[str, Any]) -> str:
    """Return the first line of an error, without what is signed or secret in it."""
    text = str(error).partition("\n")[0].partition(": <?xml")[0].strip()
    return scrubbed(text, options.values())
