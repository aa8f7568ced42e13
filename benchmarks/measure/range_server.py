"""An S3 server whose answers cost what a real store's do: a latency, and bytes over one link; nothing else.

    with serving(latency=0.02, bandwidth=100e6) as server:
        storage = CloudStorage(server.url("state"), server.options)

It runs in a process of its own, so that it does not share the interpreter of who is measured, and answers from memory:
a range of a large object costs what one of a small object does (moto copies the whole object for each range: 52 ms at
59 MB). Latencies overlap; bytes of all answers share the link one after the other (`bandwidth` in bytes/s, 0: no
limit). It knows what hybridstore asks for: put with `If-None-Match`, get with ranges, head, list, delete.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import urllib.request
from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
PAGE = 1000
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
Answer = tuple[str, dict[str, str], bytes | memoryview]


class Bucket:
    """Objects, and what was asked for."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str, dict[str, str]]] = {}
        self.names: list[str] = []
        self.latency = self.bandwidth = 0.0
        self.requests = self.sent = 0

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Carry a request out: (status, headers, body)."""
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        name = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        if parts.path == "/-/set":
            asked = json.loads(body)
            self.latency, self.bandwidth = asked["latency"], asked["bandwidth"]
            self.requests = self.sent = 0
            return "200 OK", {}, b""
        if parts.path == "/-/count":
            return "200 OK", {}, json.dumps([self.requests, self.sent]).encode()
        if method == "PUT":
            return self._put(name, headers, body)
        if method == "GET" and "list-type" in query:
            return self._list(query)
        if method == "POST" and "delete" in query:
            keys = [part.partition("</Key>")[0] for part in body.decode().split("<Key>")[1:]]
            for key in keys:
                self._delete(unescape(key))
            lines = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return "200 OK", {}, f"<DeleteResult>{lines}</DeleteResult>".encode()
        if method == "DELETE":
            self._delete(name)
            return "204 No Content", {}, b""
        return self._get(method, name, headers)

    def _put(self, name: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("if-none-match") == "*" and name in self.objects:
            return "412 Precondition Failed", {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if name not in self.objects:
            insort(self.names, name)
        etag = f'"{md5(body, usedforsecurity=False).hexdigest()}"'
        kept = {key: value for key, value in headers.items() if key.startswith("x-amz-meta-")}
        self.objects[name] = body, etag, kept
        return "200 OK", {"ETag": etag}, b""

    def _get(self, method: str, name: str, headers: dict[str, str]) -> Answer:
        if name not in self.objects:
            return "404 Not Found", {}, b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"
        body, etag, kept = self.objects[name]
        kept = {**kept, "ETag": etag, "Last-Modified": DATE, "Accept-Ranges": "bytes"}
        if "range" not in headers:
            return "200 OK", {**kept, "Content-Length": str(len(body))}, b"" if method == "HEAD" else body
        start, _, end = headers["range"].removeprefix("bytes=").partition("-")
        first, last = int(start), min(int(end or len(body)), len(body) - 1)
        if first > last:
            return "416 Range Not Satisfiable", {}, b"<Error><Code>InvalidRange</Code></Error>"
        kept["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return "206 Partial Content", kept, memoryview(body)[first : last + 1]

    def _list(self, query: dict[str, list[str]]) -> Answer:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        at = bisect_right(self.names, max(after, prefix[:-1] if prefix else ""))
        names: list[str] = []
        while at < len(self.names) and len(names) <= PAGE:
            if self.names[at].startswith(prefix):
                names.append(self.names[at])
            elif self.names[at] > prefix:
                break
            at += 1
        more, names = len(names) > PAGE, names[:PAGE]
        lines = [
            f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>"
            f"{escape(self.objects[name][1])}</ETag><Size>{len(self.objects[name][0])}</Size></Contents>"
            for name in names
        ]
        token = f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>" if more else ""
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(names)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(lines)}</ListBucketResult>"
        )
        return "200 OK", {"Content-Type": "application/xml"}, text.encode()

    def _delete(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            self.names.remove(name)


class _Serving:
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._link_free = 0.0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
                headers = {name.lower(): value for name, value in headers.items()}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, given, content = self.bucket.answer(method, target, headers, body)
                if not target.startswith("/-/"):
                    await self._delay(len(content))
                given = {"Content-Length": str(len(content)), **given}
                head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
                writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1"))
                writer.write(content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _delay(self, size: int) -> None:
        bucket = self.bucket
        bucket.requests, bucket.sent = bucket.requests + 1, bucket.sent + size
        loop = asyncio.get_running_loop()
        ready = loop.time() + bucket.latency
        if bucket.bandwidth:
            ready = self._link_free = max(ready, self._link_free) + size / bucket.bandwidth
        if ready > loop.time():
            await asyncio.sleep(ready - loop.time())


def _serve(pipe: Any) -> None:
    async def run() -> None:
        server = await asyncio.start_server(_Serving(Bucket()), "127.0.0.1", 0, limit=1 << 22)
        pipe.send(server.sockets[0].getsockname()[1])
        async with server:
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            os._exit(0)  # connections that nobody closed end here

    asyncio.run(run())


class RangeServer:
    """See the module. `url(path)` and `options` are what CloudStorage takes."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.options = {
            "endpoint": self.endpoint,
            "access_key_id": "test",
            "secret_access_key": "test",
            "region": "us-east-1",
        }

    def url(self, path: str) -> str:
        """Return the location of a path in its bucket."""
        return f"s3://{BUCKET}/{path}"

    def set(self, latency: float = 0.0, bandwidth: float = 0.0) -> None:
        """Answer after `latency` seconds and over `bandwidth` bytes/s from now on, and count from 0 again."""
        body = json.dumps({"latency": latency, "bandwidth": bandwidth}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/-/set", data=body, method="PUT")).close()

    def count(self) -> tuple[int, int]:
        """Return how many requests were answered since `set`, and with how many bytes."""
        with urllib.request.urlopen(f"{self.endpoint}/-/count") as answer:
            requests, sent = json.load(answer)
        return requests, sent


@contextmanager
def serving(latency: float = 0.0, bandwidth: float = 0.0) -> Iterator[RangeServer]:
    """Run a server in another process, and end it."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_serve, args=(other,), daemon=True)
    process.start()
    try:
        server = RangeServer(pipe.recv())
        server.set(latency, bandwidth)
        yield server
    finally:
        pipe.send(None)
        process.join(10)
