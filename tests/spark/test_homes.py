"""State is exact, wherever shards are kept, when executors come and go, when tasks are begun twice, and when many
workers share many shards.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from recovery.layout import LOG, LogName, parse_log_name
from recovery.rule import NOTE
from tests.tools.script import run_script
from tests.tools.spark_homes import CASES, GROWING_BATCHES, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.stress]


def attempts_of(shard: StateStoreId) -> list[LogName]:
    """The objects of a shard that are no notes, also those that do not count."""
    names = (parse_log_name(f"{LOG}/{entry.name}") for entry in (shard.directory / LOG).iterdir())
    return [name for name in names if name is not None and name.attempt != NOTE]


@pytest.mark.parametrize("placement", ["worker", "holder", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_state_is_exact_wherever_tasks_run(case: str, placement: str, tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("a Java of its own takes long to start, a cluster longer: make stress")
    assert run_script("tests.tools.spark_homes", str(tmp_path), placement, case) == 0
    batches = CASES[case].batches
    state: dict[str, list[int]] = {}
    kinds: Counter[str] = Counter()
    executors: list[list[int]] = []
    for batch in range(batches):
        report = json.loads((tmp_path / "out" / str(batch)).read_text())
        for k, v in rows_of(batch):
            n, total = state.get(k, [0, 0])
            state[k] = [n + 1, total + v]
        assert report["rows"] == sorted([k, *state[k]] for k, _ in rows_of(batch)), f"batch {batch}"
        worked = [shard for shard in report["metrics"] if shard["load"] != "none"]
        kinds.update(f"{shard['load']} in a {shard['placement']}" for shard in worked)
        executors.append(report["executors"])
    query = json.loads((tmp_path / "checkpoint/metadata").read_text())["id"]
    kept: dict[str, list[int]] = {}
    for shard in range(CASES[case].shards):
        identity = StateStoreId(str(tmp_path / "checkpoint"), "op", shard, query_id=query)
        store = StateStoreProvider(identity, lenient=lambda: True).get_read_store(batches)
        kept |= {key: list(value) for key, value in store.key_value("counts").all()}
    assert kept == state
    attempts = Counter(
        (name.version, shard)
        for shard in range(CASES[case].shards)
        for name in attempts_of(StateStoreId(str(tmp_path / "checkpoint"), "op", shard, query_id=query))
    )
    twice = sum(number > 1 for number in attempts.values())
    print(f"{case}, {placement}: {dict(kinds)}; executors {executors}; committed by two attempts: {twice}")
    if case == "dies":
        assert (tmp_path / "tried/died").exists() == (placement == "holder")
    elif placement != "auto":
        assert all(kind.endswith(placement) for kind in kinds)
    if placement == "holder" and case == "many":
        assert set(kinds) == {"empty in a holder", "hit in a holder"}
    if case == "speculation":
        assert twice
    if case == "allocation":
        for batch in GROWING_BATCHES:
            assert max(executors[batch]) > 1
            assert batch == 0 or executors[batch - 1][-1] == 1
