"""Explains why no model fits, and finds the smallest change of request and policy that admits one (contract 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from msgspec.structs import replace

from routewright._core.catalogue.prices import affordable_output
from routewright._core.model_selector import ModelIndex, find_missing, match_words
from routewright._core.money import budget_nanos, nanos, sayable
from routewright._core.policy import AppliedPolicy
from routewright._core.request.rules import NUMBERS
from routewright._core.tokens.estimate import MESSAGE_TOKENS, PRIMING_TOKENS, length
from routewright.errors import BudgetExceeded, NoCandidates
from routewright.wire import Budget, DecisionInput, Need, Policy, PolicySnapshot, Reason
from routewright.wire.money import usd_text
from routewright.wire.problems import BOTH, listed

from .board import Board
from .constraints import REASONS, Eligible, FitCheck, count_reasons, find_failures, find_first_failures, name_reasons
from .forecast import USUAL, Forecast
from .logarithms import BoolArray, class_size, size_class
from .pool import THINKING, THINKING_TOKENS, Pool
from .quality import quality_text

LEAST_INPUT = PRIMING_TOKENS + MESSAGE_TOKENS + 1  # tokens of the shortest prompt
LEAST_OUTPUT = 16  # the shortest answer worth suggesting
USUAL_OUTPUT = 4_096  # assumed where a request sets no output cap, to measure how much a lower cap loses
NAMED = 4  # for whitelists up to this length the message lists each model

_NO_POLICY = PolicySnapshot("", "", Policy(name=""))
_FIXED = {Reason.DEPRECATED, Reason.PROVIDER_UNAVAILABLE}  # no change of the request removes these
_BUDGET = {Reason.BUDGET_COST, Reason.BUDGET_TOKENS}
_BESIDE_TOOLS = Need.REASONING_TOOLS | Need.REASONING_TOOL_CHOICE | Need.TOOLS_STOP
_PARTS_OF_NEEDS = {  # needs that are dropped with another
    Need.IMAGE: Need.IMAGE_URL | Need.HTTP_URL,
    Need.IMAGE_URL: Need.HTTP_URL,
    Need.FILE: Need.FILE_URL,
    Need.STOP: Need.TOOLS_STOP,
    Need.SEED: Need.TOOLS_STOP,
    Need.TOOLS: Need.TOOL_CHOICE | Need.SERIAL_TOOLS | _BESIDE_TOOLS,
    Need.TOOL_CHOICE: Need.REASONING_TOOL_CHOICE,
    Need.REASONING: THINKING & ~Need.REASONING,
    Need.JSON: Need.JSON_OBJECT | Need.JSON_SCHEMA,
}
_URLS = Need.IMAGE_URL | Need.FILE_URL
_NO_NEED = {
    Need.IMAGE: "send no images",
    Need.TOOLS: "declare no tools",
    Need.TOOL_CHOICE: "drop tool_choice",
    Need.JSON: "drop params.response_format",
    Need.TEMPERATURE: "drop params.temperature",
    Need.TOP_P: "drop params.top_p",
    Need.STOP: "drop params.stop",
    Need.SEED: "drop params.seed",
    Need.TOOLS_STOP: "drop params.stop and params.seed",
    Need.AUDIO: "send no audio",
    Need.FILE: "send no files",
    Need.SERIAL_TOOLS: "drop params.parallel_tool_calls",
    Need.REASONING: "drop params.reasoning",
    Need.NO_REASONING: "drop params.reasoning",
    Need.REASONING_TOKENS: "set params.reasoning to an effort instead of max_tokens",
    Need.HTTP_URL: "use https:// for images",
}
_NOT_BESIDE = " (no tools beside thinking here; OpenAI and Azure have both over the Responses API, with api='auto')"
_MILLION = 10**6
_MOST_MS = int(NUMBERS[Policy]["max_latency_ms"].high)


class ChangeSize(NamedTuple):
    """The size of a change, compared field by field. The smallest change is suggested."""

    open_circuit: bool
    of_policy: bool
    """The policy must change, too."""
    free_offer: bool
    """The request must name a free-tier model."""
    named: bool
    """The request must name the model."""
    changes: int
    needs: int
    """Number of abilities given up."""
    quality: int
    late_ms: int
    lost: int
    """Millionths of the input plus millionths of the output."""
    tokens: int
    """Added to the token budget."""
    picos: int
    """The cost the budget must cover."""
    row: int


class Amendment(NamedTuple):
    """A change of request and policy that admits one model."""

    model: str
    decision_input: DecisionInput
    words: tuple[str, ...]
    """One phrase per change."""
    effort: ChangeSize


def refuse(
    inputs: DecisionInput, board: Board, eligible: Eligible, applied_policy: AppliedPolicy | None
) -> NoCandidates:
    """The error for a request that no model fits. ``applied_policy`` is the policy already applied to it."""
    search = Search(inputs, board, applied_policy)
    check = FitCheck(inputs, board.forecast)
    pool = board.forecast.pool
    columns = find_first_failures(inputs, check, eligible)
    firsts = name_reasons(columns)
    reasons = [set(reasons_of(row)) for row in find_failures(inputs, check, eligible)]
    models = inputs.models or search.request_models  # the policy may exclude all models of the request
    rows = [pool.row[model] for model in (pool.ids if models is None else models) if model in pool.row]
    unserved = ""
    rejections = ", ".join(f"{count} {reason}" for reason, count in count_reasons(columns[rows]).items()) or "none"
    if inputs.models is not None and not inputs.models:
        rejections = f"all, since {search.by} allows none of the request's models"
    elif inputs.models is not None and len(inputs.models) <= NAMED:
        ends = {row: f" since {pool.models[row].deprecated_at}" for row in rows if firsts[row] is Reason.DEPRECATED}
        of_both = (Reason.TOOLS, Reason.PARAMS if inputs.needs & Need.REASONING_TOOLS else Reason.TOOLS)
        for row in rows:
            if firsts[row] in of_both and "reasoning_tools" in (pool.models[row].unsupported or ()):
                ends[row] = _NOT_BESIDE
        rejections = ", ".join(f"{pool.ids[row]} {firsts[row]}{ends.get(row, '')}" for row in rows)
        absent = [pool.models[row].provider for row in rows if firsts[row] is Reason.PROVIDER_UNAVAILABLE]
        if providers := [name for name in dict.fromkeys(absent) if name in board.boards.variables]:
            variables = " and ".join(board.boards.variables[name] for name in providers)
            unserved = f"set {variables} in the environment to use the models of {' and '.join(providers)}"
    amendments = filter(None, (search.find_amendment(row, why) for row, why in enumerate(reasons)))
    amendment = min(amendments, key=lambda amendment: amendment.effort, default=None)
    if amendment is None:
        suggestion = f"no change of the request helps: {unserved or 'configure a provider or enable a model'}"
    else:
        suggestion = f"{' and '.join(amendment.words)} to admit {amendment.model}" + (unserved and f"; or {unserved}")
    error = BudgetExceeded if any(why <= _BUDGET for why in reasons) else NoCandidates
    models_text = f"{len(rows)} {'requested' if search.request_models else 'considered'}"
    return error(
        f"no model fits: {models_text}, rejected: {rejections}; {suggestion}",
        detail={
            "rejected_candidates": [
                {"model": pool.ids[row], "reason": str(firsts[row]), "estimated_cost_usd": check.worst_usd(row)}
                for row in rows
            ],
            "suggestion": suggestion,
        },
    )


def find_admission(
    inputs: DecisionInput, board: Board, row: int, reasons: set[Reason], applied_policy: AppliedPolicy | None
) -> tuple[DecisionInput, str] | None:
    """The changed input that admits one row, and the change in words. None if no change does."""
    amendment = Search(inputs, board, applied_policy).find_amendment(row, reasons)
    if amendment is None:
        return None
    words = " and ".join(amendment.words).removesuffix(",")
    if (probe_at_ms := board.forecast.open.get(row)) is not None:
        at = datetime.fromtimestamp(probe_at_ms / 1000, UTC).strftime("%H:%M:%S UTC")
        words = f"{words} and " if words else ""
        words += f"wait until {at}, when its circuit allows a probe call"
    return amendment.decision_input, words


def reasons_of(row: BoolArray) -> list[Reason]:
    """The constraints that fail in one row of ``find_failures``, in order."""
    return [reason for reason, fails in zip(REASONS, row.tolist(), strict=True) if fails]


class Search:
    """Searches for the smallest change of a request that a model can serve. Builds inputs that fit, then compares
    their ``ChangeSize``."""

    def __init__(self, inputs: DecisionInput, board: Board, applied_policy: AppliedPolicy | None) -> None:
        self.decision_input = inputs
        self.forecast: Forecast = board.forecast
        self.known = ModelIndex(board.pool.models, board.boards.aliases)
        self.published, self.request_models = (applied_policy or AppliedPolicy(_NO_POLICY, inputs.models))[:2]
        self.policy = self.published.policy
        self.by = f"policy {self.policy.name!r}" if self.policy.name else "the policy"
        self.by = f"class {inputs.policy_class!r} of {self.by}" if inputs.policy_class else self.by

    def find_amendment(self, row: int, reasons: set[Reason]) -> Amendment | None:
        """The best amendment to admit one row; None if there is none."""
        if reasons & _FIXED or self.forecast.pool.disabled[row]:
            return None
        inputs = self.decision_input
        pool = self.forecast.pool
        models = inputs.models
        abilities = int(pool.able[row])
        if reasons & {Reason.WHITELIST, Reason.DISABLED}:  # a free-tier model must be named
            # a new whitelist must include the preferred models and fallbacks
            models = tuple(dict.fromkeys((*(models or (*inputs.prefer, *(inputs.fallback or ()))), pool.ids[row])))
        needs = inputs.needs & abilities
        if _without_dependent(inputs.needs & ~abilities, ~abilities) & (THINKING & ~Need.REASONING_TOKENS):
            needs &= ~int(Need.REASONING)  # the model excludes some combination with reasoning: give up reasoning
        if inputs.needs & ~abilities & Need.CALLER_URL:
            needs &= ~int(_URLS)  # nothing is sent by URL then
        if inputs.needs & ~abilities & (Need.JSON_OBJECT | Need.JSON_SCHEMA):
            needs &= ~int(Need.JSON)  # one JSON format does not replace the other
        quality = int(pool.quality[row]) if inputs.quality is None else inputs.quality[row]
        variant = replace(
            inputs,
            models=models,
            regions=tuple(region for region in inputs.regions if region in pool.models[row].availability.regions),
            needs=_without_dependent(needs, ~needs),
            min_quality=None if inputs.min_quality is None else min(inputs.min_quality, quality),
        )
        start = _without(variant, inputs.needs & ~abilities)
        starts = [start, _without(start, int(Need.IMAGE))] if start.needs & Need.IMAGE else [start]
        amendments: list[Amendment] = []
        for start in starts:
            for fitted in _fit_window(start, self.forecast, row):
                for limited in _fit_limits(fitted, self.forecast, row):
                    amendments.append(amendment := self.as_amendment(row, limited))
                    effort = amendment.effort
                    if effort.changes <= 1 and not (effort.of_policy or effort.needs or effort.lost):
                        return amendment  # no other change is smaller
        return min(amendments, key=lambda amendment: amendment.effort, default=None)

    def as_amendment(self, row: int, variant: DecisionInput) -> Amendment:
        """The amendment that a changed input stands for, with its words and effort."""
        inputs = self.decision_input
        check = FitCheck(variant, self.forecast)
        is_named = variant.models != inputs.models
        words = [*self._words(row, variant)]
        late_ms = loss = 0
        if variant.max_latency_ms != inputs.max_latency_ms:
            late_ms = (variant.max_latency_ms or _MOST_MS) - (inputs.max_latency_ms or 0)
        if variant.tokens.high != inputs.tokens.high:
            loss += _MILLION - check.input(row)[2] * _MILLION // self._present(row, variant)
        if variant.max_output_tokens is not None:
            loss += _MILLION - variant.max_output_tokens * _MILLION // (inputs.max_output_tokens or USUAL_OUTPUT)
        effort = ChangeSize(
            row in self.forecast.open,
            any(of_policy for _, of_policy in words),
            is_named and bool(self.forecast.pool.free_tier[row]),
            is_named,
            len(words),
            (inputs.needs & ~variant.needs).bit_count(),
            (inputs.min_quality or 0) - (variant.min_quality or 0),
            late_ms,
            loss,
            (variant.budget_tokens or 0) - (inputs.budget_tokens or 0),
            check.worst_picos(row, check.high(row)) if self.forecast.pool.held[row] else 0,
            row,
        )
        return Amendment(self.forecast.pool.ids[row], variant, tuple(phrase for phrase, _ in words), effort)

    def _words(self, row: int, variant: DecisionInput) -> Iterator[tuple[str, bool]]:
        """For each changed field, the phrase and whether the policy must change."""
        inputs = self.decision_input
        by = self.by
        limits = self.policy.budget or Budget()
        if variant.models != inputs.models:
            yield from self._naming(row, variant)
        if variant.regions != inputs.regions:
            dropped = [region for region in inputs.regions if region not in variant.regions]
            yield f"drop {', '.join(dropped)} from the regions of {by}", True
        lost = inputs.needs & ~variant.needs
        lost = _without_dependent(lost, lost)
        for need in Need(lost & ~int(Need.CALLER_URL)):
            if not need & _URLS:
                yield _NO_NEED[need], False
            elif not lost & _URLS & (need - 1):  # the first of the two stands for both
                yield self._words_for_data(row, lost), False
        if variant.min_quality != inputs.min_quality:
            yield f"lower min_quality of {by} to {quality_text(variant.min_quality or 0)}", True
        if variant.max_output_tokens != inputs.max_output_tokens:
            verb = "set" if inputs.max_output_tokens is None else "lower"
            yield f"{verb} params.max_output_tokens to {variant.max_output_tokens}", False
        if variant.tokens.high != inputs.tokens.high:
            left = FitCheck(variant, self.forecast).input(row)[2]
            yield f"shorten the input from {self._present(row, variant)} to {left} tokens", False
        if (latency_ms := variant.max_latency_ms) != inputs.max_latency_ms:
            if latency_ms is None:
                yield f"drop max_latency_ms of {by}", True
            else:
                yield f"raise max_latency_ms of {by} to {latency_ms}", True
        if (tokens := variant.budget_tokens) != inputs.budget_tokens:
            also = limits.max_tokens is not None and (tokens is None or tokens > limits.max_tokens)
            yield f"raise {BOTH['budget.max_tokens']} to {tokens}{f', also in {by},' if also else ''}", also
        if (cost := variant.budget_nanos) != inputs.budget_nanos:
            most = None if limits.max_cost_usd is None else budget_nanos(limits.max_cost_usd)
            also = most is not None and (cost is None or cost > most)
            phrase = "drop budget.max_cost_usd (or give the model a price: none is known)"
            if cost is not None:
                phrase = f"raise {BOTH['budget.max_cost_usd']} to {usd_text(cost)}"
            yield f"{phrase}{f', also in {by},' if also else ''}", also

    def _words_for_data(self, row: int, lost: int) -> str:
        """The change from URLs to data, or of the provider if it is one that may not fetch them."""
        files = "images" if lost & Need.IMAGE_URL else "files"
        if lost & _URLS == _URLS:
            files = "images and files"
        if int(self.forecast.pool.able[row]) & Need.CALLER_URL:
            return f"send {files} as data: URLs"
        if self.decision_input.needs & Need.CALLER_URL:  # who reads this cannot change the provider
            return f'send {files} as data: URLs, or have the owner of the service set fetches_urls to "callers",'
        return f"send {files} as data: URLs, or make the provider with fetches_urls=True if its API takes URLs,"

    def _present(self, row: int, variant: DecisionInput) -> int:
        """Input tokens that fill a row's window now, without the attachments the change drops."""
        inputs = _without(self.decision_input, self.decision_input.needs & ~variant.needs)
        return FitCheck(inputs, self.forecast).input(row)[2]

    def _naming(self, row: int, variant: DecisionInput) -> Iterator[tuple[str, bool]]:
        """The changes that select the model: naming it in the request or policy, and dropping policy exclusions."""
        model = self.forecast.pool.models[row]
        policy = self.policy
        by = self.by
        if self.decision_input.models is None:
            yield f"set 'models' to {list(variant.models or ())}", False
        elif self.request_models is not None and model.id not in self.request_models:
            yield f"add {model.id!r} to 'models'", False
        if self.published.models is None or model.id in self.published.models:
            return
        excluding = match_words(policy.exclude or (), model, self.known)
        missing = find_missing(policy, model)
        includes = match_words(policy.models or (), model, self.known)
        is_unlisted = policy.models is not None
        if model.free_tier:  # picked only by its name, not by a pattern
            includes = [word for word in includes if self.known.find(word) is not None]
            others = len(policy.exclude or ()) > len(excluding) or len(policy.capabilities or ()) > len(missing)
            is_unlisted |= others or (self.request_models is None and model.id not in self.decision_input.prefer)
        if is_unlisted and not includes:
            if policy.models is None:
                yield f"set models of {by} to {[model.id]}", True
            else:
                yield f"add {model.id!r} to models of {by}", True
        if excluding:
            yield f"drop {listed(excluding)} from exclude of {by}", True
        if missing:
            yield f"drop {listed(missing)} from capabilities of {by}", True


def _without(inputs: DecisionInput, lost_needs: int) -> DecisionInput:
    """The input without the images, files or audio whose needs are in ``lost_needs``."""
    lost_needs &= Need.IMAGE | Need.FILE | Need.AUDIO
    if not lost_needs:
        return inputs
    images = tuple(
        image
        for image in inputs.tokens.images
        if (image.tokens and image.most) or not lost_needs & (Need.FILE | Need.AUDIO if image.tokens else Need.IMAGE)
    )
    needs = _without_dependent(inputs.needs & ~lost_needs, lost_needs)
    return replace(inputs, needs=needs, tokens=replace(inputs.tokens, images=images))


def _without_dependent(needs: int, lost_needs: int) -> int:
    """``needs`` without those that depend on a lost one, such as ``IMAGE_URL`` on ``IMAGE``, and without ``CALLER_URL``
    if no URL is left."""
    for whole, part in _PARTS_OF_NEEDS.items():
        if lost_needs & whole:
            needs &= ~int(part)
    return needs if needs & _URLS else needs & ~int(Need.CALLER_URL)


def _fit_window(inputs: DecisionInput, forecast: Forecast, row: int) -> Iterator[DecisionInput]:
    """The input itself if it fits the window; else variants with less output, shorter input, or both."""
    cap = inputs.max_output_tokens
    room = FitCheck(inputs, forecast).room(row)
    window = forecast.pool.window[row]
    maximum = forecast.pool.max_output[row]
    output = forecast.output[row] if cap is None else cap
    if output <= room and (cap is None or cap <= maximum):
        yield inputs
        return
    ceiling = maximum if cap is None else min(cap, maximum)
    least = min(ceiling, room)
    shapes: list[tuple[int | None, int | None]] = [(least, None)] if least >= min(ceiling, LEAST_OUTPUT) else []
    if cap is None:
        shapes.insert(0, (None, window - output))
    else:
        half = min(ceiling, window // 2)
        shapes += [(cap, window - cap)] if cap <= maximum else []
        shapes += [(half, window - half)]
    for output_tokens, tokens in shapes:
        variant = replace(inputs, max_output_tokens=output_tokens)
        cut = variant if tokens is None else _cut(variant, forecast, row, tokens, 2)
        if cut is not None:
            yield cut


def _cut(
    inputs: DecisionInput, forecast: Forecast, row: int, tokens: int, figure: Literal[1, 2]
) -> DecisionInput | None:
    """The input cut to ``tokens``, measured by this field of its ``Length``; None if no text would be left."""
    measure = forecast.pool.measures[forecast.pool.measure[row]]
    text = replace(inputs.tokens, images=())
    total = length(text, measure)[figure]
    part = tokens - (length(inputs.tokens, measure)[figure] - total)
    if not LEAST_INPUT <= part < total:
        return None
    counts = {name: getattr(text, name) for name in ("low", "high", "estimate", "o200k", "cl100k", "single")}
    cut = replace(text, **{name: count and count * part // total for name, count in counts.items()})
    if length(cut, measure)[2] < LEAST_INPUT:  # the expected length may lie far below the bound that was cut
        return None
    return replace(inputs, tokens=replace(cut, images=inputs.tokens.images))


def _fit_limits(inputs: DecisionInput, forecast: Forecast, row: int) -> Iterator[DecisionInput]:
    """Variants that fit the budgets and latency limit: raised limits, or less output or input, then raised limits."""
    raised = _raised(inputs, forecast, row)
    yield raised
    if raised is inputs:
        return
    pool = forecast.pool
    check = FitCheck(inputs, forecast)
    high = check.high(row)
    outputs = []
    affordable = high  # input tokens the budgets cover beside the output
    if inputs.budget_tokens is not None:
        outputs.append(inputs.budget_tokens - high)
        affordable = min(high, inputs.budget_tokens - check.held_output(row))
    if check.budget_picos is not None:
        lengths = range(1, affordable + 1)
        affordable = bisect_right(lengths, check.budget_picos, key=lambda tokens: check.worst_picos(row, tokens))
    if inputs.budget_nanos is not None and pool.held[row]:
        outputs.append(affordable_output(pool.dearest(row, high), high, inputs.budget_nanos))
    if inputs.max_latency_ms is not None:
        outputs.append(forecast.output_within(row, inputs.max_latency_ms, inputs.workload or USUAL))
    maximum = min(inputs.max_output_tokens or pool.max_output[row], check.room(row), pool.max_output[row])
    for output in outputs:
        if least_output(pool, row) <= output <= maximum and output != inputs.max_output_tokens:
            yield _raised(replace(inputs, max_output_tokens=output), forecast, row)
    shorter = _cut(inputs, forecast, row, affordable, 1)
    if shorter is not None:
        yield _raised(shorter, forecast, row)


def least_output(pool: Pool, row: int) -> int:
    """The smallest output cap to suggest; a reasoning model needs room for its reasoning as well."""
    thinks = pool.models[row].reasoning and row not in pool.quiet
    return LEAST_OUTPUT + (pool.dials.thought(THINKING_TOKENS) if thinks else 0)


def _raised(inputs: DecisionInput, forecast: Forecast, row: int) -> DecisionInput:
    """The input with its limits raised to what the model needs."""
    check = FitCheck(inputs, forecast)
    high = check.high(row)
    tokens = sum(check.billed(row, high))
    worst_nanos = nanos(check.worst_picos(row, high))
    cap = None if inputs.max_output_tokens is None else class_size(size_class(inputs.max_output_tokens))
    latency_ms = forecast.expected_ms(row, cap, inputs.workload or USUAL)
    limits: dict[str, int | None] = {}
    if inputs.max_latency_ms is not None and latency_ms > inputs.max_latency_ms:
        limits["max_latency_ms"] = latency_ms if latency_ms <= _MOST_MS else None
    if inputs.budget_tokens is not None and tokens > inputs.budget_tokens:
        limits["budget_tokens"] = tokens
    if inputs.budget_nanos is not None and worst_nanos > inputs.budget_nanos:
        limits["budget_nanos"] = sayable(worst_nanos) if forecast.pool.held[row] else None
    return replace(inputs, **limits) if limits else inputs
