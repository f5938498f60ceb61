"""The attempt machine: every rule of its table, and budgets that hold for any mix of faults and usage."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.attempts.fallback import Chain
from routewright._core.attempts.faults import FAULTS, Fault
from routewright._core.attempts.machine import Attempts, End, Rules, Wait
from routewright._core.attempts.record import Attempt
from routewright._core.attempts.timeouts import ExecutionLimits
from routewright._core.catalogue.prices import usage_nanos
from routewright._core.routing.budget import Room, own_room
from routewright._core.routing.decide import decide
from routewright._core.routing.plan import Plan
from routewright._core.structured_output import Repair
from routewright.errors import NoCandidates
from routewright.wire import FaultKind, Finish, Model, ModelHealth, PriceTier, Pricing, TokenBounds, Usage
from tests.tables import table

from .pools import board
from .test_decision import model as model_of
from .test_decision import simple

GIVEN = simple(goal="quality")
DEADLINE = 60.0
LIMITS = ExecutionLimits()


def model(name: str, quality: float, **given: object) -> Model:
    return model_of(name, **{"quality": quality, "ttft_s": 1.0} | given)


POOL = [model("a/one", 0.99), model("b/two", 0.7), model("c/three", 0.4), model("d/four", 0.2)]


class FakeTraffic:
    """A traffic that lets everything through but what a test closes."""

    def __init__(
        self, closed: Mapping[int, float] | None = None, probes: Collection[int] = (), spare: int = 10**9
    ) -> None:
        self.closed = dict(closed or {})
        self.probes = probes
        self.spare = spare

    @property
    def circuits(self) -> Any:
        return self

    @property
    def tripped(self) -> range:
        return range(1_000)

    def admits(self, row: int, now: float) -> bool | None:
        if row in self.closed and now < self.closed[row]:
            return False
        return None if row in self.probes else True

    def due(self, row: int) -> float:
        return self.closed[row]

    @property
    def is_whole(self) -> list[bool]:
        return [False] * 1_000

    def spares(self, now: float) -> bool:
        self.spare -= 1
        return self.spare >= 0


class Machine(Attempts):
    """Remembers the attempt that it began last."""

    begun: Attempt | None = None

    def next(self, now: float) -> Attempt | Wait | None:
        step = super().next(now)
        if isinstance(step, Attempt):
            self.begun = step
        return step


def machine(pool: list[Model] | None = None, **given: object) -> Machine:
    return machine_of(decide(replace(GIVEN, **given), board(pool or POOL)))


def machine_of(
    plan: Plan,
    *,
    traffic: FakeTraffic | None = None,
    limits: ExecutionLimits | None = None,
    bounds: TokenBounds | None = None,
    **how: Any,
) -> Machine:
    given, whole, rules = plan.decision_input, how.pop("whole", False), Rules(limits or ExecutionLimits(), **how)
    limited = given.budget_nanos is not None or given.budget_tokens is not None
    room, timeout_s = own_room(given) if limited else None, given.timeout_ms / 1000
    traffic, chain, tokens = traffic or FakeTraffic(), Chain(plan.legs), bounds or given.tokens
    partial = rules.on_partial
    return Machine(plan, tokens, room, room, DEADLINE, timeout_s, whole, traffic, rules, partial, chain)


def room_of(attempts: Machine) -> Room:
    assert attempts.room is not None
    return attempts.room


def next_attempt(attempts: Machine, now: float = 0.0) -> Attempt:
    attempt = attempts.next(now)
    assert isinstance(attempt, Attempt), attempt
    return attempt


def next_model(attempts: Machine, now: float = 0.0) -> str:
    return next_attempt(attempts, now).model


def end_reached(attempts: Machine, now: float = 0.0) -> End | None:
    """How it ends where nothing comes next."""
    step = attempts.next(now)
    assert step is None, step
    return attempts.end


def report_usage(attempt: Attempt, usage: Usage | None, *, final: bool, delivered: bool = False) -> None:
    """Let a provider report a usage. ``final``: it came with the answer's end, so there is nothing beyond it."""
    if usage is not None:
        attempt.take(usage)
    if final:
        attempt.take(Finish("stop"))
    attempt.delivered = delivered


def succeed(attempts: Machine, attempt: Attempt, usage: Usage) -> None:
    report_usage(attempt, usage, final=True)
    attempt.cost_nanos = usage_nanos(attempt.leg.prices, usage)
    attempts.record_success(attempt)


def fail_attempt(
    attempts: Machine,
    attempt: Attempt,
    kind: str,
    now: float = 3.0,
    *,
    usage: Usage | None = None,
    final: bool = False,
    touched: bool = False,
    delivered: bool = False,
    jitter: float = 0.0,
    repair: TokenBounds | None = None,
    **how: Any,
) -> None:
    report_usage(attempt, usage, final=final, delivered=delivered)
    fault = Fault(FaultKind(kind), repair=None if repair is None else Repair([], repair), **how)
    attempts.record_fault(attempt, fault, now, touched=touched, jitter=jitter)


def fail_latest(attempts: Machine, kind: str, now: float = 0.0, **how: Any) -> None:
    assert attempts.begun is not None
    fail_attempt(attempts, attempts.begun, kind, now, **how)


def fail_next(attempts: Machine, kind: str, now: float = 0.0, **how: Any) -> Machine:
    next_model(attempts)
    fail_latest(attempts, kind, now, **how)
    return attempts


MORE = TokenBounds(10, 300, 100)
"""What a repair adds to the prompt."""


def fail_invalid(attempts: Machine, now: float = 0.0, **how: object) -> None:
    how = {"usage": Usage(40, 100), "final": True, "touched": True, "repair": MORE} | how
    fail_latest(attempts, "invalid_output", now=now, **how)


def fail_next_invalid(attempts: Machine, now: float = 0.0, **how: object) -> Machine:
    next_model(attempts)
    fail_invalid(attempts, now, **how)
    return attempts


def repaired_model(attempts: Machine, now: float = 0.0) -> str:
    attempt = next_attempt(attempts, now)
    assert attempt.repair == MORE
    return attempt.model


def model_after_pause(attempts: Machine, now: float = 0.0) -> str:
    pause = attempts.next(now)
    assert isinstance(pause, Wait)
    return next_model(attempts, now + pause.seconds)


@table("kind", [kind for kind, rule in FAULTS.items() if rule.retry])
def test_a_retryable_fault_is_retried_once_then_falls_back(kind: str) -> None:
    attempts = machine()
    assert next_model(attempts) == "a/one"
    fail_latest(attempts, kind)
    assert model_after_pause(attempts) == "a/one"
    fail_latest(attempts, kind)
    assert next_model(attempts) == "b/two"


def test_the_vendors_word_on_retries_overrides_the_faults_kind() -> None:
    attempts = fail_next(machine(), "server", retry=False)
    assert next_model(attempts) == "b/two"
    fail_latest(attempts, "request", retry=True)
    assert model_after_pause(attempts) == "b/two"
    fail_latest(attempts, "request", retry=True)
    assert next_model(attempts) == "c/three", "no more often than it may"


@table(
    "kind", [kind for kind, rule in FAULTS.items() if not rule.retry and rule.fall_back and kind != "context_overflow"]
)
def test_a_fault_not_worth_a_retry_falls_back_at_once(kind: str) -> None:
    attempts = fail_next(machine(), kind)
    assert next_model(attempts) == "b/two"


def test_an_overflow_falls_back_to_models_that_may_hold_the_prompt() -> None:
    pool = [
        POOL[0],
        model("b/same", 0.7),
        model("c/smaller", 0.4, context_window=50_000),
        model("d/undeclared", 0.2, context_window=None),
    ]
    plan = decide(replace(GIVEN, tokens=TokenBounds(40, 40, 20)), board(pool))
    for low, asked in (
        (40, ["a/one", "b/same", "c/smaller", "d/undeclared"]),
        (60_000, ["a/one", "b/same", "d/undeclared"]),
    ):
        attempts = machine_of(plan, bounds=TokenBounds(low, 70_000, 65_000))
        for each in asked:
            assert next_model(attempts) == each
            fail_latest(attempts, "context_overflow")
        assert end_reached(attempts) is End.FAILED


def test_a_refusal_is_final_unless_the_policy_falls_back() -> None:
    attempts = fail_next(machine(), "refused")
    assert end_reached(attempts) is End.REFUSED
    open_one = fail_next(machine_of(attempts.plan, on_refusal_fall_back=True), "refused")
    assert next_model(open_one) == "b/two"


@table("retries", [0, 5])
def test_an_invalid_answer_is_repaired_once_per_model(retries: int) -> None:
    attempts = machine(max_retries=retries, fallback=("b/two",))
    for name in ("a/one", "b/two"):
        first = next_attempt(attempts)
        assert first.repair is None
        assert first.model == name
        fail_invalid(attempts)
        assert repaired_model(attempts) == name
        fail_invalid(attempts)
    assert end_reached(attempts) is End.FAILED


def test_a_retry_of_a_repair_is_a_repair() -> None:
    attempts = fail_next_invalid(machine(max_retries=2))
    assert repaired_model(attempts) == "a/one"
    fail_latest(attempts, "server")
    pause = attempts.next(0.0)
    assert isinstance(pause, Wait)
    assert repaired_model(attempts, pause.seconds) == "a/one"


def test_a_repair_does_not_start_in_the_time_reserved_for_the_next_model() -> None:
    attempts = fail_next_invalid(machine(), now=44.0)
    assert repaired_model(attempts, 44.0) == "a/one"
    late = fail_next_invalid(machine(), now=45.0)  # a quarter of the time is the fallback's
    assert next_model(late, 45.0) == "b/two"
    last = fail_next_invalid(machine(fallback=()), now=59.0)
    assert repaired_model(last, 59.0) == "a/one"
    over = fail_next_invalid(machine(fallback=()), now=DEADLINE)
    assert end_reached(over, DEADLINE) is End.TIMED_OUT


def test_a_repair_is_capped_and_billed_with_its_longer_prompt() -> None:
    attempts = fail_next_invalid(machine(budget_nanos=20_000_000, budget_tokens=4_000))  # $0.00044, 140 tokens
    attempt = next_attempt(attempts)
    left_nanos, left_tokens = 20_000_000 - 440_000, 4_000 - 140
    assert attempt.cap == min((left_nanos - 340_000) // 4_000, left_tokens - 340)
    fail_invalid(attempts, usage=None, final=False)
    used_nanos, used_tokens = 340_000 + 4_000 * attempt.cap, 340 + attempt.cap
    assert attempts.room == Room(left_nanos - used_nanos, left_tokens - used_tokens)


def test_an_unaffordable_repair_is_skipped() -> None:
    pool = [POOL[0], model("b/cheap", 0.7, pricing_per_1m=Pricing(0.1, 0.4))]
    attempts, dearer = (machine(pool, budget_nanos=5_000_000, max_output_tokens=1_000) for _ in range(2))
    fail_next_invalid(attempts, usage=Usage(40, 150))  # leaves $0.00436, a repair takes up to $0.00434
    assert repaired_model(attempts) == "a/one"
    fail_next_invalid(dearer, usage=Usage(40, 160))
    assert next_model(dearer) == "b/cheap"


def test_the_deadline_ends_the_request_in_any_state() -> None:
    attempts = fail_next(machine(), "timeout", now=60.0)
    assert end_reached(attempts, 60.0) is End.TIMED_OUT
    late = machine()
    assert end_reached(late, 60.0) is End.TIMED_OUT
    told = fail_next(machine_of(late.plan, on_partial="error"), "reset", now=60.0, touched=True, delivered=True)
    assert end_reached(told, 60.0) is End.TIMED_OUT


@table(("timeout_ms", "latest"), [(60_000, 59.95), (5_000, 59.95), (1_000, 59.99)])
def test_no_further_attempt_starts_with_too_little_time(timeout_ms: float, latest: float) -> None:
    for late in (False, True):
        now = latest + 1e-3 * late
        attempts = fail_next(machine(timeout_ms=timeout_ms), "auth", now=now)
        assert (attempts.next(now) is None and attempts.end is End.TIMED_OUT) is late
        again = fail_next(machine(timeout_ms=timeout_ms), "server", now=now - 0.1)
        assert isinstance(again.next(now - 0.1), Attempt if late else Wait), "a pause before it is part of the time"


def test_the_first_attempt_is_made_however_late_and_its_fault_decides_the_end() -> None:
    assert next_model(machine(), 59.999) == "a/one"
    alone = fail_next(machine(fallback=()), "auth", now=59.999)
    assert end_reached(alone, 59.999) is End.FAILED


def pauses_of(attempts: Machine, jitter: float, *asked: float | None) -> list[float]:
    pauses = []
    next_model(attempts)
    for asked_s in asked:
        fail_latest(attempts, "server", retry_after=asked_s, jitter=jitter)
        step = attempts.next(0.0)
        assert isinstance(step, Wait)
        pauses.append(round(step.seconds, 6))
        next_model(attempts)
    return pauses


def test_pauses_grow_and_a_shorter_retry_after_does_not_shorten_them() -> None:
    none = (None,) * 5
    assert pauses_of(machine(max_retries=5), 0.0, *none) == [0.1] * 5
    assert pauses_of(machine(max_retries=5), 0.5, *none) == [0.2, 0.35, 0.575, 0.9125, 1.05]
    assert pauses_of(machine(max_retries=5), 1.0, *none) == [0.3, 0.9, 2.0, 2.0, 2.0]
    assert pauses_of(machine(max_retries=5), 0.5, None, 0.0, 3.0, None) == [0.2, 0.35, 3.0, 0.9125]


def test_the_request_ends_with_its_chain() -> None:
    attempts = machine(fallback=("b/two",))
    for expected in ("a/one", "b/two"):
        assert next_model(attempts) == expected
        fail_latest(attempts, "auth")
    assert end_reached(attempts) is End.FAILED


def test_a_fault_after_content_restarts_or_fails_as_configured() -> None:
    attempts = fail_next(machine(), "timeout", delivered=True, touched=True)
    attempt = next_attempt(attempts)
    assert attempt.restart
    honest = fail_next(machine_of(attempts.plan, on_partial="error"), "timeout", delivered=True, touched=True)
    assert end_reached(honest) is End.FAILED


def test_patience_for_a_whole_answer_is_four_times_the_observed_time() -> None:
    slow = model("a/slow", 0.99, ttft_s=1.0, tokens_per_s=20.0)  # expected: some twenty seconds
    seen = {"a/slow": ModelHealth(latency_p95_ms=4_000)}

    def patience_s(health: dict[str, ModelHealth]) -> float:
        return next_attempt(machine_of(decide(GIVEN, board([slow, POOL[1]], health)), whole=True)).patience_s

    expected_s = 1.0 + 400 / 20.0
    assert patience_s({}) == 4 * expected_s
    assert patience_s(seen) == expected_s, "longer than four times the four seconds that were observed"
    assert patience_s({"a/slow": ModelHealth(latency_p95_ms=8_000)}) == 32.0


def test_the_end_is_a_refusal_if_every_model_refuses() -> None:
    attempts = machine_of(machine(fallback=("b/two",)).plan, on_refusal_fall_back=True)
    for _ in range(2):
        fail_next(attempts, "refused")
    assert end_reached(attempts) is End.REFUSED


def test_the_first_token_is_due_in_time_for_a_fallback() -> None:
    attempts = machine()
    attempt = next_attempt(attempts)
    assert attempt.wake_at == 10.0  # four times the prior's one second, at least ten
    attempt = next_attempt(machine([model("a/slower", 0.99, ttft_s=3.0), POOL[1]]))
    assert attempt.wake_at == 12.0
    slow = machine([model("a/slow", 0.99, ttft_s=12.0), POOL[1]])
    attempt = next_attempt(slow)
    assert attempt.wake_at == 45.0  # a quarter of the time is the fallback's
    fail_latest(slow, "timeout", now=45.0)
    attempt = next_attempt(slow, 45.0)
    assert attempt.wake_at == DEADLINE  # the last has all that is left


@table(
    ("kind", "reported", "nanos", "tokens"),
    [
        ("reset", {"usage": Usage(40, 1), "touched": True}, 4_040_000, 1_040),
        ("timeout", {"touched": True}, 4_040_000, 1_040),
        ("truncated", {}, 4_040_000, 1_040),
        ("reset", {"usage": Usage(40, 3_000), "touched": True}, 12_040_000, 3_040),
        ("malformed", {"usage": Usage(40, 10), "touched": True, "final": True}, 80_000, 50),
        ("server", {}, 0, 0),
    ],
    ids=["broken off", "unknown", "billed fault", "beyond the cap", "at the end", "no answer"],
)
def test_usage_is_deducted_as_reported_at_the_end_and_else_as_the_worst_case(
    kind: str, reported: dict[str, Any], nanos: int, tokens: int
) -> None:
    attempts = machine(budget_nanos=50_000_000, budget_tokens=50_000, max_output_tokens=1_000)
    fail_next(attempts, kind, **reported)
    assert attempts.room == Room(50_000_000 - nanos, 50_000 - tokens)


@table(
    ("given", "by_budget"),
    [
        ({"budget_tokens": 2_000}, True),
        ({"budget_tokens": 50_000}, True),  # the default cap, which stands for the budget
        ({"budget_tokens": 50_000, "max_output_tokens": 500}, False),
        ({"max_output_tokens": 500}, False),
        ({}, False),
    ],
)
def test_a_cap_below_the_requested_one_counts_as_the_budgets(given: dict[str, Any], by_budget: bool) -> None:
    assert next_attempt(machine(**given)).budget_capped is by_budget


@st.composite
def priced_pools(draw: st.DrawFn) -> list[Model]:
    usd = st.floats(0.0, 50.0).map(lambda price: round(price, 3))
    pool = []
    for index in range(draw(st.integers(1, 5))):
        tiers = (PriceTier(draw(st.integers(10, 3_000)), draw(usd), draw(usd)),) if draw(st.booleans()) else ()
        pricing = Pricing(draw(usd), draw(usd), draw(st.none() | usd), tiers=tiers)
        pool.append(
            model(
                f"{'abc'[index % 3]}/m{index}",
                draw(st.floats(0, 1)),
                pricing_per_1m=pricing,
                max_output_tokens=draw(st.sampled_from([None, 500, 8_000])),
                reasoning=draw(st.booleans()),
            )
        )
    return pool


# --- circuits


def row_of(plan: Plan, name: str) -> int:
    return next(leg.row for leg in plan.legs if leg.id == name)


def gated(*names: str, until: float = 10.0, probes: Collection[str] = (), **how: Any) -> Machine:
    """A machine whose traffic keeps some models away, and lets others through as probes."""
    attempts = machine()
    rows = {row_of(attempts.plan, name): until + place for place, name in enumerate(names)}
    return machine_of(attempts.plan, traffic=FakeTraffic(rows, [row_of(attempts.plan, name) for name in probes]), **how)


def test_if_all_circuits_are_open_the_model_due_soonest_is_called_once() -> None:
    attempts = gated("c/three", "d/four", "a/one", "b/two")
    attempt = next_attempt(attempts)
    assert (attempt.model, attempt.number, attempt.probe) == ("c/three", 1, True)
    fail_latest(attempts, "auth")
    assert end_reached(attempts, 1.0) is End.FAILED


def test_a_circuit_opened_during_the_pause_ends_its_models_retries() -> None:
    traffic = FakeTraffic()
    attempts = fail_next(machine_of(machine().plan, traffic=traffic), "server")
    traffic.closed[attempts.plan.legs[0].row] = 10.0
    assert model_after_pause(attempts) == "b/two"


def test_an_unaffordable_model_is_never_forced() -> None:
    pool = [POOL[0], model("b/dear", 0.7, pricing_per_1m=Pricing(20.0, 90.0))]
    plan = decide(replace(GIVEN, budget_nanos=100_000_000, fallback=("b/dear",)), board(pool))
    attempts = machine_of(plan, traffic=FakeTraffic({row_of(plan, "b/dear"): 10.0}))
    fail_next(attempts, "auth", usage=Usage(40, 20_000), final=True)
    assert end_reached(attempts) is End.FAILED


@table(("spare", "then"), [(0, "b/two"), (1, "a/one")])
def test_an_exhausted_retry_budget_falls_back_at_once(spare: int, then: str) -> None:
    attempts = fail_next(machine_of(machine().plan, traffic=FakeTraffic(spare=spare)), "server")
    assert (next_model(attempts) if spare == 0 else model_after_pause(attempts)) == then


def test_a_request_whose_answers_were_blocked_ends_as_blocked() -> None:
    attempts = machine(fallback=("b/two",))
    for _ in range(2):
        fail_next(attempts, "blocked", touched=True)
    assert end_reached(attempts) is End.BLOCKED
    mixed = fail_next(machine(fallback=("b/two",)), "blocked", touched=True)
    fail_next(mixed, "auth")
    assert end_reached(mixed) is End.FAILED


# --- hedges

OBSERVED = {"a/one": ModelHealth(ttft_p95_ms=2_000, latency_p95_ms=7_000)}


def hedged(
    pool: list[Model] | None = None,
    seen: Mapping[str, ModelHealth] = OBSERVED,
    *,
    traffic: FakeTraffic | None = None,
    whole: bool = False,
    **given: object,
) -> Machine:
    plan = decide(replace(GIVEN, **given), board(pool or POOL, dict(seen)))
    return machine_of(plan, traffic=traffic, whole=whole, hedged=True)


def racing(attempts: Machine) -> tuple[Attempt, Attempt]:
    """The first attempt, and the hedge beside it."""
    first = next_attempt(attempts)
    hedge = attempts.hedge(2.0)
    assert hedge is not None
    return first, hedge


def hedge_s(attempts: Machine, now: float = 0.0) -> float | None:
    """How long a hedge waits for the attempt that comes next."""
    return attempts.hedge_after_s(next_attempt(attempts, now))


@table(("whole", "after_s"), [(False, 2.0), (True, 7.0)])
def test_a_hedge_starts_after_the_models_observed_p95(whole: bool, after_s: float) -> None:
    assert hedge_s(hedged(whole=whole)) == after_s


def test_only_the_first_attempt_of_a_request_is_hedged() -> None:
    attempts = hedged(seen=dict.fromkeys(("a/one", "b/two"), OBSERVED["a/one"]), max_retries=1)
    assert next_model(attempts) == "a/one"
    fail_latest(attempts, "server")
    pause = attempts.next(0.0)
    assert isinstance(pause, Wait)
    assert hedge_s(attempts, pause.seconds) is None
    fail_latest(attempts, "server")
    assert hedge_s(attempts) is None


def test_a_hedge_calls_the_next_model_and_is_marked() -> None:
    attempts = hedged()
    first, hedge = racing(attempts)
    assert (hedge.number, hedge.hedge, hedge.after, hedge.restart) == (2, True, None, False)
    assert attempts.hedge_after_s(hedge) is None
    assert (first.hedge, hedge.model) == (False, "b/two")


def test_a_hedge_skips_open_circuits_and_may_be_a_probe() -> None:
    rows = [leg.row for leg in hedged().plan.legs]
    traffic = FakeTraffic({rows[1]: 10.0}, probes=[rows[2]])
    _, hedge = racing(hedged(traffic=traffic))
    assert (hedge.leg.row, hedge.probe) == (rows[2], True)
    shut = hedged(traffic=FakeTraffic(dict.fromkeys(rows[1:], 10.0)))
    next_attempt(shut)
    assert shut.hedge(2.0) is None, "nobody is called for want of another, since the first still runs"


def test_no_hedge_starts_with_too_little_time() -> None:
    traffic = FakeTraffic()
    for now, hedges in ((59.95, True), (59.951, False)):
        attempts, traffic.spare = hedged(traffic=traffic), 1
        next_attempt(attempts)
        assert (attempts.hedge(now) is not None) is hedges
    assert traffic.spare == 1, "and takes nothing from the retry budget"


def test_a_budget_for_one_attempt_allows_no_hedge() -> None:
    once = 40 * 1_000 + 1_000 * 4_000
    for budget, hedges in ((2 * once, True), (2 * once - 1, False)):
        attempts = hedged(budget_nanos=budget, max_output_tokens=1_000)
        next_attempt(attempts)
        room = attempts.room
        assert (attempts.hedge(2.0) is not None) is hedges
        assert attempts.room == room, "what is reserved is not spent"
    tokens = hedged(budget_tokens=2 * 1_040 - 1, max_output_tokens=1_000)
    next_attempt(tokens)
    assert tokens.hedge(2.0) is None


def test_a_failed_hedge_leaves_the_first_attempt_running_and_is_not_retried() -> None:
    attempts = hedged(max_retries=1)
    first, hedge = racing(attempts)
    fail_attempt(attempts, hedge, "server")
    assert attempts.end is None
    fail_attempt(attempts, first, "auth", now=4.0)
    assert next_model(attempts, 4.0) == "c/three"


def test_a_failed_first_attempt_leaves_the_hedge_running_and_is_not_retried() -> None:
    attempts = hedged(max_retries=1)
    first, hedge = racing(attempts)
    fail_attempt(attempts, first, "server")
    assert attempts.end is None
    fail_attempt(attempts, hedge, "server", now=4.0)
    pause = attempts.next(4.0)
    assert isinstance(pause, Wait)
    assert next_model(attempts, 4.0 + pause.seconds) == "b/two"
    fail_latest(attempts, "server")
    assert next_model(attempts, 5.0) == "c/three"


@table("kind", FaultKind)
@table("who", [0, 1])
def test_the_losers_outcome_changes_nothing(who: int, kind: str) -> None:
    attempts = hedged(budget_nanos=100_000_000, max_output_tokens=1_000)
    both = racing(attempts)
    succeed(attempts, both[who], Usage(40, 10))
    before = room_of(attempts).nanos
    fail_attempt(attempts, both[1 - who], kind, now=DEADLINE + 1, usage=Usage(40, 10), final=True, delivered=True)
    assert end_reached(attempts, 3.0) is End.SUCCEEDED
    assert before is not None
    assert room_of(attempts).nanos == before - 80_000, "but it is paid"


def test_the_loser_counts_as_the_worst_case_unless_counted_or_never_started() -> None:
    worst = 40 * 1_000 + 1_000 * 4_000
    for usage, touched, cost in (
        (None, True, worst),
        (Usage(40, 10), True, worst),
        (Usage(40, 10), False, 80_000),
        (None, False, 0),
    ):
        attempts = hedged(budget_nanos=100_000_000, max_output_tokens=1_000)
        first, hedge = racing(attempts)
        succeed(attempts, hedge, Usage(40, 10))
        report_usage(first, usage, final=False)
        attempts.abandon(first, touched=touched)
        assert room_of(attempts).nanos == 100_000_000 - 80_000 - cost


def test_after_a_broken_hedge_the_chain_continues_behind_it() -> None:
    attempts = hedged()
    first, hedge = racing(attempts)
    attempts.abandon(first, touched=False)
    fail_attempt(attempts, hedge, "timeout", delivered=True, touched=True)
    attempt = next_attempt(attempts, 3.0)
    assert (attempt.model, attempt.restart) == ("c/three", True)


def test_at_the_deadline_the_second_attempt_ends_the_request() -> None:
    attempts = hedged()
    first, hedge = racing(attempts)
    fail_attempt(attempts, first, "timeout", now=DEADLINE)
    assert attempts.end is None
    fail_attempt(attempts, hedge, "timeout", now=DEADLINE)
    assert end_reached(attempts, DEADLINE) is End.TIMED_OUT


@given(
    priced_pools(),
    st.none() | st.integers(1, 200_000_000),
    st.none() | st.integers(1, 40_000),
    st.none() | st.integers(1, 4_000),
    st.sampled_from([40, 5_000]) | st.integers(1, 5_000),
    st.integers(0, 2**32),
)
def test_any_order_of_events_ends_once_within_the_budget(
    pool: list[Model], budget_nanos: int | None, budget_tokens: int | None, max_output: int | None, high: int, seed: int
) -> None:
    chance = Random(seed)
    given = replace(
        GIVEN,
        tokens=TokenBounds(max(1, high // 4), high, high // 2, counted=True),
        budget_nanos=budget_nanos,
        budget_tokens=budget_tokens,
        max_output_tokens=max_output,
        max_retries=chance.randint(0, 5),
    )
    try:
        plan = decide(given, board(pool, {each.id: OBSERVED["a/one"] for each in pool}))
    except NoCandidates:
        return
    traffic = FakeTraffic(
        {leg.row: chance.choice([0.0, 1.0, 30.0, 90.0]) for leg in plan.legs}, spare=chance.randint(0, 4)
    )
    attempts = machine_of(
        plan,
        traffic=traffic,
        hedged=chance.random() < 0.7,
        on_partial=chance.choice(["restart", "error"]),
        on_refusal_fall_back=chance.random() < 0.5,
    )
    walk = Walk(attempts, chance)
    while not walk.is_over:
        walk.step()
    assert budget_nanos is None or walk.nanos <= budget_nanos
    assert budget_tokens is None or walk.tokens <= budget_tokens
    assert walk.numbers == list(range(1, len(walk.numbers) + 1))
    tries = 2 + given.max_retries  # of one model: the first, one repair, the retries; one is forced, perhaps again
    assert len(walk.numbers) <= (len(plan.legs) + 1) * tries


class Walk:
    """A host that does what the machine says and reports any outcome, even of two attempts at once."""

    def __init__(self, attempts: Machine, chance: Random) -> None:
        self.attempts = attempts
        self.chance = chance
        self.now = 0.0
        self.nanos = self.tokens = 0
        self.numbers: list[int] = []
        self.repairs: dict[int, TokenBounds] = {}
        self.running: list[Attempt] = []
        self.ended: End | None = None
        self.may_hedge = False

    @property
    def is_over(self) -> bool:
        return self.ended is not None and not self.running

    def step(self) -> None:
        self.now += self.chance.choice([0.0, 0.1, 1.0, 20.0])
        if not self.running:
            self.ask()
        elif self.may_hedge and self.ended is None and self.chance.random() < 0.6:
            hedge = self.attempts.hedge(self.now)
            self.may_hedge = False
            if hedge is not None:
                self.begin(hedge)
        elif (self.ended is not None or len(self.running) == 2) and self.chance.random() < 0.4:
            self.leave()
        else:
            self.tell()

    def ask(self) -> None:
        match self.attempts.next(self.now):
            case Attempt() as attempt:
                self.begin(attempt)
            case Wait(seconds):
                self.now += seconds
            case None:
                self.ended = self.attempts.end
                assert self.ended is not None

    def begin(self, attempt: Attempt) -> None:
        self.numbers.append(attempt.number)
        self.running.append(attempt)
        assert attempt.number == 1 or self.now <= DEADLINE
        if attempt.repair is not None:
            assert self.repairs.setdefault(attempt.place, attempt.repair) == attempt.repair, "one repair a model"
        self.may_hedge = self.attempts.hedge_after_s(attempt) is not None

    def leave(self) -> None:
        """One loses; all do once it has ended."""
        attempt = self.running.pop(self.chance.randrange(len(self.running)))
        answered = self.chance.random() < 0.7
        used = self.use(attempt) if answered else None
        counted = answered and self.chance.random() < 0.3
        report_usage(attempt, used if counted else None, final=counted)
        self.attempts.abandon(attempt, touched=answered and not counted)
        self.look()

    def tell(self) -> None:
        attempt = self.running.pop(self.chance.randrange(len(self.running)))
        kind = self.chance.choice([None, *FaultKind])
        if kind is None:
            succeed(self.attempts, attempt, self.use(attempt))
            self.look()
            return
        answered = FAULTS[kind].billed or self.chance.random() < 0.5
        used = self.use(attempt) if answered else None
        final = answered and self.chance.random() < 0.3
        part = used and Usage(self.chance.randint(0, used.input), self.chance.randint(0, used.output))
        told = used if final else self.chance.choice([None, part])
        fail_attempt(
            self.attempts,
            attempt,
            kind,
            self.now,
            usage=told,
            final=final,
            touched=answered and (told is not None or not FAULTS[kind].billed),
            delivered=answered and self.chance.random() < 0.3,
            retry_after=self.chance.choice([None, 0.0, 3.0, 1e9]),
            repair=self.chance.choice([None, TokenBounds(1, self.chance.randint(1, 5_000), 1)]),
            jitter=self.chance.random(),
        )
        self.look()

    def use(self, attempt: Attempt) -> Usage:
        """What the provider's meter says, and nobody need hear."""
        leg, repair = attempt.leg, attempt.repair
        longest = leg.length(self.attempts.plan.decision_input.tokens)[1] + (0 if repair is None else repair.high)
        most = leg.max_output if attempt.cap is None else attempt.cap
        used = Usage(self.chance.randint(1, longest), self.chance.choice([0, self.chance.randint(0, most), most]))
        used = replace(used, cached=self.chance.choice([0, self.chance.randint(0, used.input)]))
        self.nanos += usage_nanos(leg.prices, used)
        self.tokens += used.input + used.output
        return used

    def look(self) -> None:
        assert self.ended is None or self.attempts.end is self.ended
        self.ended = self.attempts.end
