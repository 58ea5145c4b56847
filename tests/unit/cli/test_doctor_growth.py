"""What the doctor says about the growth of a database."""

from __future__ import annotations

import pytest

from liveness.cli.doctor_checks import CheckStatus, growth
from liveness.store.size import DatabaseSize, Storage

GIB = 1 << 30


def storage(free: int | None, per_day: int | None) -> Storage:
    return Storage(DatabaseSize(6 * GIB, 7 * GIB, free), per_day)


@pytest.mark.parametrize(
    ("free", "per_day", "verdict", "saw"),
    [
        (100 * GIB, None, CheckStatus.OK, "6.0 GiB of content; not known yet"),
        (100 * GIB, -GIB, CheckStatus.OK, "6.0 GiB of content; it shrinks by 1.0 GiB a day"),
        (None, GIB, CheckStatus.OK, "6.0 GiB of content; it grows by 1.0 GiB a day"),
        (100 * GIB, GIB, CheckStatus.OK, "a day, so the disk is full in 100 days"),
        (10 * GIB, GIB, CheckStatus.WARNING, "a day, so the disk is full in 10 days"),
        (3 * GIB, GIB, CheckStatus.FAILED, "a day, so the disk is full in 3 days"),
    ],
)
def test_a_disk_that_fills_up_soon_is_a_problem(
    free: int | None, per_day: int | None, verdict: CheckStatus, saw: str
) -> None:
    found = growth(storage(free, per_day))
    assert found.verdict is verdict
    assert found.saw.endswith(saw)
    assert bool(found.advice) == (verdict is not CheckStatus.OK or per_day is None)
