"""The arenas of the C library under a limit of memory."""

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


@pytest.mark.skipif(not sys.platform.startswith("linux") or libc_ver()[0] != "glibc", reason="arenas are glibc's")
@pytest.mark.parametrize(("limit", "shared"), [(20_000_000, True), (0, False)])
def test_under_a_limit_threads_share_an_arena(tmp_path: Path, limit: int, shared: bool) -> None:
    program = [sys.executable, "-c", ARENAS, str(tmp_path / "state"), str(limit)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    answer = subprocess.run(program, env=environment, check=True, capture_output=True, text=True, timeout=120)
    assert (int(answer.stdout) == 1) == shared
