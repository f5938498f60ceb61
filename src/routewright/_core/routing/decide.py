"""Decides: ``request -> constraints -> scores -> plan``, a pure function of values. Read ``decide`` first."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from operator import itemgetter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from routewright._core.money import MOST_TOKENS, nanos
from routewright._core.policy import AppliedPolicy
from routewright._core.tokens.estimate import VOCABULARIES, Vocabulary
from routewright.errors import NoCandidates
from routewright.wire import DecisionInput, Reason, TokenBounds

from .board import Board, BoardEntry
from .budget import UNLIMITED, Room, own_room
from .constraints import PASSES, REASONS, CountTokens, FitCheck, Kind, count_reasons, find_first_failures, name_reasons
from .logarithms import IntArray
from .order import Order
from .plan import BudgetColumns, Plan
from .refusal import refuse
from .scoring import Key

CHAIN_LENGTH = 3  # fallbacks besides the primary model
FRONT = 1 + CHAIN_LENGTH
WALKED_FIRST = 24  # rows to check one by one; after these, arithmetic over the whole pool is faster
_LEAST_TOKENS = 1
_FOR_EVER_MS = 1 << 53
UNPRICED = 1 << 62  # pico-dollars above every budget
_CIRCUIT_OPEN = REASONS.index(Reason.CIRCUIT_OPEN)


class Choice(Struct, frozen=True):
    """The outcome of deciding for one call."""

    plan: Plan
    own_input: DecisionInput | None
    """The decision's input. None: that of the plan's class, with the numbers of the call."""
    budget: Room | None
    """The budget of all its attempts together: the call's own, reduced to the money that is left."""


def choose(inputs: DecisionInput, board: Board, applied_policy: AppliedPolicy | None) -> Choice:
    """Decide for one call alone (``decide``)."""
    room = own_room(inputs)
    return Choice(decide(inputs, board, applied_policy), inputs, room if room != UNLIMITED else None)


def decide(inputs: DecisionInput, board: Board, applied_policy: AppliedPolicy | None = None) -> Plan:
    """Choose the models and their order. Raises ``NoCandidates`` if no model fits, ``CountTokens`` if the token bounds
    leave that open. ``applied_policy``, the policy already applied to the input, only explains a refusal."""
    # To score and check every model for every request would cost time in proportion to the catalogue. Requests of one
    # class share an order, best first, and this walks it only until it has enough: the best four, and one of another
    # provider, since a provider that is down takes all its models with it (contract 3). The walk checks the request's
    # own numbers row by row, what explains a rejection checks them later by columns;
    # ``test_the_walk_and_the_full_table_agree_on_which_models_fit`` keeps the two from drifting apart.
    # A count of tokens takes long, so most requests are decided by bounds. Where these leave open whether a model on
    # the way fits, a guess could choose another model than the count would: ``CountTokens`` asks for the count, then
    # and only then (``test_undecided_token_bounds_ask_for_a_count``).
    forecast = board.forecast
    pool = forecast.pool
    closed = forecast.open
    order = board.order(inputs)
    check = FitCheck(inputs, forecast)
    provider = pool.provider
    front: list[Key] = []
    home: str | None = None
    has_both = order.one_provider  # a second provider was met, or there is none
    length = FRONT + len(inputs.prefer)
    for key in find_fits(inputs, board, order, check):
        home = home or provider[key[-1]]
        is_other = provider[key[-1]] != home
        if is_other or len(front) < length:
            front.append(key)
        has_both = has_both or is_other
        if has_both and len(front) >= length:
            break
    if not front and closed:  # only open circuits are in the way: probe the one due soonest
        probes = [key for key in _keys(inputs, board, order) if key[-1] in closed and check.fits(key[-1])]
        front = [min(probes, key=lambda key: closed[key[-1]])] if probes else []
    if not front:
        if check.is_open:  # a refusal quotes costs, which the bounds overstate
            raise CountTokens
        error = refuse(inputs, board, order.eligible, applied_policy)
        error.decision_input = inputs
        raise error

    rows = [key[-1] for key in front]
    tried_first = max(1, len({*inputs.prefer} & {pool.ids[row] for row in rows})) if inputs.prefer else 1
    lead = rows[:tried_first]
    chain = rows[tried_first:]
    if inputs.fallback is not None:  # the caller's chain, in the caller's order
        fallbacks = [row for row in _named(inputs.fallback, inputs, board, order) if row not in lead]
        chain = [row for row in fallbacks if row not in closed and check.fits(row)]
    elif chain:  # the next best; the first from another provider, unless the lead has one
        is_mixed = tried_first > 1 and any(provider[row] != home for row in lead)
        position = next((at for at, row in enumerate(chain) if is_mixed or provider[row] != home), 0)
        chain = [chain.pop(position), *chain][:CHAIN_LENGTH]
    plan = Plan(inputs, order.legs(forecast, (*lead, *chain)), tuple(front), pool.ids)
    plan.failed = check.failed
    if closed:
        better = _rank(inputs, board, order, check, lambda row: check.failure(row) == PASSES, ())
        plan.passed = tuple(itertools.takewhile(lambda key: key[-1] in closed and key[-1] != rows[0], better))
    if inputs.prefer:
        misses = [model for model in inputs.prefer if model in pool.row and pool.row[model] not in lead]
        reasons = name_reasons(find_first_failures(inputs, check, order.eligible)) if misses else []
        plan.passed_over = tuple((model, reasons[pool.row[model]]) for model in misses)
    elif inputs.models is None and not closed and check.fits_all():
        plan.counts = order.eligible.counts
    return plan


def find_fits(inputs: DecisionInput, board: Board, order: Order, check: FitCheck) -> Iterator[Key]:
    """Keys of the rows that fit and have no open circuit, preferred ones first. Raises ``CountTokens``."""
    return _rank(inputs, board, order, check, check.fits, board.forecast.open)


def _rank(
    inputs: DecisionInput,
    board: Board,
    order: Order,
    check: FitCheck,
    fits: Callable[[int], bool],
    closed: Container[int],
) -> Iterator[Key]:
    if check.fits_all():
        ranked = walk(order.among(board.pool, inputs.models), closed, inputs.timeout_ms, None)
    else:
        ranked = walk(_affordable_first(inputs, order, check), closed, inputs.timeout_ms, fits)
    if not inputs.prefer:
        return ranked
    keys = _preferred(inputs, board, order)
    preferred = dict.fromkeys(key for key in keys if key[-1] not in closed and fits(key[-1]))
    return itertools.chain(preferred, (key for key in ranked if key not in preferred))


def find_passed(plan: Plan, inputs: DecisionInput, board: Board) -> str | None:
    """The model that would have been chosen if all circuits were closed; None if that is the chosen one."""
    keys: Sequence[Key] = plan.passed
    if plan.is_shared:  # those of the smallest request of the class
        check = FitCheck(inputs, board.forecast)
        keys = [key for key in keys if key[3] <= inputs.timeout_ms and check.failure(key[-1]) == PASSES]
    return plan.ids[keys[0][-1]] if keys else None


def _preferred(inputs: DecisionInput, board: Board, order: Order) -> list[Key]:
    """Keys of the preferred rows allowed by catalogue and whitelist, in the caller's order."""
    allowed = {*(inputs.prefer if inputs.models is None else inputs.models)}
    models = [model for model in inputs.prefer if model in allowed]
    return [order.key(board.forecast, row) for row in _named(models, inputs, board, order)]


def _named(models: Iterable[str], inputs: DecisionInput, board: Board, order: Order) -> list[int]:
    """Rows of the models a caller names, in that order, if the catalogue allows them. Includes free-tier models."""
    row_of = board.pool.row
    able = board.boards.eligible(Kind(inputs.needs, inputs.as_of, inputs.regions, is_named=True)).passed
    rows = dict.fromkeys(row_of[model] for model in models if model in row_of)
    return [row for row in rows if able[row] and order.clears(board.forecast, row)]


def _keys(inputs: DecisionInput, board: Board, order: Order) -> Iterable[Key]:
    """Keys of the rows allowed by catalogue and whitelist. Preferred rows may come twice."""
    ranked = order.among(board.pool, inputs.models)
    return itertools.chain(_preferred(inputs, board, order), ranked) if inputs.prefer else ranked


def walk(
    keys: Iterable[Key], closed: Container[int], timeout_ms: int, fits: Callable[[int], bool] | None
) -> Iterator[Key]:
    """The keys that fit (``fits`` None: all). Those expected to exceed the timeout come last, fastest first."""
    late = []
    for key in keys:
        if key[-1] in closed:
            continue
        if key[3] > timeout_ms:
            late.append(key)
        elif fits is None or fits(key[-1]):
            yield key
    late.sort(key=itemgetter(3))
    yield from (key for key in late if fits is None or fits(key[-1]))


def _affordable_first(inputs: DecisionInput, order: Order, check: FitCheck) -> Iterator[Key]:
    """Keys allowed by catalogue and whitelist; after the first few, without the clearly unaffordable."""
    keys = iter(order.among(check.forecast.pool, inputs.models))
    if check.limited and inputs.models is None:
        yield from itertools.islice(keys, WALKED_FIRST)
        if (further := next(keys, None)) is not None:
            able = check.affordable_at_best().tolist()
            yield from (key for key in (further, *keys) if able[key[-1]])
    yield from keys


def find_plan(board: Board, key: Hashable, make_input: Callable[[], DecisionInput]) -> Plan | None:
    """The plan shared by a class of requests, for the calls it ``covers``; None if each must be decided. ``key`` has
    everything the inputs of the class have in common, but no free choice of a client. ``make_input`` returns one of the
    inputs; of its tokens only the estimate matters, and its time, budgets and health do not."""
    entry = board.lineage.plans[key]
    if entry is not None and entry.version == board.version:
        return entry.value
    plan = None if entry is None else entry.value
    if entry is None or plan is None or not _holds(plan, entry.version, board):
        plan = _compile(make_input(), board)
    if entry is None or entry.version < board.version:
        board.lineage.plans.put(key, BoardEntry(board.version, plan))
    return plan


def _compile(inputs: DecisionInput, board: Board) -> Plan | None:
    """Decide for the smallest request of a class, and compute the bounds up to which the plan holds."""
    # A cached decision is the plain way, and wrong: the next request of the class may be longer, poorer or in more of a
    # hurry, and would get a model that the walk refuses. P14: same inputs, same decisions, also in the replay, which
    # knows no plans. So the plan is made for the smallest request, and carries bounds that ``covers`` compares with a
    # call's own numbers. They are the worst over everything that was walked, not over the plan's four models: a call
    # within them walks the same rows and rejects the same ones. The bounds only ever say no too often, and a call
    # beyond them is decided alone. ``test_shared_plans_equal_the_full_walk_and_the_replay`` compares both ways with the
    # replay, ``test_a_plans_budget_bounds_are_exact`` walks along the edges.
    tokens = TokenBounds(_LEAST_TOKENS, _LEAST_TOKENS, inputs.tokens.estimate)
    inputs = replace(inputs, tokens=tokens, timeout_ms=_FOR_EVER_MS, budget_nanos=None, budget_tokens=None)
    forecast = board.forecast
    pool = forecast.pool
    order = board.order(inputs)
    check = FitCheck(inputs, forecast)
    cap = inputs.max_output_tokens
    try:
        plan = decide(inputs, board)
    except NoCandidates:
        return None
    has_lists = inputs.models is not None or inputs.fallback is not None
    is_own = inputs.quality is not None or (has_lists and inputs.policy is None) or inputs.prefer
    if plan.legs[0].row in forecast.open or is_own:
        return None  # a probe, or a client's free choice
    keys = [*order.among(pool, inputs.models)]
    front = [pool.provider[key[-1]] for key in plan.front]
    if len(front) >= FRONT and (order.one_provider or len({*front}) > 1):
        plan.reached = plan.front[-1]
        keys = keys[: bisect_left(keys, plan.reached) + 1]
    walked = [key[-1] for key in keys]
    rows = [row for row in (*walked, *[leg.row for leg in plan.legs]) if row not in forecast.open and check.fits(row)]
    plan.is_shared = True
    plan.walked = len(walked)
    plan.watched = frozenset((*walked, *[pool.row[model] for model in inputs.fallback or () if model in pool.row]))
    rooms = [leg.window - (leg.output if cap is None else cap) for leg in plan.legs]
    plan.max_high = min(order.room(forecast, cap), *rooms)
    if plan.max_high < 0:
        return None  # covers no prompt
    plan.max_latency_ms = max(key[3] for key in keys if key[-1] not in forecast.open)
    prices = [pool.dearest(row, plan.max_high) for row in rows]
    plan.worst_held = max(forecast.output_p90[row] for row in rows) if cap is None else cap
    plan.worst_input = max(price.input for price in prices)
    plan.worst_output = max(check.held_output(row) * price.output for row, price in zip(rows, prices, strict=True))
    columns = find_first_failures(inputs, check, order.eligible)
    plan.counts = count_reasons(columns)
    passing = np.flatnonzero(columns >= _CIRCUIT_OPEN)
    reserve = forecast.held_output(cap)[passing]
    plan.costs = BudgetColumns(
        pool.worst.input[passing],
        np.where(pool.priced[passing], pool.worst.output[passing] * reserve, UNPRICED),
        reserve,
        columns[passing] == _CIRCUIT_OPEN,
    )
    plan.p90 = forecast.output_p90
    plan.flat_to = int(pool.first_tier[np.isin(pool.tiered, passing)].min(initial=plan.max_high))
    if not forecast.overruns.keys().isdisjoint(passing.tolist()):
        plan.flat_to = -1  # calls with a budget are decided one by one
    return plan


def _holds(plan: Plan, version: int, board: Board) -> bool:
    """True if the plan of an earlier board still holds: nothing it depends on has moved."""
    # Health changes up to four times a second, mostly in models that no plan of the class ever gets to. Compiling all
    # plans again each time would take away what they save. It is not enough, though, to watch only the models of the
    # plan: one from behind may rise above the last row walked, or lose so much room that it counts as rejected
    # now. ``test_a_plan_is_renewed_when_any_walked_model_moves``,
    # ``test_a_low_ranked_model_that_loses_room_is_counted_as_rejected``.
    change = board.find_change(version)
    if change is None or change.circuits or not change.rows.isdisjoint(plan.watched):
        return False
    order = board.order(plan.decision_input)
    cap = plan.decision_input.max_output_tokens
    if order.bar.max_latency_ms is not None:
        return not change.rows  # rows may come and go
    for row in change.rows & order.of.keys():
        if row in board.forecast.overruns:
            return False  # the same
        if plan.reached is not None and order.of[row] < plan.reached:
            return False
        if cap is None and board.forecast.pool.window[row] - board.forecast.output[row] < plan.max_high:
            return False
        if cap is None and board.forecast.output_p90[row] != plan.p90[row]:
            return False  # budgets would have to cover another amount
    return True


def pays_for_any(inputs: DecisionInput, board: Board) -> bool:
    """False if the budget certainly pays for none of the allowed models."""
    return bool((FitCheck(inputs, board.forecast).affordable_at_best() & board.pool.priced)[_rows(inputs, board)].any())


def least_nanos(inputs: DecisionInput, board: Board) -> int | None:
    """The smallest budget with which a model fits, ignoring the input's own; None if no priced model fits. Exact once
    the tokens are counted; before that an upper bound."""
    check = FitCheck(replace(inputs, budget_nanos=None), board.forecast)
    rows = [row for row in _rows(inputs, board).tolist() if board.pool.held[row] and check.failure(row) == PASSES]
    return min((nanos(check.worst_picos(row, check.high(row))) for row in rows), default=None)


def choose_vocabularies(inputs: DecisionInput, board: Board) -> Sequence[Vocabulary]:
    """The vocabularies to count tokens in: only the first if all models that may fit use it."""
    pool = board.pool
    order = board.order(inputs)
    check = FitCheck(inputs, board.forecast)
    keys = itertools.chain(_preferred(inputs, board, order), _affordable_first(inputs, order, check))
    vocabularies = {pool.measures[pool.measure[key[-1]]].tokenizer for key in keys if check.may_fit(key[-1])}
    return VOCABULARIES[:1] if vocabularies == {VOCABULARIES[0]} else VOCABULARIES


def largest_window(inputs: DecisionInput, board: Board) -> int:
    """The largest window of the models that the request may use. Without any, no prompt is too long."""
    return int(board.pool.windows[_rows(inputs, board)].max(initial=0)) or MOST_TOKENS


def exceeds_windows(inputs: DecisionInput, board: Board) -> bool:
    """True if the prompt certainly exceeds the window of every model that the request may use."""
    return inputs.tokens.low > largest_window(inputs, board)


def _rows(inputs: DecisionInput, board: Board) -> IntArray:
    """Rows allowed by catalogue and whitelist. Shape (k,)."""
    return np.array([key[-1] for key in _keys(inputs, board, board.order(inputs))], dtype=np.int64)
