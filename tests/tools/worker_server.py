"""A server that runs, by forks of itself, the Pythons that Spark starts without a daemon: python -m
tests.tools.worker_server ADDRESS.

Such a Python reads the offsets of a source, once a query, or runs the function of `foreachBatch` over Spark Connect. It
imports pyarrow, pyspark and hybridstore, which takes as much processor time as the query; the server imports them once.
The Python that Spark starts hands over what it was started with (tests/tools/python_of_spark), and waits.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from select import select
from traceback import print_exc

ROOT = Path(__file__).resolve().parents[2]
# what a source of ours imports as it is read from its bytes
OF_SOURCES = "hybridstore.spark.ticks"


@contextmanager
def worker_server(folder: Path) -> Iterator[str]:
    """Run a server, and give its address, which is WORKER_SERVER in the environment of a Java that is to use it."""
    address = str(folder / "workers")
    # its input ends with the block, or with this process
    with subprocess.Popen([sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, cwd=ROOT):
        yield address


def serve(address: str) -> None:
    """Run workers until the input ends."""
    import_module(OF_SOURCES)
    # nobody asks how a fork has ended
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        while sys.stdin not in select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with connection:
                size, files, _, _ = socket.recv_fds(connection, 4, 3)
                with connection.makefile("rb") as stream:
                    module, folder, environment = json.loads(stream.read(int.from_bytes(size)))
                import_module(module)
                if os.fork() == 0:
                    listening.close()
                    run(module, folder, environment, files)
            for file in files:
                os.close(file)


def run(module: str, folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Run a module in this process, which is a fork, as Spark has started it."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module]
        del sys.modules[module]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:
        print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
