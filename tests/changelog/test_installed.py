"""Libraries that only some jobs need: what a job says that needs a missing one."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.installed import installed
from hybridstore.cli import run

COUNTS = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())


@pytest.mark.parametrize(
    ("library", "use", "words"),
    [
        (
            "pyarrow",
            lambda state: hs.inspect(state)["k"].arrow(),
            "records as Arrow batches: found no pyarrow, expected it to be installed (pip install pyarrow)",
        ),
        (
            "pyarrow",
            lambda state: list(COUNTS.run([{"user": "ann", "ts": 1}]).tables()),
            "tables(): found no pyarrow, expected it to be installed (pip install pyarrow)",
        ),
        (
            "pyarrow",
            lambda state: run(["inspect", "export", str(state), "k", "--to", "k.parquet"]),
            "k.parquet: found no pyarrow, expected it to be installed (pip install pyarrow, or export to .jsonl)",
        ),
        (
            "pyspark",
            lambda state: run(["import", "--from-spark", str(state)]),
            "import: found no pyspark, expected it to be installed (pip install 'hybridstore[spark]')",
        ),
    ],
)
def test_a_missing_library_gets_a_sentence_that_says_how_to_install_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    library: str,
    use: Callable[[Path], Any],
    words: str,
) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("k").put("a", 1)
        state.commit()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    try:
        message = f"exit code {use(tmp_path / 'state')}: {capsys.readouterr().err}"
    except hs.HybridStoreError as error:
        message = f"exit code 3: {error}"
    assert message.startswith("exit code 3: ")
    assert words in message


def test_a_library_that_lacks_another_one_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        installed("here", "needs_more")
