"""What a notebook shows of open states, stores, results and topologies: tables, with everything escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hybridstore as hs

HOSTILE = "<script>alert('x')</script><img src=x>"
DRAWN = hs.stream(key=HOSTILE, timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())


def sound(text: str) -> str:
    assert "<script" not in text
    assert "<img" not in text
    assert type(text.encode()) is bytes
    return text


def test_stores_of_every_kind_and_their_state(tmp_path: Path) -> None:
    with hs.open(tmp_path / HOSTILE.replace("/", "_")) as state:
        users: Any = state.key_value(HOSTILE)
        clicks = state.window("clicks", retention="1 hour")
        visits = state.session("visits", retention="1 hour")
        rates = state.sliding("rates", size="1 minute", aggregator=hs.Collect())
        delayed = state.suppression("delayed", time_limit="1 minute")
        assert "about 0 records" in users._repr_html_()
        for number in range(30):
            users[f"{HOSTILE}{number:02d}"] = {"of": HOSTILE, "long": "y" * 1000}
        clicks.put(HOSTILE, HOSTILE, ts=60_000)
        visits.put(HOSTILE, 3, 60_000, 60_001)
        rates.add(HOSTILE, HOSTILE, 60_000)
        delayed.put(HOSTILE, HOSTILE, ts=60_000)
        state.commit()
        for store in (users, clicks, visits, rates, delayed):
            text = sound(store._repr_html_())
            assert "&lt;script&gt;" in text
            assert f"{store.name}: {store.kind}, about " in text or store is users
        shown = users._repr_html_()
        assert shown.count("<tr>") == 11
        assert len(shown) < 10 * 800
        text = sound(state._repr_html_())
        assert f"version {state.version}" in text
        for row in ("<td>clicks</td><td>window</td>", "<td>visits</td><td>session</td>", '<td class="n">30</td>'):
            assert row in text
        with state.snapshot() as snapshot:
            assert "<td>rates</td><td>sliding</td>" in sound(snapshot._repr_html_())
        with hs.inspect(state.path).follow() as view:
            assert "<td>delayed</td><td>suppression</td>" in sound(view._repr_html_())
    # what is closed is named, and nothing is read
    assert "closed" in state._repr_html_()
    assert "<td>clicks</td>" not in state._repr_html_()


def test_looking_changes_nothing(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("users").put_many({f"{number}": number for number in range(50)})
        state.commit()
        before = state.digest, state.version
        state._repr_html_()
        state.stores["users"]._repr_html_()
        assert (state.commit(), state.digest) == (before[1], before[0])


def test_a_look_loads_no_state_beyond_a_limit_of_memory_and_reads_no_closed_store(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("users").put_many({f"{number}": number for number in range(50)})
        state.window("clicks", retention="1 hour").put("ann", 1, ts=60_000)
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path, memory_limit=1 << 30) as state:
        users, clicks = state.stores["users"], state.stores["clicks"]
        assert users._repr_html_() == "<p>users: key_value, about 50 records</p>"
        assert clicks._repr_html_() == "<p>clicks: window, about 1 records</p>"
        assert (users.cold_blocks, clicks.cold_blocks) == (1, 1)
        assert dict(users.all())["7"] == 7
        assert users._repr_html_().count("<tr>") == 11
    assert users._repr_html_() == "<p>&lt;KeyValueStore &#x27;users&#x27;&gt;</p>"


def test_topologies_and_results(tmp_path: Path) -> None:
    text = sound(DRAWN._repr_html_())
    assert text.startswith("<pre>stream ")
    assert "&lt;script&gt;" in text
    assert "└─ stores" in text
    results = DRAWN.run([{HOSTILE: HOSTILE, "ts": 5}, {HOSTILE: "b", "ts": 7}], tmp_path)
    sound(results._repr_html_())
    rows = list(results)  # nothing was taken by the look
    assert [row["n"] for row in rows] == [1, 1]
    shown = sound(rows[0]._repr_html_())
    assert "<td>1</td>" in shown.replace(' class="n"', "")
    assert "&lt;script&gt;" in shown
