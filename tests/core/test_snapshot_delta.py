"""Changes between health snapshots: they produce the next snapshot and contain nothing unchanged."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.snapshot_delta import HealthChange, apply_change, find_change
from routewright.wire import HealthSnapshot, ModelHealth

NUMBERS = st.none() | st.integers(0, 3)
HEALTH = st.builds(
    ModelHealth,
    stability=st.integers(899, 902),
    ttft_ms=NUMBERS,
    us_per_token=NUMBERS,
    ttft_p95_ms=NUMBERS,
    latency_p50_ms=NUMBERS,
    latency_p95_ms=NUMBERS,
    output_tokens=NUMBERS,
    output_p90=NUMBERS,
    open=st.booleans(),
    probe_at_ms=NUMBERS,
) | st.just(ModelHealth())
MODELS = st.dictionaries(st.sampled_from(["a/one", "a/two", "b/one", ""]) | st.text(max_size=1), HEALTH, max_size=4)
SNAPSHOTS = st.builds(HealthSnapshot, st.sampled_from(["hs_1", "hs_2"]), MODELS)


@given(SNAPSHOTS, SNAPSHOTS)
def test_applying_a_change_gives_the_other_snapshot(before: HealthSnapshot, after: HealthSnapshot) -> None:
    assert apply_change(before, find_change(before, after), after.id) == after


@given(SNAPSHOTS, st.dictionaries(st.sampled_from(["a/one", "c/new"]), st.none() | HEALTH))
def test_a_change_holds_only_differences(before: HealthSnapshot, new: dict[str, ModelHealth | None]) -> None:
    models = {name: health for name, health in (before.models | new).items() if health is not None}
    found = find_change(before, HealthSnapshot("hs_3", models))
    other = {name for name, health in new.items() if health not in (None, before.models.get(name))}
    assert found.models == {name: models[name] for name in other}
    assert sorted(found.gone) == sorted(name for name in new if new[name] is None and name in before.models)


@given(st.lists(SNAPSHOTS, min_size=1, max_size=8))
def test_a_stored_chain_of_changes_leads_to_the_last_snapshot(snapshots: list[HealthSnapshot]) -> None:
    found = snapshots[0]
    for before, after in pairwise(snapshots):
        stored = msgspec.json.encode(find_change(before, after))
        found = apply_change(found, msgspec.json.decode(stored, type=HealthChange), after.id)
    assert found == snapshots[-1]
