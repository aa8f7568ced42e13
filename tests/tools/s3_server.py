"""A local S3 server in a thread of this process, with latency and faults; other processes reach it over loopback.

    with S3Server() as server:
        storage = CloudStorage("s3://bucket/state", server.options)

It has one bucket, in memory, and answers what the client of `changelog.cloud_storage` asks: puts with If-None-Match,
copies, gets with ranges, heads, lists (version 2) and deletions; 501 is its answer to all else.
`tests.tools.moto_server` answers by moto instead, which knows more of S3 and takes ten times as long; the tests of
`changelog` compare the two.

`latency` delays every answer (seconds). `faults` are taken one a request: "500", "503" and "reset" (the connection ends
before the request is carried out), "lost" (it is carried out, and the connection ends without an answer), "409" (S3's
answer to a create while a deletion is at work) or None. `count` counts requests by method and kind.
"""

from __future__ import annotations

import random
import re
import socket
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from hashlib import md5
from http import HTTPStatus
from os import PathLike
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from changelog.bucket import Bucket

BUCKET = "bucket"
PAGE = 1000  # names of a list, at most
_FAULTS = {"500": (500, "InternalError"), "503": (503, "SlowDown"), "409": (409, "ConditionalRequestConflict")}
_TIME, _LISTED = "Thu, 01 Jan 2026 00:00:00 GMT", "2026-01-01T00:00:00.000Z"
_PARAMETERS = {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys", "delete", "x-id"}


class Request(NamedTuple):
    """A request: `target` is its path and query as they were sent, names of headers are in small letters."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str] = {}  # noqa: RUF012 (nobody changes it)
    body: bytes = b""


def refused(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Answer(status, {"Content-Type": "application/xml"}, text.encode())


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
        self._objects: dict[str, tuple[bytes, dict[str, str]]] = {}

    def __enter__(self) -> Self:
        answer = self._answer

        class Connection(StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                while answer(self):
                    """Connections are kept, as those of a real store are."""

        class Listener(ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                # a process of a test that was killed hangs up whenever it likes
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(*_)  # type: ignore[arg-type]

        self._server = Listener(("127.0.0.1", 0), Connection)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._objects = {}

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

    def _answer(self, connection: StreamRequestHandler) -> bool:
        """Answer one request of a connection; return whether another one may come."""
        line = connection.rfile.readline().decode("latin-1").split()
        if not line:
            return False
        method, target = line[:2]
        headers = {}
        while text := connection.rfile.readline().decode("latin-1").strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        kind = "list" if method == "GET" and "list-type" in target else method.lower()
        with self._guard:
            self.count[kind] += 1
            fault = self.faults.popleft() if self.faults else self.draw(method, unquote(target.partition("?")[0]))
        if self.latency:
            time.sleep(self.latency)
        if fault == "reset":
            return _hang_up(connection)
        request = Request(method, target, headers, connection.rfile.read(int(headers.get("content-length", 0))))
        if fault in _FAULTS:
            answer = refused(*_FAULTS[fault])
        else:
            answer = self.carry_out(request)
        if fault == "lost":
            return _hang_up(connection)
        with self._guard:
            self.bytes_sent += 0 if method == "HEAD" else len(answer.body)
        lines = {"Content-Length": str(len(answer.body))} | answer.headers
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        status = HTTPStatus(answer.status)
        connection.wfile.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode("latin-1")
            + (b"" if method == "HEAD" else answer.body)
        )
        return True

    def carry_out(self, request: Request) -> Answer:
        """Return the answer to a request without a fault."""
        bucket, _, name = request.path.lstrip("/").partition("/")
        if bucket != BUCKET:
            return refused(404, "NoSuchBucket")
        if request.query.keys() - _PARAMETERS:
            return refused(501, "NotImplemented")
        if request.method == "PUT":
            source = request.headers.get("x-amz-copy-source")
            return self._put(name, request) if source is None else self._copy(name, unquote(source))
        if request.method == "DELETE":
            self._objects.pop(name, None)
            return Answer(204)
        if request.method == "POST" and "delete" in request.query:
            names = [key.text or "" for key in ElementTree.fromstring(request.body).iter() if key.tag.endswith("Key")]
            for each in names:
                self._objects.pop(each, None)
            deleted = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in names)
            return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
        if "list-type" in request.query:
            return self._list(request.query)
        if request.method not in ("GET", "HEAD"):
            return refused(501, "NotImplemented")
        return self._get(name, request.headers.get("range"))

    def _put(self, name: str, request: Request) -> Answer:
        meta = {key: value for key, value in request.headers.items() if key.startswith("x-amz-meta-")}
        meta["ETag"] = f'"{md5(request.body, usedforsecurity=False).hexdigest()}"'
        with self._writes:
            if name in self._objects and request.headers.get("if-none-match") == "*":
                return refused(412, "PreconditionFailed")
            self._objects[name] = request.body, meta
        return Answer(200, {"ETag": meta["ETag"]})

    def _copy(self, name: str, source: str) -> Answer:
        bucket, _, origin = source.lstrip("/").partition("/")
        with self._writes:
            if bucket != BUCKET or origin not in self._objects:
                return refused(404, "NoSuchKey")
            self._objects[name] = self._objects[origin]
            tag = escape(self._objects[name][1]["ETag"])
        return _xml(f"<CopyObjectResult><LastModified>{_LISTED}</LastModified><ETag>{tag}</ETag></CopyObjectResult>")

    def _get(self, name: str, span: str | None) -> Answer:
        body, meta = self._objects.get(name, (None, {}))
        if body is None:
            return refused(404, "NoSuchKey")
        headers = {"Last-Modified": _TIME, "Accept-Ranges": "bytes"} | meta
        if span is None:
            return Answer(200, headers, body)
        first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", span).groups()  # type: ignore[union-attr]
        start = int(first) if first else max(0, len(body) - int(last))
        end = min(int(last) + 1, len(body)) if first and last else len(body)
        if start >= len(body):
            return refused(416, "InvalidRange")
        return Answer(206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}, body[start:end])

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        with self._writes:
            names = sorted(self._objects)
        parts: dict[str, str] = {}  # by what the next page begins after
        for name in names[bisect_right(names, after) :]:
            if not name.startswith(prefix):
                continue
            folder = name[: name.find(delimiter, len(prefix)) + 1] if delimiter else ""
            if folder and after.startswith(folder):
                continue
            if len(parts) == PAGE and (folder or name) not in parts:
                last = next(reversed(parts))
                more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(last)}</NextContinuationToken>"
                break
            parts[folder or name] = (
                f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" if folder else self._entry(name)
            )
        else:
            more = "<IsTruncated>false</IsTruncated>"
        return _xml(f"<ListBucketResult>{more}{''.join(parts.values())}</ListBucketResult>")

    def _entry(self, name: str) -> str:
        body, meta = self._objects.get(name, (b"", {"ETag": ""}))
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{_LISTED}</LastModified>"
            f"<ETag>{escape(meta['ETag'])}</ETag><Size>{len(body)}</Size></Contents>"
        )


def _xml(text: str) -> Answer:
    return Answer(200, {"Content-Type": "application/xml"}, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())


def _hang_up(connection: StreamRequestHandler) -> bool:
    connection.request.shutdown(socket.SHUT_RDWR)
    return False


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
