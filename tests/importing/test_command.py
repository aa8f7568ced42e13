"""The command `import`: wrong usage is said before Spark starts."""

from __future__ import annotations

import pytest

from hybridstore import cli


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Missing argument --from-spark"),
        (["--from-spark", "/old", "first"], "OPERATOR: found 'first', expected the number of an operator"),
        (["--from-spark", "/old", "--job", "jobs"], "--job: found 'jobs', expected MODULE:NAME"),
        (["--from-spark", "/old", "--job", "no_such_module:applied"], "'no_such_module:applied' cannot be imported"),
    ],
)
def test_wrong_usage(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["import", *words]) == 2
    assert sentence in capsys.readouterr().err
