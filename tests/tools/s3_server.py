"""A local S3 server (moto) in a thread of this process, with latency and faults; other processes reach it over
loopback.

    with S3Server() as server:
        storage = CloudStorage("s3://bucket/state", server.options)

`latency` delays every answer (seconds). `faults` are taken one a request: "500", "503" and "reset" (the connection ends
before the request is carried out), "lost" (it is carried out, and the connection ends without an answer), "409" (S3's
answer to a create while a deletion is at work) or None. `count` counts requests by method and kind.
"""

from __future__ import annotations

import random
import socket
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from os import PathLike
from typing import Any

from changelog.bucket import Bucket

BUCKET = "bucket"
_ANSWERS = {
    "500": ("500 Internal Server Error", "InternalError"),
    "503": ("503 Slow Down", "SlowDown"),
    "409": ("409 Conflict", "ConditionalRequestConflict"),
}


class S3Server:
    """See the module. `url(path)` and `options` are what CloudStorage takes."""

    def __init__(self, latency: float = 0.0) -> None:
        self.latency = latency
        self.faults: deque[str | None] = deque()
        # Asked for each request: a fault, or None. For faults that are drawn.
        self.draw: Callable[[str, str], str | None] = lambda method, path: None
        self.count: Counter[str] = Counter()
        self.bytes_sent = 0
        self._guard = threading.Lock()
        self._writes = threading.Lock()

    def __enter__(self) -> S3Server:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"  # connections are kept, as those of a real store are

            def log(self, *_: object) -> None:
                """Say nothing."""

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")).close()
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        # The last request is the test's own: no fault may meet it.
        self.faults.clear()
        self.draw = lambda method, path: None
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")).close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "access_key_id": "test",
            "secret_access_key": "SECRET-OF-THE-TEST",
            "region": "us-east-1",
        }

    def url(self, path: str = "") -> str:
        return f"s3://{BUCKET}/{path}".rstrip("/")

    def bucket(self, path: str = "", cache: str | PathLike[str] | None = None) -> Bucket:
        """Return a place of this server as a user names it."""
        return Bucket(self.url(path), cache=cache, **self.options)

    def reset(self) -> None:
        """Forget what was counted."""
        with self._guard:
            self.count.clear()
            self.bytes_sent = 0

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        kind = "list" if method == "GET" and "list-type" in query else method.lower()
        with self._guard:
            self.count[kind] += 1
            fault = self.faults.popleft() if self.faults else self.draw(method, path)
        if self.latency:
            time.sleep(self.latency)
        if fault == "reset":
            return self._hang_up(environ)
        if fault in _ANSWERS:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(length)
            status, code = _ANSWERS[fault]
            body = f"<Error><Code>{code}</Code><Message>a fault of the test</Message></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        # moto asks whether an object is there and puts it in two steps; on S3 a conditional put is one
        with nullcontext() if kind in ("get", "list", "head") else self._writes:
            parts = list(self._moto(environ, start if fault is None else lambda *_: lambda _: None))
        if fault == "lost":
            return self._hang_up(environ)
        with self._guard:
            self.bytes_sent += sum(map(len, parts))
        return parts

    @staticmethod
    def _hang_up(environ: dict[str, Any]) -> Iterable[bytes]:
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionError("a fault of the test")


class Weather:
    """Faults of a server, drawn for each request; how many of each there were."""

    def __init__(self, seed: int, share: float) -> None:
        self.random = random.Random(seed)
        self.share = share
        self.count: Counter[str] = Counter()

    def __call__(self, method: str, path: str) -> str | None:
        if self.random.random() >= self.share:
            return None
        fault = self.random.choice(("lost", "500", "503", "reset"))
        self.count[fault] += 1
        return fault
