"""Named stores: the ways to ask a state for its stores, by kind. What is said here is kept with the state and compared later.

They are the same wherever stores commit together: a state directory, or a shard of a Spark operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

from .clock import Duration, duration_ms
from .stores.key_value import KeyValueStore
from .stores.session import SessionStore
from .stores.window import WindowStore


class NamedStores(ABC):
    """Hands out stores by name. A name belongs to one kind and its parameters from the first call on."""

    @abstractmethod
    def _open_store(self, name: str, kind: str, parameters: dict[str, Any]) -> Any:
        """Return the store of this name, creating it if there is none.

        Raises CheckpointMismatchError when it exists with another kind or other parameters, naming both.
        """

    def key_value(self, name: str, *, ttl: Duration | None = None) -> KeyValueStore:
        """Return the key-value store of this name, creating it if there is none.

        `ttl`: event-time life of a row; a put then needs `ts` and the row lives while ts > stream_time - ttl. Raises
        CheckpointMismatchError when the store exists with another kind or other parameters.
        """
        parameters = {"ttl_ms": None if ttl is None else duration_ms(ttl, "ttl")}
        return cast(KeyValueStore, self._open_store(name, KeyValueStore.kind, parameters))

    def window(
        self,
        name: str,
        *,
        retention: Duration,
        window_size: Duration | None = None,
        grace: Duration | None = None,
        retain_duplicates: bool = False,
    ) -> WindowStore:
        """Return the window store of this name (KIP-428), creating it if there is none.

        `retention`: a row is readable while ts > stream_time - retention. `grace` (default: retention): a write is accepted
        while ts > stream_time - grace. `window_size`: the length of a window, at most the retention. `retain_duplicates`:
        keep all rows of a key and time. Raises ValueError, and CheckpointMismatchError as `key_value`.
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
        return cast(WindowStore, self._open_store(name, WindowStore.kind, parameters))

    def session(self, name: str, *, retention: Duration) -> SessionStore:
        """Return the session store of this name (KIP-445), creating it if there is none.

        `retention`: a session is readable while its end > stream_time - retention. Raises ValueError, and
        CheckpointMismatchError as `key_value`.
        """
        parameters = {"retention_ms": duration_ms(retention, "retention")}
        return cast(SessionStore, self._open_store(name, SessionStore.kind, parameters))
