"""Server: HTTP in front of `answers`: sockets, tokens, names of hosts, and their bounds."""

from __future__ import annotations

import hmac
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedReader, RawIOBase
from ipaddress import ip_address
from socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, socket
from struct import pack
from threading import Thread
from time import monotonic, time
from typing import Any, Final
from urllib.parse import urlsplit

from changelog.storage import is_url

from ..reading.follow import follow
from ..reading.places import Place, resolve
from ..state.memory_budget import allocate_sparingly
from ..state.metrics_server import BoundedServer
from .answers import Answer, Answers, refusal
from .shared import Shared

# A connection that sends or takes nothing for so long is closed, and so is one that takes longer to send a request, or
# to take an answer; connections beyond so many at once are, too.
IDLE_SECONDS: Final = 60.0
MOST_CONNECTIONS: Final = 128
MOST_BODY: Final = 2**20
# The head of a request is at most so long: bytes, and headers. These headers may come once.
_MOST_HEAD: Final = 2**16
_MOST_HEADERS: Final = 100
# So many bytes of a request are read at once: after each of these reads the server looks how long it took to come.
_READ_BYTES: Final = 8192
_ONCE: Final = frozenset({"host", "content-length", "transfer-encoding", "authorization", "connection"})
_HTTP: Final = "HTTP/1.1"
# How often a served state looks for newer versions (ms): a look at a disk is one small read, at a bucket a request.
REFRESH_MS: Final = 50
FAR_REFRESH_MS: Final = 1_000


class Server:
    """A served state; made by `hybridstore.serve`. A context manager, which closes the server.

    Answers come from threads of the server's own. At most 128 connections are open at once, an idle one for 60 s; a
    request may take 60 s to come, and an answer 60 s to be taken.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> import json
    >>> from urllib.request import urlopen
    >>> with hs.serve("state") as server:
    ...     json.load(urlopen(f"{server.url}/stores/users/rows?key=ann"))["rows"]
    [{'key': 'ann', 'value': 1}]
    """

    def __init__(
        self, shared: Shared, answers: Answers, address: tuple[str, int], token: str | None, hosts: Iterable[str]
    ) -> None:
        self._shared = shared
        allowed = frozenset({"localhost", address[0].lower(), *(host.lower() for host in hosts)})
        secret = None if token is None else f"Bearer {token}".encode()

        class StateHandler(_Handler):
            def _answer(self, body: bytes) -> Answer:
                if not _allowed(self.headers.get("host", ""), allowed):
                    return refusal(403, "Host: found another name than this server's (hosts= names more)")
                if secret is not None and not hmac.compare_digest(
                    _bearer(self.headers.get("authorization", "")), secret
                ):
                    return refusal(401, "Authorization: expected `Bearer TOKEN` with the token of this server")
                method = "GET" if self.command == "HEAD" else self.command
                return answers.answer(method, self.path, body, self.headers.get("accept", ""))

        self._server = BoundedServer(address, StateHandler, MOST_CONNECTIONS)
        self._thread = Thread(target=self._server.serve_forever, name="hybridstore serve http", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of the server.

        >>> with hs.open("state") as state:
        ...     version = state.commit()
        >>> with hs.serve("state") as server:
        ...     server.address[0]
        '127.0.0.1'
        """
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """The URL of the server, without a slash at the end.

        >>> with hs.open("state") as state:
        ...     version = state.commit()
        >>> with hs.serve("state") as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
        """
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Stop answering, and close the state. A second call does nothing.

        >>> with hs.open("state") as state:
        ...     version = state.commit()
        >>> hs.serve("state").close()
        """
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._shared.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.url}>"


class _Incoming(RawIOBase):
    """What a client sends. Raises TimeoutError when it sends nothing, or a part of a request, for too long."""

    def __init__(self, connection: socket) -> None:
        self._receive = connection.recv_into
        # when the first bytes of the present request came; None between two requests
        self.begun: float | None = None

    def readable(self) -> bool:
        """Bytes can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come, at least one byte; 0 at the end."""
        try:
            size = self._receive(buffer)
        except BlockingIOError:
            raise TimeoutError("the client sent nothing") from None
        if self.begun is None:
            self.begun = monotonic()
        elif monotonic() - self.begun > IDLE_SECONDS:
            raise TimeoutError("the client sent a request too slowly")
        return size


def _send_all(connection: socket, data: bytes) -> None:
    """Send data. Raises TimeoutError when the client takes them for too long."""
    ended = monotonic() + IDLE_SECONDS
    try:
        size = connection.send(data)
        if size == len(data):
            return
        rest = memoryview(data)[size:]
        while len(rest):
            if monotonic() > ended:
                raise TimeoutError("the client took an answer too slowly")
            rest = rest[connection.send(rest) :]
    except BlockingIOError:
        raise TimeoutError("the client took nothing of an answer") from None


class _Handler(BaseHTTPRequestHandler, ABC):
    """A connection: requests one after the other, each answered in one piece."""

    protocol_version = _HTTP
    raw_requestline: bytes
    server_version = "hybridstore"
    sys_version = ""
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        """The system watches the time of idle connections: one call for a request, and one for its answer, where Python
        would make two of each, and let go of its lock at every call.
        """
        super().setup()
        self.connection.settimeout(None)  # whatever `socket.setdefaulttimeout` says
        seconds = pack("ll", int(IDLE_SECONDS), 0)
        for option in (SO_RCVTIMEO, SO_SNDTIMEO):
            self.connection.setsockopt(SOL_SOCKET, option, seconds)
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = BufferedReader(self._incoming, _READ_BYTES)

    @abstractmethod
    def _answer(self, body: bytes) -> Answer:
        """Return the answer to the request in hand, whose body was read."""

    def _any(self) -> None:
        body, refused = self._body()
        self._incoming.begun = None
        if refused is None:
            self._send(self._answer(body))
        else:
            self.close_connection = True  # what follows is the rest of a body that was not read
            self._send(refused)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _any

    def _body(self) -> tuple[bytes, Answer | None]:
        if "transfer-encoding" in self.headers:
            return b"", refusal(411, "Transfer-Encoding: expected a body with Content-Length")
        text = self.headers.get("content-length")
        if text is None:
            return b"", None
        if not (text.isascii() and text.isdigit()):
            return b"", refusal(400, f"Content-Length: found {text[:50]!r}, expected a number of bytes")
        if len(text) > 12 or int(text) > MOST_BODY:
            return b"", refusal(413, f"body: found {text[:50]} bytes, expected at most {MOST_BODY}")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise TimeoutError("the client sent a part of a body")
        return body, None

    def parse_request(self) -> bool:
        """Read the head of a request. A usual one is read here, in a quarter of the time; `http.server` reads others,
        and refuses what is wrong, but not every head of which a proxy might think otherwise: such a request is the last
        of its connection.
        """
        first = self.raw_requestline
        if not first.endswith(b"\n"):  # the client has ended in the middle
            return False
        if _is_ambiguous(first):
            self.command = ""
            self.send_error(HTTPStatus.BAD_REQUEST, "request: expected a line like `GET /path HTTP/1.1`")
            return False
        words = first.rstrip(b"\r\n").split(b" ")
        if len(words) != 3 or words[2] != b"HTTP/1.1" or words[1][:1] != b"/" or words[1][:2] == b"//":
            usable = super().parse_request()
            self.close_connection = True
            return usable
        self.command, self.path, self.request_version = words[0].decode("latin-1"), words[1].decode("latin-1"), _HTTP
        # by their names in small letters: case does not count
        headers: dict[str, str] = {}
        size = 0
        while (line := self.rfile.readline(_MOST_HEAD + 1)) not in (b"\r\n", b"\n"):
            if not line:  # the client has ended in the middle
                return False
            size += len(line)
            name, colon, value = line.partition(b":")
            if size > _MOST_HEAD or len(headers) >= _MOST_HEADERS:
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return False
            key = name.decode("latin-1").lower()
            if (
                not colon
                or not name
                or name != name.strip()
                or (key in headers and key in _ONCE)
                or _is_ambiguous(line)
            ):
                self.send_error(HTTPStatus.BAD_REQUEST, "header: expected `Name: value`, each name once")
                return False
            headers.setdefault(key, value.strip().decode("latin-1"))
        self.headers = headers  # type: ignore[assignment]  # what is asked of it, it has
        options = headers.get("connection")
        self.close_connection = options is not None and "close" in map(str.strip, options.lower().split(","))
        return "expect" not in headers or headers["expect"].lower() != "100-continue" or bool(self.handle_expect_100())

    def handle_expect_100(self) -> bool:
        """Say that the body may be sent, at once: the client waits for it."""
        usable = super().handle_expect_100()
        self.wfile.flush()
        return usable

    def _send(self, answer: Answer) -> None:
        status, kind, body = answer
        head = _head(status, kind, self.close_connection, int(time())) + b"%d\r\n\r\n" % len(body)
        _send_all(self.connection, head if self.command == "HEAD" else head + body)  # in one packet

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that HTTP itself refuses with JSON, too."""
        self.close_connection = True
        self.request_version = self.protocol_version  # not known of a request that cannot be read
        self._send(refusal(code, message or HTTPStatus(code).phrase))

    def version_string(self) -> str:
        """Name the product, without versions."""
        return self.server_version

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing for a request."""


def _is_ambiguous(line: bytes) -> bool:
    """Whether others may see another end of a line of a head: at a carriage return in it, or at a null."""
    return line.count(b"\r") > line.endswith(b"\r\n") or b"\0" in line


@lru_cache(maxsize=16)
def _head(status: int, content_type: str, close: bool, seconds: int) -> bytes:
    """Return the head of an answer at a time (seconds since 1970), up to the length of the body."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Server: {_Handler.server_version}",
        f"Date: {formatdate(seconds, usegmt=True)}",
        f"Content-Type: {content_type}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    ]
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, POST")
    if status == HTTPStatus.UNAUTHORIZED:
        lines.append("WWW-Authenticate: Bearer")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 1")
    if close:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "Content-Length: ")).encode("latin-1")


def _bearer(given: str) -> bytes:
    return given.encode("latin-1", "replace")


def _allowed(header: str, names: frozenset[str]) -> bool:
    """Whether a request may name this host: an address, or a name that is ours. Another name is that of a page in a
    browser, whose owner lets the name point to this server.
    """
    if header in names:
        return True
    try:
        host = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    return host in names or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def serve(
    location: str | os.PathLike[str],
    *,
    operator: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    hosts: Iterable[str] = (),
    refresh_ms: int | None = None,
    memory_limit: int | None = None,
) -> Server:
    """Serve the newest committed version of a state over HTTP, read-only, beside its running job or without one.

    location         a state directory, the checkpoint location of a Spark query, or the URL of one
    operator         the operator of a query; None: the only one
    host, port       where to listen; port 0: a free one. Another host than loopback needs a token
    token            clients send it as `Authorization: Bearer TOKEN`; at least 16 characters
    hosts            names, beside addresses and `localhost`, by which clients may call this server
    refresh_ms       time between two looks for newer versions; None: 50 ms on a disk, 1,000 ms on an object store
    memory_limit     bytes of memory for the process, about, 100 MB or more: when records take more than half of it, all
                     are forgotten, and read again when they are asked for. A smaller limit cannot be kept, and is
                     logged. None: all records are loaded, between answers

    Each answer is of one committed version, which it names, with the time since that version was known to be the
    newest (ms). Pages and parameters: docs/serving.md. Raises ValueError for a host, token or time that is not
    allowed, OSError for an address that is not free, and as `inspect` when the location cannot be read.

    O(pages + changelog behind the checkpoint) to begin; an answer costs what the read costs.

    >>> with hs.open("state") as state:
    ...     state.window("clicks", retention="1 hour").put("ann", 3, ts=500)
    ...     state.commit()
    1
    >>> import json
    >>> from urllib.request import urlopen
    >>> with hs.serve("state") as server:
    ...     answer = json.load(urlopen(f"{server.url}/stores/clicks/rows?key=ann&from=0&to=999"))
    >>> answer["version"], answer["rows"]
    (1, [{'key': 'ann', 'ts': 500, 'value': 3}])
    """
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError("serve: token: expected at least 16 printable ASCII characters without spaces")
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"serve: host: found {host!r}, which others can reach, without a token, expected a token (or 127.0.0.1)"
        )
    if type(port) is not int or not 0 <= port <= 65_535:
        raise ValueError(f"serve: port: found {port!r}, expected 0 (a free one) to 65535")
    if refresh_ms is None:
        refresh_ms = FAR_REFRESH_MS if is_url(str(location)) else REFRESH_MS
    if type(refresh_ms) is not int or refresh_ms < 1:
        raise ValueError(f"serve: refresh_ms: found {refresh_ms!r}, expected a whole number from 1")
    if memory_limit is not None and (type(memory_limit) is not int or memory_limit < 1):
        raise ValueError(f"serve: memory_limit: found {memory_limit!r}, expected a number of bytes, or None")

    if memory_limit is not None:
        allocate_sparingly()

    def places() -> list[Place]:
        return resolve(location)

    shared = Shared(follow(places(), operator, places), refresh_ms, memory_limit)
    try:
        return Server(shared, Answers(shared, str(location)), (host, port), token, hosts)
    except BaseException:
        shared.close()
        raise


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)
