"""Reading beside a writer: how often a look is repeated, and what the last look gives."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from changelog.errors import UnsupportedVersionError
from recovery import retrying
from recovery.errors import RestoreError
from recovery.retrying import Signature, retry_while_changing


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_WAIT_SECONDS", 0)


class Looks:
    """Looks that are counted; each raises the error, if there is one, or gives its number."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.number = 0

    def __call__(self) -> int:
        self.number += 1
        if self.error is not None:
            raise self.error
        return self.number


def changing() -> Callable[[], Signature]:
    numbers = count()
    return lambda: [("file", next(numbers), 0)]


def still() -> Signature:
    return [("file", 1, 0)]


def test_a_directory_that_never_stops_changing_gives_the_last_error() -> None:
    looks = Looks(OSError("gone"))
    with pytest.raises(RestoreError, match="cannot be read: gone"):
        retry_while_changing("state", looks, sign=changing())
    assert looks.number == retrying.TRIES
    looks = Looks(RestoreError("damaged"))
    with pytest.raises(RestoreError, match="damaged"):
        retry_while_changing("state", looks, sign=changing())
    assert looks.number == retrying.TRIES


def test_a_directory_that_never_stops_changing_gives_the_last_result() -> None:
    assert retry_while_changing("state", Looks(), sign=changing(), failed=lambda result: True) == retrying.TRIES


@pytest.mark.parametrize(("late", "expected"), [(False, 1), (True, 2)])
def test_a_failure_beside_nobody_is_final(late: bool, expected: int) -> None:
    """Without a signature from before the first look a second look is needed."""
    looks = Looks(OSError("gone"))
    with pytest.raises(RestoreError):
        retry_while_changing("state", looks, sign=still, late=late)
    assert looks.number == expected
    assert retry_while_changing("state", Looks(), sign=still, failed=lambda result: True, late=late) == expected


def test_what_succeeds_or_is_of_another_version_is_not_looked_at_again() -> None:
    assert retry_while_changing("state", Looks(), sign=changing()) == 1
    looks = Looks(UnsupportedVersionError("version 9"))
    with pytest.raises(UnsupportedVersionError):
        retry_while_changing("state", looks, sign=changing())
    assert looks.number == 1


def test_a_listing_that_fails_is_no_signature(tmp_path: Path) -> None:
    def unlisted() -> Signature:
        raise OSError("no listing")

    assert retry_while_changing(tmp_path, Looks(), sign=unlisted, failed=lambda result: True) == 1
