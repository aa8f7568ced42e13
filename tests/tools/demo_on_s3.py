"""The demonstration (examples/traffic.py) with its state on a local S3 server with latency and faults.

python -m tests.tools.demo_on_s3 [--latency MS] [--faults SHARE] [--seed N] [options of the demonstration]

Prints what the demonstration prints, then the requests by kind and the faults by kind.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.tools.s3_server import S3Server, Weather

ROOT = Path(__file__).resolve().parents[2]


def environment(server: S3Server) -> dict[str, str]:
    """Return the environment in which the server is the object store."""
    return {**os.environ, **{f"AWS_{name.upper()}": value for name, value in server.options.items()}}


def demonstrate(server: S3Server, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration with its state below `demo` in the server's bucket."""
    command = [sys.executable, str(ROOT / "examples" / "traffic.py"), "--state", server.url("demo"), *options]
    return subprocess.run(command, cwd=ROOT, env=environment(server), capture_output=True, text=True, check=False)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="The demonstration over a local S3 server with faults.")
    parser.add_argument("--latency", type=float, default=20.0, metavar="MS")
    parser.add_argument("--faults", type=float, default=0.05, metavar="SHARE")
    parser.add_argument("--seed", type=int, default=1)
    asked, options = parser.parse_known_args()
    with S3Server(latency=asked.latency / 1000) as server:
        server.draw = weather = Weather(asked.seed, asked.faults)
        answer = demonstrate(server, *options)
        print(answer.stdout, answer.stderr, sep="")
        print(f"requests {dict(server.count)}, faults {dict(weather.count)}")
    return answer.returncode


if __name__ == "__main__":
    sys.exit(main())
