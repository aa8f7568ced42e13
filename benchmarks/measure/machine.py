"""Machine: what the figures were measured on, found out and never typed by hand."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = (
    *("hybridstore", "lmdb", "msgpack", "sortedcontainers", "numpy", "pyarrow", "rocksdict"),
    *("bytewax", "pathway", "duckdb"),
)


def describe(folder: Path) -> dict[str, Any]:
    """Return processor, cores, load, Python, package versions, commit, and the file system of `folder`."""
    return {
        "commit": commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "file_system": _file_system(folder),
        "packages": {name: installed for name in _PACKAGES if (installed := _version(name))},
    }


def commit() -> str:
    """Return the short commit of the checkout that this code is in, with a + when it was changed since; "" outside
    of one.
    """
    root = Path(__file__).resolve().parent.parent.parent
    try:
        head = _git(root, "rev-parse", "--short=10", "HEAD")
        changed = _git(
            root, "status", "--porcelain", "--untracked-files=no", "--", "changelog", "recovery", "hybridstore"
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    answer = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`, where the system tells."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    for mount in mounts:
        _, place, type_name, *_ = mount.split(" ")
        inside = str(folder.resolve()) == place or str(folder.resolve()).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, type_name
    return kind
