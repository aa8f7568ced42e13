"""Metrics server: a running engine's numbers over HTTP, for Prometheus. The server calls one function, and writes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from .numbers import CONTENT_TYPE, openmetrics

_PATHS: Final = ("/", "/metrics")


class MetricsServer:
    """Answers `GET /metrics` with the result of `rows`, in threads of its own, until the server is closed.

    `rows` is called from these threads. Raises OSError for an address that is not free.
    """

    def __init__(self, rows: Callable[[], Iterable[Mapping[str, Any]]], port: int, host: str) -> None:
        class Handler(BaseHTTPRequestHandler):
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

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
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
