"""Read by every Python that Spark's tests start, as this folder is on their PYTHONPATH.

Spark puts an archive of pyspark's source before the installed pyspark: Python compiles the archive at each start, which
takes half a second of processor time, and a query with a watermark starts a Python for each operator.

What Spark starts for itself, and not for tasks, is a Python without a daemon. Where the session has a server of such
workers (tests/tools/worker_server.py), the server runs it instead, and this Python ends with it.
"""

import os
import sys

sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]


def _hand_over(address: str, module: str) -> None:
    """Have the module run by a fork of the server, if there is a server."""
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
        except OSError:
            return
        task = json.dumps([module, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [len(task).to_bytes(4)], [0, 1, 2])
        server.sendall(task)
        server.recv(1)
    os._exit(0)


if "WORKER_SERVER" in os.environ and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark.sql."):
    _hand_over(os.environ.pop("WORKER_SERVER"), sys.orig_argv[2])
