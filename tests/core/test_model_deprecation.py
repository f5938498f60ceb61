"""Which models end when, and what replaces them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Catalogue, Model, Pricing, ValidationFailed
from routewright._core.catalogue.models import deprecations
from tests.tables import table

TODAY = date(2026, 11, 20)


def model(name: str, ends: str | None = None, **rest: object) -> Model:
    fields: dict[str, object] = {"quality": 0.5, "pricing_per_1m": Pricing(1.0, 2.0), **rest}
    return Model(id=f"v/{name}", provider="v", deprecated_at=ends, **fields)  # type: ignore[arg-type]


def replacement(*others: Model, **ending: object) -> str | None:
    found = deprecations([model("old", "2026-12-01", **ending), *others], TODAY)
    return {each.model: each.replacement for each in found}["v/old"]


def test_deprecations_are_listed_soonest_first_with_days_left() -> None:
    models = [model("c", "2027-01-01"), model("a", "2026-11-21T08:00:00Z"), model("b", "2026-11-20"), model("d")]
    found = deprecations(models, TODAY)
    assert [(each.model, each.ends, each.days_left) for each in found] == [
        ("v/b", "2026-11-20", 0),
        ("v/a", "2026-11-21", 1),
        ("v/c", "2027-01-01", 42),
    ]


@given(st.integers(0, 100), st.lists(st.integers(-100, 200), max_size=5))
def test_within_days_is_inclusive(within: int, ends: list[int]) -> None:
    models = [model(f"m{place}", str(TODAY + timedelta(days))) for place, days in enumerate(ends)]
    found = deprecations(models, TODAY, within)
    assert sorted(each.days_left for each in found) == sorted(days for days in ends if days <= within)


def test_the_replacement_is_nearest_in_quality_and_price() -> None:
    assert replacement(model("far", quality=0.9), model("near", quality=0.55)) == "v/near"
    assert replacement(model("dear", pricing_per_1m=Pricing(9.0, 9.0)), model("near")) == "v/near"
    assert replacement(model("b"), model("a")) == "v/a"


def test_a_retired_model_is_no_replacement() -> None:
    found = deprecations([model("old", "2026-06-01"), model("ended", "2026-11-01"), model("far", quality=0.9)], TODAY)
    assert {each.model: each.replacement for each in found} == {"v/old": "v/far", "v/ended": "v/far"}


@table(
    "other",
    [
        model("x", "2026-11-30"),
        model("x", "2026-12-01"),
        model("x", disabled=True),
        model("x", free_tier=True),
        model("x", modalities=("text",)),
        model("x", modalities=("text", "image"), structured_output=False),
        Model(id="w/x", provider="w", quality=0.5),
    ],
)
def test_a_replacement_stays_longer_and_has_the_same_abilities(other: Model) -> None:
    assert replacement(other, modalities=("text", "image"), structured_output=True) is None


def test_a_catalogue_lists_its_deprecations() -> None:
    found = Catalogue().deprecations(10, today=TODAY)
    assert ("anthropic/claude-sonnet-4-5", 10) in [(each.model, each.days_left) for each in found]
    assert len(Catalogue().deprecations(today=TODAY)) > len(found)
    assert Catalogue().deprecations()  # today
    assert Catalogue().deprecations(10, today="2026-11-20") == found


@table(
    ("asked", "said"),
    [
        ({"today": "soon"}, "today: must be a date, got 'soon'"),
        ({"today": datetime(2026, 11, 20)}, "today: must be a date"),
        ({"within_days": "7"}, "within_days: must be a whole number, got '7'"),
        ({"within_days": True}, "within_days: must be a whole number, got True"),
    ],
)
def test_an_invalid_day_or_number_of_days_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        Catalogue().deprecations(**asked)
