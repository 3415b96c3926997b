"""What trials spend, against a sum over what each process did."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sweeper.journal.spending import Spending
from tests.sweeper.records import made_record


@pytest.mark.parametrize("seed", range(20))
def test_each_report_counts_at_the_share_that_its_process_had(seed: int) -> None:
    draw, spending, records = random.Random(seed), Spending(), 0
    seconds = gpu_seconds = unshared = 0.0
    for configuration in range(12):
        kind = draw.choice(["whole", "apart", "reused"])
        worked: dict[int | None, float] = {}
        reused = draw.uniform(1, 1e4) if kind == "reused" else None
        for epoch in range(1, draw.randint(2, 8)):
            number = draw.randrange(3) if kind == "apart" else None
            more = draw.uniform(0, 500)
            worked[number] = worked.get(number, 0.0) + more
            share = draw.choice([None, 1.0, 0.5, 0.0625])
            body: dict[str, Any] = {"configuration": configuration, "epoch": epoch, "wall_seconds": worked[number]}
            body |= {"gpu": share} if share is not None else {}
            if reused is not None:
                body |= {"wall_seconds": reused, "reused": {"sweep": "earlier", "record": epoch}}
                worked[number] -= more
                reused = None if draw.random() < 0.3 else reused
            else:
                seconds += more
                gpu_seconds += more * (share or 0.0)
                unshared += more if share is None else 0.0
            name = "replicate" if number is not None else "report"
            spending.apply(
                made_record(records, name, 0.0, body | ({"replicate": number} if number is not None else {}))
            )
            records += 1
            if kind == "apart" and draw.random() < 0.4:
                merged = {"configuration": configuration, "epoch": epoch, "wall_seconds": sum(worked.values())}
                spending.apply(made_record(records, "report", 0.0, merged))
                records += 1
    assert spending.hours() == pytest.approx(seconds / 3600)
    for usual in (0.0, 0.25):
        assert spending.gpu_hours(usual) == pytest.approx((gpu_seconds + unshared * usual) / 3600)


def test_a_hundred_hours_on_half_a_card_are_fifty() -> None:
    spending = Spending()
    spending.apply(made_record(0, "report", 0.0, {"wall_seconds": 360_000.0, "gpu": 0.5}))
    assert spending.gpu_hours(usual=0.0625) == pytest.approx(50)
