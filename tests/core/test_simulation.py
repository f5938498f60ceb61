"""A simulation remembers choices by class; they are those of the decision of each request alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from routewright import Model, Pricing, wire
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Boards
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright._core.routing.simulation import Simulation, decide_alone

AS_OF = "2026-11-30"
MODELS = [
    Model(id=f"a/{place}", quality=0.9 - place / 10, pricing_per_1m=Pricing(price, 4 * price), context_window=window)
    for place, (price, window) in enumerate([(3.0, 6_000), (2.0, 20_000), (0.4, 9_000), (0.2, 60_000)])
]
CATALOGUE = snapshot(tuple(MODELS), AS_OF)
HEALTHS = [
    wire.HealthSnapshot("h0", {}),
    wire.HealthSnapshot("h1", {"a/1": wire.ModelHealth(stability=500), "a/2": wire.ModelHealth(output_tokens=4_000)}),
    wire.HealthSnapshot(
        "h2", {"a/0": wire.ModelHealth(open=True, probe_at_ms=1), "a/1": wire.ModelHealth(ttft_ms=3_000)}
    ),
    wire.HealthSnapshot("h3", {f"a/{n}": wire.ModelHealth(open=True, probe_at_ms=n) for n in range(4)}),
]
HEALTH = {health.id: health for health in HEALTHS}
SNAPSHOTS: dict[str, wire.Snapshot] = {CATALOGUE.id: CATALOGUE, **HEALTH}

inputs = st.builds(
    wire.DecisionInput,
    catalogue=st.just(CATALOGUE.id),
    health=st.sampled_from([*HEALTH]),
    as_of=st.just(AS_OF),
    tokens=st.integers(1, 30_000).flatmap(
        lambda high: st.builds(
            wire.TokenBounds, st.integers(1, high), st.just(high), st.just(max(1, high // 4)), counted=st.booleans()
        )
    ),
    goal=st.sampled_from(["cost", "quality"]),
    budget_nanos=st.sampled_from([None, 5_000_000, 40_000_000]),
    timeout_ms=st.sampled_from([60_000, 2_000]),
    models=st.sampled_from([None, ("a/0", "a/2"), ("a/9",)]),
    max_output_tokens=st.sampled_from([None, 500, 50_000]),
    max_latency_ms=st.sampled_from([None, None, 4_000]),
    prefer=st.sampled_from([(), (), (), ("a/2",)]),
    quality=st.sampled_from([None, None, None, (100_000, 200_000, 900_000, 300_000)]),
    warm=st.sampled_from([(), (), (), (wire.WarmPrefix("a/1", 1),)]),
    rules=st.just(RULES),
)


@settings(max_examples=4)
@given(st.lists(inputs, min_size=60, max_size=90))
def test_choices_of_a_class_are_those_of_its_requests_alone(requests: list[wire.DecisionInput]) -> None:
    simulation = Simulation(SNAPSHOTS, transform=lambda models: models)  # decides everything again
    for page in (requests[:20], requests):
        records = [
            wire.DecisionRecord("tr", f"{AS_OF}T00:00:00.000Z", each, None, False, 0, 0, 0.0, None) for each in page
        ]
        boards = [Boards(Pool(CATALOGUE, AS_OF)).of(HEALTH[request.health]) for request in page]
        expected = [decide_alone(request, board) for request, board in zip(page, boards, strict=True)]
        assert [request.outcome for request in simulation._decide(records)] == expected


def test_expected_figures_are_without_the_workload_as_learned_by_then() -> None:
    costs = []
    for workload in (None, (4, 4)):
        request = wire.DecisionInput(
            catalogue=CATALOGUE.id,
            health="h0",
            as_of=AS_OF,
            tokens=wire.TokenBounds(100, 100, 100),
            rules=RULES,
            workload=workload,
        )
        simulation = Simulation(SNAPSHOTS)
        record = wire.DecisionRecord("tr", f"{AS_OF}T00:00:00.000Z", request, "a/0", False, 0, 0, 0.0, None)
        simulation.add("default", [record])
        costs.append([simulation.costs.tolist(), simulation.latencies.tolist()])
    assert costs[0] == costs[1]
