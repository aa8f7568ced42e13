"""Tests of `visits.py`, as a user writes them: `python -m pytest examples/tested`. They need pytest and hypothesis."""

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from visits import GRACE, reminders, visits

from hybridstore import testing as ht

MINUTE = 60_000
pages = st.sampled_from(["/", "/cart", "/pay", "/health"])
clicks = ht.rows(
    keys=["ann", "bob"], size="5 minutes", within=GRACE, page=pages, price=st.integers(0, 999), min_size=10, max_size=20
)


def click(user: str, minute: float, page: str = "/", price: int = 0) -> dict[str, Any]:
    return {"user": user, "ts": int(minute * MINUTE), "page": page, "price": price}


def test_a_visit_ends_five_minutes_behind_its_last_page() -> None:
    with ht.Driver(visits) as driver:
        assert driver.push(click("ann", 0), click("ann", 4, "/pay", 30), click("ann", 5, "/health")) == []
        (visit,) = driver.advance(10 * MINUTE)
        assert (visit["pages"], visit["spent"]) == (2, 30)
        driver.push(click("ann", 1))
        assert [row["ts"] for row in driver.late] == [MINUTE]


def test_who_does_not_pay_is_reminded_once() -> None:
    with ht.Driver(reminders) as driver:
        driver.push(click("ann", 0, "/cart", 3), click("bob", 0, "/cart", 5), click("bob", 9, "/pay"))
        driver.restart()  # the carts are in the stores
        assert driver.advance(10 * MINUTE) == [{"user": "ann", "waits": 3}]
        assert driver.store("carts").get("ann") is None


@given(rows=clicks)
# what fails is shown as it was drawn: to shrink it takes some hundred times as long
@settings(max_examples=5, deadline=None, phases=[Phase.generate])
def test_visits_do_not_depend_on_the_machine_or_on_luck(rows: list[dict[str, Any]]) -> None:
    ways = ht.crash_everywhere(), ht.cut_anyhow(times=2), ht.rescaled(2, 3, times=1)
    ht.check(visits, rows, *ways, commit_rows=5)
    in_order = sorted(rows, key=lambda row: row["ts"])
    ht.check(visits, in_order, ht.shuffled(within=GRACE, times=3))


def test_reminders_survive_crashes_and_other_machines() -> None:
    rows = [
        click(user, 2 * n, page, n)
        for n in range(30)
        for user in ("ann", "bob")
        for page in ("/cart", "/pay")[n % 7 == 3 :]
    ]
    ht.check(reminders, rows, ht.crash_everywhere(), ht.elsewhere())
