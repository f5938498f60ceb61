"""What a person is shown of a price list, of models that end, and of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from routewright._core.catalogue.models import Deprecation
from routewright.contrib.price_lists import PriceList
from routewright.contrib.proposals import ENDS, Change, Proposal, named_prices
from routewright.errors import Problem
from routewright.policy_loss import PolicyLoss
from routewright.wire import Model

from .blocks import Block, Line, Row, Style, Table

NAMED = 10
"""How many lines of one sort are shown."""
SUSPECT = 5
"""A price that becomes so many times as large or as small is marked: lists slip by powers of ten."""


def proposal_page(listed: PriceList, proposal: Proposal) -> list[Block]:
    """What a price list would change, line by line, and what of it could not be taken."""
    blocks: list[Block] = [Line(f"a price list of {listed.shape}'s shape", "dim")]
    if proposal.changes:
        blocks.append(Table([*_change_rows(proposal)]))
    blocks += [Line(f"{model}  new", "good") for model in proposal.added]
    blocks += [
        *_contradictions(proposal),
        *_unread((*proposal.refused, *listed.unread)),
        Line(),
        *_counts(listed, proposal),
    ]
    return blocks


def deprecations_page(found: Sequence[Deprecation]) -> list[Block]:
    """The models that end, the soonest first."""
    rows = [
        Row((each.ends, _left(each.days_left), each.model, each.replacement or "none"), _urgency(each.days_left))
        for each in found
    ]
    return [Table(rows, ("ends", "days left", "model", "nearest replacement"), frozenset({1}))]


def losses_page(lost: Sequence[PolicyLoss]) -> list[Block]:
    """The policies that lose something."""
    rows = [
        Row(
            (each.policy, each.first_choice or "none", each.lost_on or "", each.next_choice or "none",
             each.empty_from or ""),
            "bad" if each.empty_from else "plain",
        )
        for each in lost
    ]  # fmt: skip
    return [Table(rows, ("policy", "first choice", "lost on", "then", "no model from"))]


def show_page(model: Model, today: str) -> list[Block]:
    """All that is known of one model."""
    facts = {
        "name": model.display_name,
        "provider": f"{model.provider}, which calls it {model.provider_model_id}",
        "window": _tokens(model.context_window),
        "output": _tokens(model.max_output_tokens),
        "takes": ", ".join(model.modalities or ()),
        "can": ", ".join(_abilities(model)),
        "quality": "" if model.quality is None else f"{model.quality:.2f}",
        "speed": _speed(model),
        "regions": ", ".join(model.availability.regions),
        "released": model.released_at or "",
        "ends": "" if model.deprecated_at is None else model.deprecated_at[:10],
        "free": "a vendor's offer without a promise, picked only by name" if model.free_tier else "",
        "disabled": "yes" if model.disabled else "",
    }
    rows = [Row((name, value)) for name, value in facts.items() if value]
    return [Line(model.id, "title"), Line(), Table(rows, prose=True), Line(), *_prices(model, today)]


def _change_rows(proposal: Proposal) -> Iterator[Row]:
    for model, changes in groupby(proposal.changes, key=lambda change: change.model):
        yield from _model_rows(model, [*changes], proposal.kept.get(model, ()))


def _model_rows(model: str, changes: Sequence[Change], kept: Sequence[str]) -> Iterator[Row]:
    for place, change in enumerate(changes):
        unit = "" if change.what == ENDS else "$/1M"
        mark = f"{change.factor:.3g} times" if change.factor >= SUSPECT else ""
        figures = f"{_value(change.before)} -> {_value(change.after)}"
        yield Row(("" if place else model, change.what, figures, unit, mark), "bad" if mark else "plain")
    yield from (Row(("", what, "stays", "", ""), "dim") for what in kept)


def _contradictions(proposal: Proposal) -> Iterator[Line]:
    for each in proposal.contradictions[:NAMED]:
        rows = ", ".join(place.strip("[]") for place in each.places)
        sources = " or ".join(dict.fromkeys(each.sources))
        said = f"{each.model}: its rows ({rows}) differ in {', '.join(each.what)}, so none is taken"
        yield Line(f"{said}; choose with --provider {sources}", "bad")
    yield from _and_more(len(proposal.contradictions))


def _unread(problems: Sequence[Problem]) -> Iterator[Line]:
    yield from (Line(str(problem), "bad") for problem in problems[:NAMED])
    yield from _and_more(len(problems))


def _and_more(count: int) -> Iterator[Line]:
    if count > NAMED:
        yield Line(f"and {count - NAMED} more; --json lists all", "dim")


def _counts(listed: PriceList, proposal: Proposal) -> list[Block]:
    added = len(proposal.added)
    counts = {
        "changed": len(proposal.updates) - added,
        "new": added,
        "as they are": proposal.same,
        "contradictory": len(proposal.contradictions),
        "unread": len(listed.unread) + len(proposal.refused),
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items())
    kinds = _kinds(listed.left_out)
    more = f"not asked for: {proposal.unknown} other models; no chat models: {kinds}"
    return [Line(f"models: {said}"), Line(more, "dim")]


def _kinds(left_out: Mapping[str, int]) -> str:
    most = sorted(left_out.items(), key=lambda each: (-each[1], each[0]))
    named = [f"{count} {kind}" for kind, count in most[:4]]
    rest = sum(count for _, count in most[4:])
    return ", ".join([*named, f"{rest} others"] if rest else named) or "none"


def _prices(model: Model, today: str) -> Iterator[Block]:
    said = {"": model.pricing_per_1m}
    said |= {change.starts: change.pricing_per_1m for change in model.price_changes or ()}
    now = max(day for day in said if day <= today)
    for day, pricing in said.items():
        prices = named_prices(pricing)
        since, note = f" from {day}" if day else "", ", today's" if day == now and len(said) > 1 else ""
        yield Line(f"prices{since}{note}: {'' if prices else 'unknown'}".rstrip())
        if prices:
            yield Table([Row((f"  {what}", _value(usd), "$/1M")) for what, usd in prices.items()], right=frozenset({1}))


def _abilities(model: Model) -> list[str]:
    return [name for name, can in {"reason": model.reasoning, "give JSON": model.structured_output}.items() if can]


def _speed(model: Model) -> str:
    first = "" if model.ttft_s is None else f"first token after {model.ttft_s:g} s"
    pace = "" if model.tokens_per_s is None else f"{model.tokens_per_s:g} tokens a second"
    return ", ".join(each for each in (first, pace) if each)


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,} tokens"


def _value(value: float | str | None) -> str:
    """As few digits as say it, two decimals at least for money."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    text = f"{value:.12f}".rstrip("0")
    return f"{value:.2f}" if len(text.partition(".")[2]) < 2 else text


def _left(days: int) -> str:
    return str(days) if days > 0 else "ended"


def _urgency(days: int) -> Style:
    return "dim" if days <= 0 else "bad" if days <= 30 else "plain"
