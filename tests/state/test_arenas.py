"""What the C library keeps under a limit of memory."""

import os
import subprocess
import sys
from pathlib import Path
from platform import libc_ver

import pytest

# Threads that allocate at the same time, and how many arenas the C library has then.
ARENAS = """
import ctypes, os, sys, threading
import hybridstore as hs

def allocate():
    block = bytearray(5000)
    together.wait()

together = threading.Barrier(4)
libc = ctypes.CDLL(None)
with hs.open(sys.argv[1], memory_limit=int(sys.argv[2]) or None):
    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source, target = os.pipe()
    libc.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fdopen(target, b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(open(source).read().count("<heap "))
"""


# How much anonymous memory the first indexes of checkpoints leave, in kB.
INDEXES = """
import sys
import hybridstore as hs
from recovery.index import encode

def anonymous():
    text = open("/proc/self/status").read()
    return int(text[text.find("RssAnon:") + 8 :].split()[0])

with hs.open(sys.argv[1], memory_limit=int(sys.argv[2]) or None):
    before = anonymous()
    for _ in range(3):
        encode({b"meta": b"x"})
    print(anonymous() - before)
"""
GLIBC = pytest.mark.skipif(
    not sys.platform.startswith("linux") or libc_ver()[0] != "glibc", reason="arenas are glibc's"
)


def answer_of(program: str, folder: Path, limit: int) -> int:
    """Run a program in a process whose C library has its own settings."""
    command = [sys.executable, "-c", program, str(folder), str(limit)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120)
    return int(answer.stdout)


@GLIBC
@pytest.mark.parametrize(("limit", "shared"), [(20_000_000, True), (0, False)])
def test_under_a_limit_threads_share_an_arena(tmp_path: Path, limit: int, shared: bool) -> None:
    assert (answer_of(ARENAS, tmp_path / "state", limit) == 1) == shared


@GLIBC
def test_under_a_limit_the_lists_of_the_index_of_a_checkpoint_are_given_back(tmp_path: Path) -> None:
    # LMDB clears a list of 2 MiB for each, which takes memory where it was used before
    assert answer_of(INDEXES, tmp_path / "state", 20_000_000) < 1000
