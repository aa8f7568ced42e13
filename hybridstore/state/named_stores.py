"""Named stores: the ways to ask a state for its stores, by kind.

The parameters are stored with the state and compared at the next opening.

The methods are the same for every group of stores that commits together: a state directory, or a shard of a Spark
operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..clock import Duration, duration_ms
from ..stores.kinds import KEY_VALUE, SESSION, SLIDING, SUPPRESSION, WINDOW
from ..stores.suppression_bounds import OnFull, Suppression, Timer
from .upgrades import Upgrade, Upgrades

if TYPE_CHECKING:
    from ..aggregation import Aggregator
    from ..stores.key_value import KeyValueStore
    from ..stores.session import SessionStore
    from ..stores.sliding import SlidingStore
    from ..stores.suppression import SuppressionBuffer
    from ..stores.versioned import VersionedStore
    from ..stores.window import WindowStore

UpgradeArgument = Upgrade | Mapping[int, Upgrade] | None


class NamedStores(ABC):
    """Returns stores by name. From the first call on a name belongs to one kind and its parameters."""

    @abstractmethod
    def _open_store(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None) -> Any:
        """Return the store of this name, creating it if missing; `upgrades` converts its values to the present
        version.

        Raises ProgramMismatchError when it exists with another kind or other parameters, naming both.
        """

    def _upgraded(
        self, name: str, kind: str, parameters: dict[str, Any], version: int, upgrade: UpgradeArgument
    ) -> Any:
        upgrades = Upgrades(version, upgrade)
        return self._open_store(name, kind, {**parameters, **({"version": version} if version else {})}, upgrades)

    def key_value(
        self, name: str, *, ttl: Duration | None = None, version: int = 0, upgrade: UpgradeArgument = None
    ) -> KeyValueStore:
        """Return the key-value store of this name, creating it if missing.

        `ttl`: event-time life of a row; a put then needs `ts` and the row lives while ts > stream_time - ttl.
        `version`, `upgrade`: after a change of the values' shape, the number of the change (1, 2, ...), and a function
        that turns a value of the version before into a value of this version, or a mapping of version to function for
        older states. The next commit converts every value. Raises ProgramMismatchError when the store exists with
        another kind, other parameters or a version that no function converts, and UpgradeError, with nothing changed,
        when the function raises.

        >>> users = hs.open("state").key_value("users")
        >>> users["ann"] = {"visits": 1}
        >>> users.get("ann"), users.get("eve")
        ({'visits': 1}, None)
        """
        parameters = {"ttl_ms": None if ttl is None else duration_ms(ttl, "ttl")}
        return cast("KeyValueStore", self._upgraded(name, KEY_VALUE.name, parameters, version, upgrade))

    def window(
        self,
        name: str,
        *,
        retention: Duration,
        window_size: Duration | None = None,
        grace: Duration | None = None,
        retain_duplicates: bool = False,
        version: int = 0,
        upgrade: UpgradeArgument = None,
    ) -> WindowStore:
        """Return the window store of this name (KIP-428), creating it if missing.

        `retention`: a row is readable while ts > stream_time - retention. `grace` (default: retention): a write is
        accepted while ts > stream_time - grace. `window_size`: the length of a window, at most the retention.
        `retain_duplicates`: keep all rows of a key and time. `version`, `upgrade`: see `key_value`. Raises ValueError,
        and ProgramMismatchError and UpgradeError as `key_value`.

        >>> pages = hs.open("state").window("pages", retention="1 hour", grace="5 minutes")
        >>> pages.put("ann", "/help", ts=60_000)
        >>> list(pages.fetch("ann", time_from=0, time_to=90_000))
        [(60000, '/help')]
        """
        retention_ms = duration_ms(retention, "retention")
        grace_ms = retention_ms if grace is None else duration_ms(grace, "grace", zero=True)
        window_size_ms = None if window_size is None else duration_ms(window_size, "window_size", zero=True)
        if window_size_ms is not None and window_size_ms > retention_ms:
            raise ValueError(
                f"window_size: found {window_size_ms} ms, expected at most the retention of {retention_ms} ms"
            )
        parameters = {
            "retention_ms": retention_ms,
            "window_size_ms": window_size_ms,
            "grace_ms": grace_ms,
            "retain_duplicates": bool(retain_duplicates),
        }
        return cast("WindowStore", self._upgraded(name, WINDOW.name, parameters, version, upgrade))

    def session(
        self, name: str, *, retention: Duration, version: int = 0, upgrade: UpgradeArgument = None
    ) -> SessionStore:
        """Return the session store of this name (KIP-445), creating it if missing.

        `retention`: a session is readable while its end > stream_time - retention. `version`, `upgrade`: see
        `key_value`. Raises ValueError, and ProgramMismatchError and UpgradeError as `key_value`.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put("ann", {"pages": 3}, start=60_000, end=90_000)
        >>> list(visits.fetch("ann"))
        [(('ann', 60000, 90000), {'pages': 3})]
        """
        parameters = {"retention_ms": duration_ms(retention, "retention")}
        return cast("SessionStore", self._upgraded(name, SESSION.name, parameters, version, upgrade))

    def versioned(self, name: str, *, history: Duration) -> VersionedStore:
        """Return the versioned key-value store of this name (KIP-889), creating it if missing.

        `history`: a version is readable `as_of` every time down to T - history, where T is the newest time of any put;
        the newest version of a key never expires. The state shows the parts of the store as two stores: the newest
        versions under the name, and older ones as sessions under "NAME versions". Raises ValueError, and
        ProgramMismatchError as `key_value`.

        >>> prices = hs.open("state").versioned("prices", history="1 day")
        >>> prices.put("tea", 3, ts=0).stored, prices.put("tea", 4, ts=60_000).stored
        (True, True)
        >>> prices.get("tea", as_of=30_000).value
        3
        """
        from ..stores.versioned import VersionedStore

        history_ms = duration_ms(history, "history", zero=True)
        versions = self.session(f"{name} versions", retention=max(1, history_ms))
        return VersionedStore(self.key_value(name), versions, history_ms)

    def suppression(
        self,
        name: str,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        time_limit: Duration | None = None,
        timer: Timer = "latest",
        on_full: OnFull = "emit",
        size_of: Callable[[Any, Any], int] | None = None,
        until_window_closes: Duration | None = None,
    ) -> SuppressionBuffer:
        """Return the suppression buffer of this name (KIP-328), creating it if missing.

        max_records, max_bytes  bounds; the oldest records are emitted first
        time_limit              a record is emitted when its buffer time <= stream_time - time_limit
        timer                   "latest": an update moves its key's buffer time; "first": a key keeps the time of its
                                first update
        on_full                 beyond a bound: "emit" records early, or "raise" BufferFullError
        size_of                 size_of(key, value) -> bytes; by default the packed bytes of both
        until_window_closes     only final results, so long after a window's end (its grace); keys end in (start, end)

        Raises TypeError or ValueError, and ProgramMismatchError as `key_value`.

        >>> results = hs.open("state").suppression("results", time_limit="1 minute")
        >>> results.put("ann", 1, ts=0), results.put("ann", 2, ts=5_000)
        ([], [])
        >>> list(results.advance(65_000))
        [[('ann', 2, 5000)]]
        """
        final = until_window_closes is not None
        if final and time_limit is not None:
            raise ValueError(f"time_limit: found {time_limit!r} with until_window_closes, expected one of them")
        grace_ms: int | None = None
        if until_window_closes is not None:
            grace_ms = duration_ms(until_window_closes, "until_window_closes", zero=True)
        limit_ms = None if time_limit is None else duration_ms(time_limit, "time_limit", zero=True)
        parameters = Suppression(limit_ms, max_records, max_bytes, timer, on_full, final, grace_ms).describe()
        if size_of is not None:
            parameters["size_of"] = "given"
        store = cast("SuppressionBuffer", self._open_store(name, SUPPRESSION.name, parameters))
        store.bind(size_of)
        return store

    def sliding(
        self, name: str, *, size: Duration, aggregator: Aggregator, strategy: str | None = None
    ) -> SlidingStore:
        """Return the store of sliding windows of this name (KIP-450), creating it if missing.

        `size`: a window holds the values with stream_time - size <= ts <= stream_time (0: those at stream time).
        `aggregator`: makes their aggregate; its description is part of the state. `strategy`: see
        `hybridstore.aggregation.choose`; it may change from one start to the next. Raises TypeError or ValueError, and
        ProgramMismatchError as `key_value`.

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
        >>> load.add("web-1", 5, ts=30_000)
        ('web-1', 0, 30000, 5)
        >>> load.add("web-1", 2, ts=95_000)
        ('web-1', 35000, 95000, 2)
        """
        from ..aggregation import choose

        chosen = choose(aggregator, strategy)
        parameters = {"size_ms": duration_ms(size, "size", zero=True), "aggregator": aggregator.describe()}
        store = cast("SlidingStore", self._open_store(name, SLIDING.name, parameters))
        store.bind(chosen)
        return store
