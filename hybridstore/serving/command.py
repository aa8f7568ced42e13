"""The command `serve`: a state over HTTP until the command is stopped."""

from __future__ import annotations

import os
import signal
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from ..inspection.options import FINE, UsageError, at_least, last_options
from ..reading.texts import say
from .server import serve

TOKEN: Final = "HYBRIDSTORE_TOKEN"


def arguments(parser: ArgumentParser) -> None:
    where = "A state directory, the checkpointLocation of a Spark query, or the URL of one."
    parser.add_argument("location", metavar="LOCATION", help=where)
    parser.add_argument("--operator", metavar="NAME", help="The operator of a query (default: the only one).")
    parser.add_argument("--port", metavar="PORT", type=at_least(0), default=8700, help="Port (default: 8700; 0: any).")
    text = "Address to listen on (default: 127.0.0.1). Another than loopback needs a token."
    parser.add_argument("--host", metavar="HOST", default="127.0.0.1", help=text)
    text = f"File with the token that clients send (default: ${TOKEN}, if set)."
    parser.add_argument("--token-file", metavar="FILE", type=Path, help=text)
    text = "A name by which clients call this server, beside localhost and addresses; may be repeated."
    parser.add_argument("--host-name", metavar="NAME", action="append", default=[], help=text)
    text = "Time between two looks for newer versions (default: 50 ms; 1,000 ms on an object store)."
    parser.add_argument("--refresh-ms", metavar="MS", type=at_least(1), help=text)
    text = "Bytes of memory for the server, about; 100 MB or more (default: all records are loaded)."
    parser.add_argument("--memory-limit", metavar="BYTES", type=at_least(1), help=text)
    how = parser.add_argument_group("how")
    last_options(how)


def run(given: Namespace) -> int:
    """Serve the newest committed version of a state over HTTP, read-only, until the command is stopped.

    Pages: / (version and stores), /stores/NAME, /stores/NAME/rows?key=, or with key_from=, key_to=, prefix=, from=,
    to=, limit=, min_version=, format=json or arrow. The job may run, and does not notice.

    Exit codes: 0 stopped, 2 wrong usage, 3 cannot read.
    """
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        server = serve(
            given.location,
            operator=given.operator,
            host=given.host,
            port=given.port,
            token=_token(given.token_file),
            hosts=given.host_name,
            refresh_ms=given.refresh_ms,
            memory_limit=given.memory_limit,
        )
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from error
    with server:
        print(f"serving {given.location} at {server.url} (Ctrl-C stops)", flush=True)
        ended.wait()
    say("stopped")
    return FINE


def _token(file: Path | None) -> str | None:
    """Return the token; never from the command line, which other users of the machine can see."""
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file: {file}: {error}") from error
