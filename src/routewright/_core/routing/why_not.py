"""What would have to be true for a model to win: what keeps it out, and each change that alone would put it first.

Every change is found by deciding again with it, so what is said holds. Changes of two things at once are not sought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.attempts.health import health_snapshot
from routewright._core.money import NANOS_PER_USD, usd_text
from routewright._core.policy import Laid
from routewright.errors import NoCandidates
from routewright.wire import DecisionInput, Model, ModelHealth, PriceTier, Pricing, Reason

from .board import Board, Boards
from .constraints import Ask, failures
from .decide import decide, fitting
from .quality import MICRO, micro
from .refusal import admission, reasons_of
from .scoring import WEIGHTS

PARTS = 1_000
"""Prices and times are lowered in steps of a thousandth."""
HUNDREDTHS = 100

Lever = Literal["models", "prefer", "goal", "prices", "quality", "latency", "stability", "timeout_ms"]


class Change(Struct, frozen=True):
    """One thing that, changed alone, lets the model win."""

    what: Lever
    said: str
    """In words, with the value."""
    value: float | None = None
    """The bound: a share of the present prices, a quality, seconds, a share of calls, milliseconds."""


class WhyNot(Struct, frozen=True, kw_only=True):
    """Why a model is not chosen for a request; ``str`` tells it in a few lines."""

    model: str
    chosen: str | None
    """Who is; None: nobody fits."""
    place: int | None
    """Its place among the models that fit; None: it is rejected."""
    fitting: int
    is_preferred: bool = False
    """Who is chosen is so because the request or its policy prefers it."""
    rejected_by: tuple[Reason, ...] = ()
    """All constraints that it fails, in their order."""
    admission: str | None = None
    """What would admit it; None: it fits, or nothing that can be asked for would help."""
    wins_then: bool = False
    """It is chosen once it is admitted."""
    changes: tuple[Change, ...] = ()
    """Each alone would let it win; where it is rejected, after its admission."""

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def why_not(given: DecisionInput, board: Board, model: str, laid: Laid | None = None) -> WhyNot:
    """Ask it of a model of the catalogue and an input whose tokens are counted. ``laid`` is the policy over it.

    Takes about a tenth of a second: it decides some fifty times.
    """
    outlook = board.outlook
    row = outlook.pool.row[model]
    order, ask = board.order(given), Ask(given, outlook)
    fit = [key[-1] for key in fitting(given, board, order, ask)]
    failed = reasons_of(failures(given, ask, order.eligible)[row])
    admitted, words = given, None
    if failed:
        admitted, words = admission(given, board, row, set(failed), laid) or (given, None)
    winner = _chosen(given, board)
    hopeless = bool(failed) and words is None
    wins = not hopeless and _chosen(admitted, board) == model
    return WhyNot(
        model=model,
        chosen=winner,
        place=fit.index(row) + 1 if row in fit else None,
        fitting=len(fit),
        is_preferred=winner in given.prefer,
        rejected_by=tuple(failed),
        admission=words,
        wins_then=bool(failed) and wins,
        changes=() if hopeless or wins else tuple(_changes(admitted, board, row, laid)),
    )


def _chosen(given: DecisionInput, board: Board) -> str | None:
    try:
        return decide(given, board).legs[0].id
    except NoCandidates:
        return None


def _changes(given: DecisionInput, board: Board, row: int, laid: Laid | None) -> Iterator[Change]:
    """Every lever by itself, the caller's own first."""
    model = board.outlook.pool.models[row]
    others = tuple(each for each in given.prefer if each != model.id)
    if _chosen(replace(given, models=(model.id,), prefer=()), board) == model.id:
        said = f"models names it alone: [{model.id!r}]"
        yield Change("models", f"{said}, and prefer no other" if others else said)
    if _chosen(replace(given, prefer=(model.id, *others)), board) == model.id:
        yield Change("prefer", f"prefer names it first: {[model.id, *others]}")
    directions = [
        f"goal={goal} strategy={strategy}"
        for strategy, goals in WEIGHTS.items()
        for goal in goals
        if _chosen(replace(given, goal=goal, strategy=strategy, weights=None), board) == model.id
    ]
    if directions:
        yield Change("goal", f"{_director(laid)} asks for {', or '.join(directions)}")
    for lever in (_longer_time, _lower_prices, _higher_quality, _shorter_latency, _higher_stability):
        change = lever(given, board, model)
        if change is not None:
            yield change


def _director(laid: Laid | None) -> str:
    """Who says what matters: a policy that names any of it has the last word."""
    policy = None if laid is None else laid.published.policy
    if policy is None or (policy.goal, policy.strategy, policy.weights) == (None, None, None):
        return "the request"
    return f"policy {policy.name!r}"


def _longer_time(given: DecisionInput, board: Board, model: Model) -> Change | None:
    latency_ms = _latency_ms(given, board, model)
    if latency_ms <= given.timeout_ms or _chosen(replace(given, timeout_ms=latency_ms), board) != model.id:
        return None
    return Change("timeout_ms", f"timeout_ms is at least {latency_ms}, as long as it is expected to take", latency_ms)


def _latency_ms(given: DecisionInput, board: Board, model: Model) -> int:
    """Its expected time to the whole answer."""
    return board.order(given).key(board.outlook, board.pool.row[model.id])[3]


def _lower_prices(given: DecisionInput, board: Board, model: Model) -> Change | None:
    pool = board.outlook.pool
    listed = pool.models[pool.row[model.id]].pricing_per_1m
    if listed is None:
        return None

    def cheaper(parts: int) -> Board:
        return _board_with(board, replace(model, pricing_per_1m=_scaled(listed, parts), price_changes=None))

    parts = _most(PARTS - 1, lambda parts: _chosen(given, cheaper(parts)) == model.id)
    if parts is None:
        return None
    if not parts:
        return Change("prices", "it costs nothing", 0.0)
    price = _scaled(listed, parts)
    said = f"${_exact(price.input_usd)} in and ${_exact(price.output_usd)} out per million tokens"
    return Change("prices", f"its prices are at most {parts / 10:g} % of what they are: {said}", parts / PARTS)


def _higher_quality(given: DecisionInput, board: Board, model: Model) -> Change | None:
    pool = board.outlook.pool
    row = pool.row[model.id]
    present = int(pool.quality[row]) if given.quality is None else given.quality[row]

    def wins(lacking: int) -> bool:
        quality = (HUNDREDTHS - lacking) / HUNDREDTHS
        if given.quality is None:
            return _chosen(given, _board_with(board, replace(model, quality=quality))) == model.id
        column = (*given.quality[:row], micro(quality), *given.quality[row + 1 :])
        return _chosen(replace(given, quality=column), board) == model.id

    lacking = _most(HUNDREDTHS - 1 - present * HUNDREDTHS // MICRO, wins)
    if lacking is None:
        return None
    quality = (HUNDREDTHS - lacking) / HUNDREDTHS
    return Change("quality", f"its quality is at least {quality:.2f}, not {present / MICRO:.3g}", quality)


def _shorter_latency(given: DecisionInput, board: Board, model: Model) -> Change | None:
    outlook = board.outlook
    row = outlook.pool.row[model.id]

    def faster(parts: int) -> Board:
        ttft_ms = outlook.ttft_ms[row] * parts // PARTS
        us_per_token = outlook.us_per_token[row] * parts // PARTS
        return _board_in(board, model.id, ttft_ms=ttft_ms, us_per_token=us_per_token)

    parts = _most(PARTS - 1, lambda parts: _chosen(given, faster(parts)) == model.id)
    if parts is None:
        return None
    fast_s, slow_s = (_latency_ms(given, each, model) / 1000 for each in (faster(parts), board))
    return Change("latency", f"its answers take at most {fast_s:g} s, not {slow_s:g} s", fast_s)


def _higher_stability(given: DecisionInput, board: Board, model: Model) -> Change | None:
    present = int(board.outlook.stability[board.outlook.pool.row[model.id]])

    def wins(lacking: int) -> bool:
        return _chosen(given, _board_in(board, model.id, stability=PARTS - lacking)) == model.id

    lacking = _most(PARTS - 1 - present, wins)
    if lacking is None:
        return None
    share = (PARTS - lacking) / PARTS
    return Change("stability", f"at least {share:.1%} of its calls succeed, not {present / PARTS:.1%}", share)


def _most(most: int, wins: Callable[[int], bool]) -> int | None:
    """The largest number from 0 up with which it wins, given that smaller ones only help; None: not even 0."""
    if most < 0 or not wins(0):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if wins(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _exact(usd_per_1m: float) -> str:
    """Every digit: rounded up it would be too much."""
    return usd_text(round(usd_per_1m * NANOS_PER_USD))


def _scaled(listed: Pricing, parts: int) -> Pricing:
    """Prices lowered to so many thousandths."""

    def lower(holder: Pricing | PriceTier) -> dict[str, float]:
        prices = {name: getattr(holder, name) for name in holder.__struct_fields__ if name.endswith("_usd")}
        return {name: round(usd * parts / PARTS, 9) for name, usd in prices.items() if usd is not None}

    tiers = tuple(replace(tier, **lower(tier)) for tier in listed.tiers)
    return replace(listed, tiers=tiers, **lower(listed))


def _board_with(board: Board, changed: Model) -> Board:
    """The board of a catalogue in which one model is another."""
    return board.with_models(changed if model.id == changed.id else model for model in board.outlook.pool.models)


def _board_in(board: Board, model: str, **seen: int) -> Board:
    """The board of a health in which one model does otherwise."""
    health = board.outlook.health.models
    changed = replace(health.get(model, ModelHealth()), **seen)
    return Boards(board.outlook.pool).of(health_snapshot({**health, model: changed}))


def _lines(why: WhyNot) -> Iterator[str]:
    if why.chosen == why.model:
        yield f"{why.model} is chosen{', since it is preferred' if why.is_preferred else ''}."
        return
    chosen = f"{why.chosen}, which is preferred," if why.is_preferred else why.chosen or "nobody"
    if why.place is not None:
        yield f"{why.model} is number {why.place} of {why.fitting} models that fit; {chosen} is chosen."
    else:
        yield f"{why.model} is rejected by {', '.join(why.rejected_by)}; {chosen} is chosen."
        if why.admission is None:
            yield "No change of the request admits it."
            return
        yield f"To be considered: {why.admission}." + (" It is chosen then." if why.wins_then else "")
        if why.wins_then:
            return
    if not why.changes:
        yield "No single change puts it first."
        return
    yield "It would be chosen if, by itself,"
    yield from (f"  - {change.said}" for change in why.changes)
