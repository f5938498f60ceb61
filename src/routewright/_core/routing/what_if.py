"""What would a request have to be to be served by a model? The fewest changes that admit one, of request and policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.catalogue.prices import affordable_output
from routewright._core.money import budget_nanos, nanos, sayable
from routewright._core.policy import Laid
from routewright._core.request.rules import NUMBERS
from routewright._core.selector import Known, lacking, picking
from routewright._core.tokens.estimate import MESSAGE_TOKENS, PRIMING_TOKENS
from routewright._core.tokens.images import filling_of
from routewright.wire import Budget, DecisionInput, Need, Policy, Reason, TokenBounds

from .constraints import Ask
from .outlook import Outlook
from .pool import THINKING_TOKENS, Pool
from .scale import class_size, size_class

LEAST_INPUT = PRIMING_TOKENS + MESSAGE_TOKENS + 1
"""No prompt is shorter."""
LEAST_OUTPUT = 16
"""No shorter answer is suggested: it would be none."""

PARTS_OF_NEEDS = {
    Need.IMAGE: Need.IMAGE_URL,
    Need.TOOLS: Need.TOOL_CHOICE,
    Need.JSON: Need.JSON_OBJECT | Need.JSON_SCHEMA,
}
"""What needs make no sense without."""
_FIXED = {Reason.DEPRECATED, Reason.PROVIDER_UNAVAILABLE}
"""Reasons that no change of the request removes."""
_CHANGEABLE = (
    "models",
    "regions",
    "needs",
    "min_quality",
    "max_output_tokens",
    "tokens",
    "max_latency_ms",
    "budget_tokens",
    "budget_nanos",
)
_MOST_MS = NUMBERS[Policy]["max_latency_ms"].high
_POLICYS = {"regions", "min_quality", "max_latency_ms"}
"""What a policy alone can ask for."""


class Ruling(NamedTuple):
    """The policy that was laid over a request, and the models that its words pick from."""

    laid: Laid
    known: Known

    @property
    def policy(self) -> Policy:
        """As its author wrote it."""
        return self.laid.published.policy

    def forbids(self, model: str) -> bool:
        """Whether it is not among the models that the policy allows."""
        models = self.laid.published.models
        return models is not None and model not in models


class Obstacles(NamedTuple):
    """What of a policy's choice of models keeps one out."""

    excluding: list[str]
    """Words of ``exclude`` that pick it."""
    lacking: list[str]
    """Capabilities that it has not."""
    unpicked: bool
    """No word of ``models`` picks it."""


class Way(NamedTuple):
    """What a request would have to be to admit one model."""

    model: str
    given: DecisionInput
    changes: tuple[str, ...]
    """Fields of the input that differ, in the order of the questions they answer."""
    outside: frozenset[str]
    """Those of them in which the policy is in the way, too."""
    obstacles: Obstacles | None
    """What in the policy to change for ``models``; None: nothing."""
    effort: tuple[bool, bool, bool, bool, int, int, int, int, int]
    """How much it asks: first of all no breaker to close, no other policy, nor the free tier, nor others than were
    named; then few changes, to be near to the floor and the ceiling, and little money."""


def ways_of(given: DecisionInput, outlook: Outlook, reasons: Iterable[set[Reason]], ruling: Ruling) -> list[Way]:
    """Every model that some change would admit, with that change. ``reasons``: all of each row."""
    ways = [way_of(given, outlook, row, why, ruling) for row, why in enumerate(reasons)]
    return [way for way in ways if way is not None]


def way_of(given: DecisionInput, outlook: Outlook, row: int, reasons: set[Reason], ruling: Ruling) -> Way | None:
    """The best way for one row of what its window and the limits leave open; None: there is none."""
    pool = outlook.pool
    if reasons & _FIXED or pool.disabled[row]:
        return None
    named = _made_eligible(given, outlook, row, reasons)
    ways = [
        _as_way(given, limited, outlook, row, ruling)
        for fitted in _fit_window(named, outlook, row)
        for limited in _fit_limits(fitted, outlook, row)
    ]
    return min(ways, key=lambda way: way.effort[:5], default=None)  # of equals the first, which asks for no less output


def _as_way(given: DecisionInput, changed: DecisionInput, outlook: Outlook, row: int, ruling: Ruling) -> Way:
    pool, model, ask = outlook.pool, outlook.pool.ids[row], Ask(changed, outlook)
    changes = tuple(name for name in _CHANGEABLE if _value(name, given) != _value(name, changed))
    outside = _outside(changed, model, ruling).intersection(changes)
    obstacles = _obstacles(pool, row, ruling) if "models" in outside else None
    named, asked = "models" in changes, ruling.laid.asked
    count = len(changes) + max(0, len(dropped_needs(given, changed)) - 1)
    if obstacles is not None:
        count += sum(map(bool, obstacles)) - (asked is None or model in asked)
    worst = ask.worst_picos(row, ask.high(row)) if pool.prices[row] else 0
    free = named and bool(pool.free_tier[row])
    effort = (row in outlook.open, bool(outside), free, named, count, *_departure(given, changed), worst, row)
    return Way(model, changed, changes, outside, obstacles, effort)


def _departure(given: DecisionInput, changed: DecisionInput) -> tuple[int, int]:
    """How far below the floor of quality, and how many milliseconds over the ceiling."""
    below = (given.min_quality or 0) - (changed.min_quality or 0)
    if changed.max_latency_ms == given.max_latency_ms:
        return below, 0
    return below, (changed.max_latency_ms or int(_MOST_MS)) - (given.max_latency_ms or 0)


def _value(name: str, given: DecisionInput) -> object:
    """A field of the input; images go with ``needs``, which says that there are some."""
    return replace(given.tokens, images=()) if name == "tokens" else getattr(given, name)


def _outside(changed: DecisionInput, model: str, ruling: Ruling) -> frozenset[str]:
    """Fields that the policy has to change, too, to let the request have its way."""
    budget, outside = ruling.policy.budget or Budget(), set(_POLICYS)
    cost, tokens = changed.budget_nanos, changed.budget_tokens
    if ruling.forbids(model):
        outside.add("models")
    if budget.max_cost_usd is not None and (cost is None or cost > budget_nanos(budget.max_cost_usd)):
        outside.add("budget_nanos")
    if budget.max_tokens is not None and (tokens is None or tokens > budget.max_tokens):
        outside.add("budget_tokens")
    return frozenset(outside)


def _obstacles(pool: Pool, row: int, ruling: Ruling) -> Obstacles:
    policy, model = ruling.policy, pool.models[row]
    excluding, missing = picking(policy.exclude or (), model, ruling.known), lacking(policy, model)
    words = picking(policy.models or (), model, ruling.known)
    unpicked = policy.models is not None
    if model.free_tier:  # is picked by its name alone, wherever there is a choice
        words = [word for word in words if ruling.known.named(word) is not None]
        others = len(policy.exclude or ()) > len(excluding) or len(policy.capabilities or ()) > len(missing)
        unpicked |= others or ruling.laid.asked is None
    return Obstacles(excluding, missing, unpicked and not words)


def _made_eligible(given: DecisionInput, outlook: Outlook, row: int, reasons: set[Reason]) -> DecisionInput:
    """Name the model where it has to be named, and ask for nothing that it lacks."""
    pool, models, floor = outlook.pool, given.models, given.min_quality
    if reasons & {Reason.WHITELIST, Reason.DISABLED}:  # the free tier is routed to where it is named
        # those preferred and the fallbacks have to be on a whitelist, too
        listed = given.models or (*given.prefer, *(given.fallback or ()))
        models = tuple(dict.fromkeys((*listed, pool.ids[row])))
    served = pool.models[row].availability.regions
    quality = int(pool.quality[row]) if given.quality is None else given.quality[row]
    seeing = given if int(pool.able[row]) & Need.IMAGE else _without_images(given)
    return replace(
        seeing,
        models=models,
        regions=tuple(region for region in given.regions if region in served),
        needs=_consistent(_able_needs(seeing.needs, int(pool.able[row]))),
        min_quality=None if floor is None else min(floor, quality),
    )


def _fit_window(given: DecisionInput, outlook: Outlook, row: int) -> Iterator[DecisionInput]:
    """As it is, with less output, with a shorter input, or with both, with its images or without: what the window
    holds."""
    ask, asked = Ask(given, outlook), given.max_output_tokens
    room, window, most = ask.room(row), outlook.pool.window[row], outlook.pool.max_output[row]
    wanted = outlook.output[row] if asked is None else asked
    if wanted <= room and (asked is None or asked <= most):
        yield given
        return
    if asked is not None and min(asked, most, max(room, 0)) >= min(asked, most, LEAST_OUTPUT):
        yield replace(given, max_output_tokens=min(asked, most, room))
    if asked is None or asked <= most:
        yield from _shortened(given, outlook.pool, row, window - wanted)
    if asked is not None:
        output = min(asked, most, window // 2)
        yield from _shortened(replace(given, max_output_tokens=output), outlook.pool, row, window - output)
    elif room >= LEAST_OUTPUT:
        yield replace(given, max_output_tokens=min(most, room))
    if given.needs & Need.IMAGE:
        yield from _fit_window(_without_images(given), outlook, row)


def _shortened(given: DecisionInput, pool: Pool, row: int, tokens: int) -> Iterator[DecisionInput]:
    """An input of so many tokens, its images included, if these leave room for a text."""
    images = filling_of(given.tokens.images, pool.measures[pool.measure[row]].images)
    if tokens >= LEAST_INPUT + images:
        yield replace(given, tokens=TokenBounds(tokens, tokens, tokens, counted=True))


def _without_images(given: DecisionInput) -> DecisionInput:
    return replace(given, needs=_consistent(given.needs & ~int(Need.IMAGE)), tokens=replace(given.tokens, images=()))


def _consistent(needs: int) -> int:
    """Without images none has an address, without tools none is demanded, and JSON of no kind is none."""
    for whole, part in PARTS_OF_NEEDS.items():
        if not needs & whole:
            needs &= ~int(part)
    return needs


def _able_needs(needs: int, able: int) -> int:
    """What a model can do of what is asked for. It takes no JSON of another kind instead."""
    lacks_kind = needs & ~able & (Need.JSON_OBJECT | Need.JSON_SCHEMA)
    return needs & able & ~(int(Need.JSON) if lacks_kind else 0)


def dropped_needs(given: DecisionInput, changed: DecisionInput) -> list[Need]:
    """What need not be asked for any more, without what goes with another."""
    dropped = Need(given.needs & ~changed.needs)
    for whole, part in PARTS_OF_NEEDS.items():
        if dropped & whole:
            dropped &= ~part
    return list(dropped)


def _fit_limits(given: DecisionInput, outlook: Outlook, row: int) -> Iterator[DecisionInput]:
    """Larger limits; or less output, as one of them allows, and larger ones where that does not do."""
    raised = _raised(given, outlook, row)
    yield raised
    if raised is given:
        return
    ask = Ask(given, outlook)
    most = min(given.max_output_tokens or outlook.pool.max_output[row], ask.room(row), outlook.pool.max_output[row])
    for output in _outputs(given, ask, row):
        if least_output(outlook.pool, row) <= output <= most and output != given.max_output_tokens:
            yield _raised(replace(given, max_output_tokens=output), outlook, row)


def least_output(pool: Pool, row: int) -> int:
    """The shortest answer that is suggested for the sake of a limit. Less than a model thinks would leave no words."""
    return LEAST_OUTPUT + (THINKING_TOKENS if pool.models[row].reasoning else 0)


def _outputs(given: DecisionInput, ask: Ask, row: int) -> Iterator[int]:
    """The longest answer that each limit allows."""
    outlook, high = ask.outlook, ask.high(row)
    if given.budget_tokens is not None:
        yield given.budget_tokens - high
    if given.budget_nanos is not None and outlook.pool.prices[row]:
        yield affordable_output(outlook.pool.dearest(row, high), high, given.budget_nanos)
    if given.max_latency_ms is not None:
        yield outlook.output_within(row, given.max_latency_ms)


def _raised(given: DecisionInput, outlook: Outlook, row: int) -> DecisionInput:
    """Limits as high as the model needs them."""
    ask = Ask(given, outlook)
    high, cap, ceiling = ask.high(row), given.max_output_tokens, given.max_latency_ms
    tokens, latency = (
        high + ask.held_output(row),
        outlook.expected_ms(row, None if cap is None else class_size(size_class(cap))),
    )
    worst = nanos(ask.worst_picos(row, high))
    raised: dict[str, int | None] = {}
    if ceiling is not None and latency > ceiling:
        raised["max_latency_ms"] = latency if latency <= _MOST_MS else None
    if given.budget_tokens is not None and tokens > given.budget_tokens:
        raised["budget_tokens"] = tokens
    if given.budget_nanos is not None and worst > given.budget_nanos:
        raised["budget_nanos"] = sayable(worst) if outlook.pool.prices[row] else None
    return replace(given, **raised) if raised else given
