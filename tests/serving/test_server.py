"""The server: tokens, hosts, bounds, many threads at once, and the command; over loopback only."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.serving import server as server_module
from hybridstore.serving.server import Server

TOKEN = "0123456789abcdef"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with hs.open(tmp_path / "state") as state:
        state.key_value("a").put_many({key: 0 for key in range(10)})
        state.commit()
        yield state


def ask(server: Server, target: str, method: str = "GET", body: bytes = b"", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    try:
        connection.request(method, target, body or None, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def test_a_token_is_needed_beyond_loopback_and_checked(state: hs.State, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(ValueError, match=r"host: found '0\.0\.0\.0', which others can reach, without a token"):
        hs.serve(path, host="0.0.0.0")
    with pytest.raises(ValueError, match="at least 16 printable"):
        hs.serve(path, token="short")
    for port in (-1, 65_536, "80"):
        with pytest.raises(ValueError, match=f"serve: port: found {port!r}, expected 0"):
            hs.serve(path, port=port)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="refresh_ms: found 0"):
        hs.serve(path, refresh_ms=0)
    with hs.serve(path, token=TOKEN) as server:
        assert ask(server, "/")[0] == 401
        assert ask(server, "/", Authorization=f"Bearer {TOKEN}x")[0] == 401
        assert ask(server, "/", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_names_of_other_hosts_are_refused(state: hs.State, tmp_path: Path) -> None:
    with hs.serve(tmp_path / "state", hosts=["states.test"]) as server:
        for host, status in [
            ("attacker.test", 403),
            ("attacker.test:8700", 403),
            ("[", 403),
            ("localhost:1", 200),
            ("127.0.0.1", 200),
            ("[::1]:8700", 200),
            ("States.test", 200),
        ]:
            assert ask(server, "/", Host=host)[0] == status, host


def raw(server: Server, request: bytes, *, end: bool = False) -> bytes:
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(request)
        if end:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def test_bodies_and_heads_are_bounded(state: hs.State, tmp_path: Path) -> None:
    with hs.serve(tmp_path / "state") as server:
        head = b"POST /stores/a/rows HTTP/1.1\r\nHost: localhost\r\n"
        for more, status in [
            (b"Content-Length: 2000000\r\n\r\n", b"413"),
            (b"Content-Length: 99999999999999999999\r\n\r\n", b"413"),
            (b"Content-Length: -1\r\n\r\n", b"400"),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"411"),
            (b"X: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        ]:
            answer = raw(server, head + more)
            assert answer.split()[1] == status
            assert b'{"error": ' in answer
        assert raw(server, b"nonsense\r\n\r\n").split()[1] == b"400"
        assert raw(server, b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n").split()[1] == b"501"
        assert ask(server, "/", "DELETE")[0] == 405
        assert ask(server, "/", "HEAD") == (200, None)


def test_connections_beyond_the_bound_are_closed(
    state: hs.State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    with hs.serve(tmp_path / "state") as server:
        idle = [socket.create_connection(server.address, timeout=60) for _ in range(3)]
        assert idle[2].recv(1) == b""
        for connection in idle:
            connection.close()


def test_every_answer_is_of_one_version(state: hs.State, tmp_path: Path) -> None:
    store = state.key_value("a")
    with hs.serve(tmp_path / "state", refresh_ms=1) as server, ThreadPoolExecutor(4) as pool:
        answers = []
        for number in range(1, 30):
            for key in range(10):
                store[key] = number
            version = state.commit()
            answers += [pool.submit(ask, server, "/stores/a/rows") for _ in range(4)]
            status, answer = ask(server, f"/stores/a/rows?min_version={version}&wait_ms=10000")
            assert (status, {row["value"] for row in answer["rows"]}) == (200, {number})
        for waiting in answers:
            status, answer = waiting.result(timeout=60)
            assert status == 200
            assert [row["value"] for row in answer["rows"]] == [answer["version"] - 1] * 10
    assert not server._thread.is_alive()


def test_the_command_serves_until_it_is_stopped(state: hs.State, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    words = [sys.executable, "-m", "hybridstore", "serve", str(tmp_path / "state"), "--port", "0"]
    with subprocess.Popen(
        [*words, "--token-file", str(token)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {tmp_path / 'state'} at http://127.0.0.1:"), process.stderr.read()
        port = int(line.split(":")[-1].split()[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/stores/a/rows?key=int:3", headers={"Authorization": f"Bearer {TOKEN}"})
        assert json.loads(connection.getresponse().read())["rows"] == [{"key": 3, "value": 0}]
        connection.close()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["missing/"], 3, "missing"),
        (["state", "--host", "0.0.0.0"], 2, "without a token"),
        (["state", "--port", "99999"], 2, "port: found 99999, expected 0"),
        (["state", "--token-file", "nothing"], 2, "--token-file: nothing"),
    ],
)
def test_the_command_says_what_is_wrong(
    state: hs.State, tmp_path: Path, words: list[str], code: int, sentence: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "hybridstore", "serve", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, sentence in ended.stderr) == (code, True), ended.stderr


def test_an_idle_connection_is_not_answered_after_the_end(state: hs.State, tmp_path: Path) -> None:
    server = hs.serve(tmp_path / "state")
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    connection.request("GET", "/")
    assert json.loads(connection.getresponse().read())["version"] == 1
    idle = connection.sock
    server.close()
    assert idle is not None
    assert idle.recv(1) == b""
    connection.close()


def test_heads_of_requests(state: hs.State, tmp_path: Path) -> None:
    """The usual head is read by the server itself: names in any case, each of some once, and bounds."""
    with hs.serve(tmp_path / "state") as server:
        for head, status in [
            (b"GET / HTTP/1.1\r\nhOsT:localhost\r\nconnection: close\r\n\r\n", b"200"),
            (b"GET / HTTP/1.1\nHost: localhost\nConnection: Close\n\n", b"200"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: 1\r\nX: 2\r\nConnection: close\r\n\r\n", b"200"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: other.example\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: 1\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: 1\rContent-Length: 9\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n", b"400"),
            (b"GET /stores/a\rX: HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
            (b"GET /stores/a\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: 1\r\n" % at for at in range(101)) + b"\r\n", b"431"),
            (b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
            (b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n", b"200"),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: TE, close\r\n\r\n", b"200"),
            (b"GET //evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
        ]:
            assert raw(server, head).split()[1] == status, head


@pytest.mark.parametrize(
    "head", [b"/ HTTP/1.0\r\nConnection: keep-alive", b"http://localhost/ HTTP/1.1", b"\x0b/\x0cHTTP/1.1"]
)
def test_no_second_request_is_hidden_behind_an_unusual_head(state: hs.State, tmp_path: Path, head: bytes) -> None:
    second = b"GET /stores/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    lengths = b"Content-Length: 0\r\nContent-Length: %d" % len(second)
    with hs.serve(tmp_path / "state") as server:
        answer = raw(server, b"GET " + head + b"\r\nHost: localhost\r\n" + lengths + b"\r\n\r\n" + second)
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: local",
        b"GET / HTTP/1.1\r\nHost: localhost",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /stores/a/rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n{",
        b'POST /stores/a/rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n{"keys": ["k"]}',
    ],
)
def test_a_client_that_stops_in_the_middle_is_not_answered(
    state: hs.State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 1)
    with hs.serve(tmp_path / "state") as server:
        assert raw(server, begun) == raw(server, begun, end=True) == b""


class JumpingClock:
    """Each look at the time is later by more than a request, or an answer, may take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += server_module.IDLE_SECONDS + 1
        return self.now


def test_a_request_that_comes_too_slowly_is_not_answered(
    state: hs.State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # longer than what is read at once, so that it comes in several parts
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"x" * 30_000 + b"\r\n\r\n"
    with hs.serve(tmp_path / "state") as server:
        assert raw(server, head).split()[1] == b"200"
        monkeypatch.setattr(server_module, "monotonic", JumpingClock())
        with suppress(ConnectionError):  # the end of the head was not read
            assert raw(server, head) == b""
        with socket.create_connection(server.address, timeout=60) as connection:
            reader = connection.makefile("rb")
            for _ in range(3):  # the time between two requests does not count
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                size = 0
                while (line := reader.readline()) != b"\r\n":
                    assert line
                    size = int(line.split()[1]) if line.lower().startswith(b"content-length") else size
                assert reader.read(size).startswith(b"{")


def test_an_answer_that_is_taken_too_slowly_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        taken = b""

        def send(self, data: memoryview) -> int:
            if len(self.taken) >= 50:
                raise BlockingIOError
            self.taken += bytes(data[:7])
            return len(data[:7])

    slow: Any = Slow()
    server_module._send_all(slow, b"x" * 40)
    assert slow.taken == b"x" * 40
    with pytest.raises(TimeoutError, match="took nothing"):
        server_module._send_all(slow, b"y" * 40)
    slow.taken = b""
    monkeypatch.setattr(server_module, "monotonic", JumpingClock())
    with pytest.raises(TimeoutError, match="too slowly"):
        server_module._send_all(slow, b"x" * 40)
    assert slow.taken == b"x" * 7
    server_module._send_all(slow, b"x" * 7)  # taken at once


def test_timeouts_of_the_program_are_not_those_of_connections(state: hs.State, tmp_path: Path) -> None:
    seen: list[float | None] = []
    with hs.serve(tmp_path / "state") as server:
        handler = server._server.RequestHandlerClass

        class Noting(handler):  # type: ignore[misc,valid-type]
            def setup(self) -> None:
                super().setup()
                seen.append(self.connection.gettimeout())

        server._server.RequestHandlerClass = Noting
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(50.0)
        try:
            assert ask(server, "/")[0] == 200
        finally:
            socket.setdefaulttimeout(before)
    assert seen == [None]


def test_a_client_that_waits_before_it_sends_a_body_is_told_to_go_on(state: hs.State, tmp_path: Path) -> None:
    body = b'{"keys": ["int:1"]}'
    head = b"POST /stores/a/rows HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\n"
    with (
        hs.serve(tmp_path / "state") as server,
        socket.create_connection(server.address, timeout=60) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert answer.readline() == b"HTTP/1.1 100 Continue\r\n"
        connection.sendall(body)
        assert b'"rows": [{"key": 1, "value": 0}]' in answer.read()


def test_a_limit_that_the_process_cannot_keep_is_logged(
    state: hs.State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for limit in (99_999_999, 100_000_000):
        with hs.serve(tmp_path / "state", memory_limit=limit) as server:
            assert ask(server, "/stores/a/rows?key=int:3")[0] == 200
    expected = "serve: memory_limit: found 99999999 bytes, expected 100000000 or more: answers do not change"
    assert [record.getMessage()[: len(expected)] for record in caplog.records] == [expected]
