"""Metrics server: a running engine's numbers over HTTP, for Prometheus. The server calls one function, and writes
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RD
from threading import BoundedSemaphore, Thread
from typing import Any, Final

from .numbers import CONTENT_TYPE, openmetrics

_PATHS: Final = ("/", "/metrics")
# A connection that sends or takes nothing for so long is closed; connections beyond so many at once are, too.
IDLE_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 16


class BoundedServer(ThreadingHTTPServer):
    """A thread for each connection, and a bounded number of both. Connections beyond `most` at once are closed."""

    daemon_threads = True
    _closed = False

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], most: int = MOST_CONNECTIONS
    ) -> None:
        self._room = BoundedSemaphore(most)
        self._connections: set[Any] = set()
        # an address of IPv6 has colons
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread, or close the connection."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread."""
        self._connections.add(request)
        try:
            if self._closed:  # accepted while the server was closed
                self.shutdown_request(request)
            else:
                super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(request)
            self._room.release()

    def server_close(self) -> None:
        """Close the server; an answer is sent to its end, idle connections end."""
        super().server_close()
        self._closed = True
        for request in self._connections.copy():
            with suppress(OSError):  # the client was faster
                request.shutdown(SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a client that went away or was idle for too long."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class MetricsServer:
    """Answers `GET /metrics` with the result of `rows`, in threads of its own, until the server is closed.

    `rows` is called from these threads. At most 16 connections are open at once, and an idle one for 10 s; others are
    closed without an answer. Raises OSError for an address that is not free.
    """

    def __init__(self, rows: Callable[[], Iterable[Mapping[str, Any]]], port: int, host: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_SECONDS

            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in _PATHS:
                    self.send_error(404)
                    return
                body = openmetrics(rows()).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing for a scrape."""

        self._server = BoundedServer((host, port), Handler)
        self._thread = Thread(target=self._server.serve_forever, name="hybridstore metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of the server."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
