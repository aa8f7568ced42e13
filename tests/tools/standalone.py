"""A standalone Spark master with workers on loopback, from the pip package: for tests and benchmarks."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def standalone(folder: Path, workers: int, cores: int, *, hosts: int = 1) -> Iterator[str]:
    """Run a master and `workers` workers of `cores` cores each below `folder`. Yields the master's address.

    Worker n says that it is on host n mod `hosts`, each an address of the loopback network: Spark starts a second
    attempt of a slow task on another host only.

    Raises RuntimeError with the last words of a process that ends at once.
    """
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"spark://127.0.0.1:{free.getsockname()[1]}"
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []

    def start(role: str, ready: str, *arguments: str, host: str = "127.0.0.1") -> None:
        bounds = ["--host", host, "--webui-port", "0"]
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        environment = os.environ | {"SPARK_LOCAL_IP": host, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*command, *bounds, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if ready in line:
                # what it says from here on must not fill the pipe
                readers.append(threading.Thread(target=process.stderr.read))
                readers[-1].start()
                return
        raise RuntimeError(f"{role} ended: {''.join(lines)[-3000:]}")

    try:
        start("master.Master", "I have been elected leader", "--port", address.rpartition(":")[2])
        for number in range(workers):
            place = ("-c", str(cores), "-m", "1g", "-d", str(folder / f"worker{number}"))
            host = f"127.0.0.{1 + number % hosts}"
            start("worker.Worker", "Successfully registered with master", *place, address, host=host)
        yield address
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for reader in readers:
            reader.join()
        for process in processes:
            assert process.stderr is not None
            process.stderr.close()
