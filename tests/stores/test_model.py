"""The model against the facts: every case that the stores must pass, in every way; and what the cases leave open."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.hooks import crash
from tests.tools.model import ModelBufferFullError, ModelState
from tests.tools.vector_runner import STORES, Case, Runner, Subject, load, skip_reason, ways_of

FOLDERS = [Path(__file__).parents[1] / "vectors", Path(__file__).parents[1] / "cases"]
# Aggregations are run by topologies, which have no model here.
LOADED = [case for folder in FOLDERS for case in load(folder)]
CASES = [case for case in LOADED if skip_reason(case) is None and case["store"]["type"] in STORES]


def model_subject() -> Subject:
    disk: dict[str, Any] = {}
    return Subject(
        open=lambda: ModelState(disk),
        logged=lambda state: list(state.stores["case"].logged),
        full_error=ModelBufferFullError,
        aggregator=lambda name: name,
    )


@pytest.mark.stress
@pytest.mark.parametrize(
    ("case", "way"),
    [pytest.param(case, way, id=f"{case['id']}-{way}") for n, case in enumerate(CASES) for way in ways_of(n)],
)
def test_model_agrees_with_the_vectors(case: Case, way: str) -> None:
    Runner(case, model_subject(), way).run()


def test_every_suite_has_cases() -> None:
    assert {case["store"]["type"] for case in CASES} == STORES.keys()


def test_runner_finds_a_wrong_result() -> None:
    steps = [{"op": "put", "key": "a", "value": "1"}, {"op": "get", "key": "a", "expect": "2"}]
    with pytest.raises(AssertionError, match=r"step 1.*found '1'"):
        Runner(kv_case(steps), model_subject(), "plain").run()


def test_runner_tells_an_int_from_a_bool() -> None:
    steps = [{"op": "put", "key": "a", "value": True}, {"op": "get", "key": "a", "expect": 1}]
    with pytest.raises(AssertionError):
        Runner(kv_case(steps), model_subject(), "plain").run()


def test_runner_finds_a_missing_error() -> None:
    with pytest.raises(AssertionError, match="expected TypeError"):
        Runner(kv_case([{"op": "get", "key": "a", "error": "null"}]), model_subject(), "plain").run()


@pytest.mark.parametrize(("tags", "dialect", "skipped"), [
    ([], "any", False),
    (["quirk"], "any", True),
    (["sizer"], "seed", True),
    (["changelog"], "any", False),
    (["changelog"], "kafka", True),
    (["buffer-time"], "kafka", False),
])  # fmt: skip
def test_skips_by_dialect_and_tags(tags: list[str], dialect: str, skipped: bool) -> None:
    case = {"id": "x", "dialect": dialect, "tags": tags, "store": {"type": "kv"}}
    assert (skip_reason(case) is not None) is skipped


def test_folder_without_cases_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no cases"):
        load(tmp_path)


def kv_case(steps: list[dict[str, Any]]) -> Case:
    return {"id": "kv/made_here", "dialect": "any", "store": {"type": "kv", "key": "string"}, "steps": steps}


def model(kind: str, **params: Any) -> Any:
    return getattr(ModelState({}), kind)("m", **params)


@pytest.mark.parametrize("change", [
    lambda state: state.rollback(),
    lambda state: crash(state),
])  # fmt: skip
def test_only_what_was_committed_survives(change: Callable[[ModelState], None]) -> None:
    disk: dict[str, Any] = {}
    state = ModelState(disk)
    window = state.window("w", retention=10)
    window.put("a", "1", 5)
    state.commit()
    window.put("b", "2", 50)
    change(state)
    window = (state if not state.closed else ModelState(disk)).window("w", retention=10)
    assert (list(window.all()), window.stream_time) == ([(("a", 5), "1")], 5)


def test_point_get_of_duplicates_gives_all_rows_in_order_of_arrival() -> None:
    window = model("window", retention=10, retain_duplicates=True)
    for value in "ba":
        window.put("k", value, 3)
    assert window.get("k", 3) == ["b", "a"]


def test_key_value_rows_expire_by_event_time() -> None:
    store = model("key_value", ttl=10)
    store.put("a", 1, 5)
    store.put("b", 2, 15)
    store.put("c", 3, 5)
    assert (list(store.all()), dict(store.dropped)) == ([("b", 2)], {"expired": 1})


def test_final_result_is_emitted_when_its_window_closes() -> None:
    buffer = model("suppression", until_window_closes=5)
    assert buffer.put(("k", 0, 10), "1", 3) == []
    assert (list(buffer.advance(14)), list(buffer.advance(15))) == ([], [[(("k", 0, 10), "1", 3)]])
