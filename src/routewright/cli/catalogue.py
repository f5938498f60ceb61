"""The commands ``catalogue``, with ``import``, ``deprecations`` and ``show``, and ``policies``, with ``check``."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from routewright._core.catalogue.models import resolve_one
from routewright._core.catalogue.price_list import Listed, read_price_list, updates_of, with_updates
from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.problems import listed as in_quotes
from routewright._core.routing.what_if import PolicyCheck
from routewright.backends.clock import SystemClock
from routewright.catalogue import Catalogue
from routewright.config import policies_of, read_catalogue, read_policy_document
from routewright.input_file import Document, json_document, read
from routewright.policies import read_policies
from routewright.policy_loss import policy_losses
from routewright.router import Router
from routewright.wire import Model, PriceTier, Pricing

from .command import NOBODY_FITS, OK, Parser, add, add_catalogue_file, add_json, names, refused
from .route import CHOICE, add_prompt, request_of
from .show import Block, Line, Row, Screen, Style, Table, dollars, facts, replacing
from .store import is_same

_NAMED = 10
"""The most problems shown."""


def add_catalogue(command: Parser) -> None:
    """Add the subcommands of ``catalogue``."""
    take = command.command("import FILE", _import)
    add(take, "file FILE", "the price list")
    add(take, "--output FILE", "the JSON file to write (default: that of --catalogue, else models.json)")
    only = "only prices of these providers; the list's own names settle contradictions"
    add(take, "--provider NAME,...", only, action="extend", type=names)
    more = "also new models whose ids match, as mistral/*; may be repeated"
    add(take, "--add GLOB", more, action="append", default=[])
    add(take, "--dry-run", "only show what would change", action="store_true")
    ends = command.command("deprecations", _deprecations)
    add(ends, "--within DAYS", "only what ends within so many days", type=int)
    add(ends, "--policies FILE", "policies to ask what they lose, TOML or JSON")
    show = command.command("show MODEL", _show)
    add(show, "model_id MODEL", "its id, or an alias")
    for each in (take, ends, show):
        add_catalogue_file(each)
        add_json(each)


def _catalogue(args: Namespace) -> Catalogue:
    return Catalogue() if args.catalogue is None else Catalogue.load(args.catalogue)


def _today() -> date:
    return datetime.fromtimestamp(SystemClock().time(), UTC).date()


def _import(args: Namespace, screen: Screen) -> None:
    """Import prices from somebody else's price list.

    FILE is a JSON file like litellm's price map or models.dev's api.json. The models whose prices or ends differ are
    written to a catalogue file. What the list does not mention stays as it is."""
    output, today = Path(args.output or args.catalogue or "models.json"), _today().isoformat()
    content = _content(args, output)
    base = args.catalogue or (output if output.exists() else None)
    catalogue, document = Catalogue() if base is None else Catalogue.load(base), read(args.file)
    with document.naming():
        listed, problems = read_price_list(document.content)
    chosen = _chosen(args, listed)
    updates, refusals = updates_of(catalogue.models, chosen, today, add=args.add)
    problems += refusals
    # a partial import does not update the date of the other models
    text = _text(with_updates(content, updates, today if args.provider is None else None))
    writes = text != _text(with_updates(content, (), None)) and not args.dry_run
    if writes:
        _check(json_document(output, text))
        with replacing(output, 0o666) as file:
            file.write(text)
    new = [model.id for before, model in updates if before is None]
    changed = [model.id for before, model in updates if before is not None]
    told = {"changed": changed, "new": new, "problems": [problem._asdict() for problem in problems]}
    use = f"written to {output}: use it as --catalogue {output}, or Catalogue.load({str(output)!r})"
    screen.report(
        told | {"written": str(output) if writes else None},
        *(Line(f"{model}  changed") for model in changed),
        *(Line(f"{model}  new", "good") for model in new),
        *(Line(str(problem), "bad") for problem in problems[:_NAMED]),
        *([Line(f"and {len(problems) - _NAMED} more; --json lists all", "dim")] if len(problems) > _NAMED else ()),
        note=use if writes else "nothing is written",
    )


def _chosen(args: Namespace, listed: list[Listed]) -> list[Listed]:
    """The rows of the asked providers. Refuses providers and globs that match nothing in the list."""
    wanted, known = frozenset(args.provider or ()), {name for row in listed for name in row.names}
    for name in sorted(wanted - known):
        hint = did_you_mean(name, known) or f"it has {in_quotes(sorted(known))}"
        raise refused("--provider", f"{quoted(name)} is not in the list", hint)
    ids = {row.model.id for row in listed}
    for glob in args.add:
        if not any(fnmatchcase(each, glob) for each in ids):
            hint = did_you_mean(glob, ids) or "write a glob over ids, such as 'openai/*'"
            raise refused("--add", f"{quoted(glob)} picks no model of the list", hint)
    return [row for row in listed if not wanted or not wanted.isdisjoint(row.names)]


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2, default=lambda day: day.isoformat()) + "\n"


def _check(document: Document) -> None:
    """Raise ``ValidationFailed`` for the content of a catalogue file that could not be loaded."""
    with document.naming():
        rows, aliases, _ = read_catalogue(document, known=[model.id for model in Catalogue().models])
        Catalogue().overlaid(rows, aliases=aliases)


def _content(args: Namespace, output: Path) -> dict[str, Any]:
    """The current content of the output file, or else of the file of ``--catalogue``. Raises ``ValidationFailed``."""
    if output.suffix.lower() != ".json":
        hint = "give --output models.json"
        raise refused("--output", f"{shown(str(output))} is no JSON file, which is written", hint)
    named = None if args.catalogue is None else Path(args.catalogue)
    if output.exists() and named is not None and not is_same(output, named):
        hint = "leave out --catalogue to write over it, or name a new file"
        raise refused("--output", f"{output} exists, and is not the file of --catalogue", hint)
    source = output if output.exists() else named
    if source is None:
        return {}
    document = read(source)
    _check(document)
    assert isinstance(document.content, dict)
    return document.content


def _value(value: float | str | None) -> str:
    """As few digits as needed, with at least two decimals for money."""
    if value is None or isinstance(value, str):
        return value or "none"
    text = f"{value:.12f}".rstrip("0")
    return f"{value:.2f}" if len(text.partition(".")[2]) < 2 else text


def _deprecations(args: Namespace, screen: Screen) -> None:
    """List which models end when, and which policies break then.

    Models that have ended are listed, too, unless they are disabled."""
    if args.within is not None and args.within < 0:
        raise refused("--within", f"must be at least 0, got {args.within}", "give it in days")
    today, catalogue = _today(), _catalogue(args)
    policies = [] if args.policies is None else read_policies(args.policies)
    found = catalogue.deprecations(args.within, today=today)
    lost = policy_losses(catalogue, policies, today, args.within)
    rows = []
    for each in found:
        style: Style = "dim" if each.days_left <= 0 else "bad" if each.days_left <= 30 else "plain"
        left = str(each.days_left) if each.days_left > 0 else "ended"
        rows.append(Row((each.ends, left, each.model, each.replacement or "none"), style))
    ending = Table(rows, ("ends", "days left", "model", "nearest replacement"), frozenset({1}))
    head = ("policy", "first choice", "lost on", "then", "no model from")
    losses = []
    for loss in lost:
        choices = (loss.first_choice or "none", loss.lost_on or "", loss.next_choice or "none", loss.empty_from or "")
        losses.append(Row((loss.policy, *choices), "bad" if loss.empty_from else "plain"))
    notes = [] if found else ["no model ends in this time"]
    notes += ["every policy keeps its first choice"] if policies and not lost else []
    blocks = (ending, Line(), Table(losses, head)) if lost else (ending,)
    screen.report({"models": found, "policies": lost}, *blocks, note="\n".join(notes))


def _show(args: Namespace, screen: Screen) -> None:
    """Show all that is known of one model.

    Prices are US dollars per million tokens."""
    catalogue = _catalogue(args)
    known = {model.id: place for place, model in enumerate(catalogue.models)}
    named = resolve_one(args.model_id, catalogue.aliases, known, "MODEL")
    model = catalogue.models[known[named]]
    screen.report(msgspec.to_builtins(model), *_model_page(model, _today().isoformat()))


def _model_page(model: Model, today: str) -> Iterator[Block]:
    abilities = {"reason": model.reasoning, "give JSON": model.structured_output}
    speed = {
        f"first token after {model.ttft_s or 0:g} s": model.ttft_s is not None,
        f"{model.tokens_per_s or 0:g} tokens a second": model.tokens_per_s is not None,
    }
    named = {
        "name": model.display_name,
        "provider": f"{model.provider}, which calls it {model.provider_model_id}",
        "window": _tokens(model.context_window),
        "output": _tokens(model.max_output_tokens),
        "takes": ", ".join(model.modalities or ()),
        "can": ", ".join(name for name, can in abilities.items() if can),
        "quality": "" if model.quality is None else f"{model.quality:.2f}",
        "speed": ", ".join(said for said, is_known in speed.items() if is_known),
        "regions": ", ".join(model.availability.regions),
        "released": model.released_at or "",
        "ends": "" if model.deprecated_at is None else model.deprecated_at[:10],
        "free": "a vendor's offer without a promise, picked only by name" if model.free_tier else "",
        "disabled": "yes" if model.disabled else "",
    }
    yield from (Line(model.id, "title"), Line(), facts(named), Line())
    prices = {"": model.pricing_per_1m}
    prices |= {change.starts: change.pricing_per_1m for change in model.price_changes or ()}
    now = max(day for day in prices if day <= today)
    for day, pricing in prices.items():
        usd = _named_prices(pricing)
        since, note = f" from {day}" if day else "", ", today's" if day == now and len(prices) > 1 else ""
        yield Line(f"prices{since}{note}:{'' if usd else ' unknown'}")
        yield Table([Row((f"  {what}", _value(each), "$/1M")) for what, each in usd.items()], right=frozenset({1}))


def _named_prices(pricing: Pricing | None) -> dict[str, float]:
    """Every price by what people call it: ``input``, ``cached input above 200k``."""
    named: dict[str, float] = {}
    for prices in () if pricing is None else (pricing, *pricing.tiers):
        above = prices.above_tokens if isinstance(prices, PriceTier) else 0
        for field in prices.__struct_fields__:
            value = getattr(prices, field)
            if field.endswith("_usd") and value is not None:
                name = field.removesuffix("_usd").replace("_", " ")
                named[f"{name} above {above:,}" if above else name] = value
    return named


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,} tokens"


def add_policies(command: Parser) -> None:
    """Add the subcommand of ``policies``."""
    check = command.command("check FILE [PROMPT | @FILE]", _check_policies)
    add(check, "policy_file FILE", "policies, TOML, JSON or Python")
    add_prompt(check)
    add(check, "--strict", "a policy that depends on one provider fails, too", action="store_true")
    add(check, "--sandbox", "as if there were a key for every provider", action="store_true")
    add_catalogue_file(check)
    add_json(check)
    check.set_defaults(**dict.fromkeys(CHOICE))


def _check_policies(args: Namespace, screen: Screen) -> int:
    """Show how each policy would route, and what breaks it.

    Decides a request under each policy of FILE as routing would, and again without each provider: who serves it, at
    what cost, and what breaks when a provider is lost. Nothing is called. Without a key the whole catalogue counts.

    The request is a short one, unless a PROMPT or @FILE is given, or what --request holds."""
    if args.prompt is None and args.file is None and args.request is None:
        args.prompt = "Hello"
    request = request_of(args, ())
    document = read_policy_document(args.policy_file)
    with document.naming():
        policies, catalogue = policies_of(document), _catalogue(args)
        router = (Router.sandbox if args.sandbox else Router)(catalogue=catalogue, policies=policies)
        if all(model.availability.status == "unavailable" for model in router.models()):
            screen.note("no provider is configured: checked against the whole catalogue")
            router = Router.sandbox(catalogue=catalogue, policies=policies)
        router.policies()  # raises ValidationFailed for selectors that match no model
    found = router.check_policies(request)
    notes = []
    for each in found:
        if each.problem is not None:
            notes.append(f"{_checked(each)}: {each.problem}")
        if not each.fallback_affordable:
            notes.append(f"{_checked(each)}: the budget pays for no fallback after {each.model}")
        notes += [f"{_checked(each)}: {end.model} is served until {end.deprecated_at[:10]}" for end in each.ends]
    head = ("policy", "served by", "models that fit", "expected", "at most", "if a provider is lost")
    table = Table([_check_row(each) for each in found], head, frozenset({2, 3, 4}))
    told = [
        {**msgspec.to_builtins(each), "servable": each.servable, "breaks_without": each.breaks_without}
        for each in found
    ]  # fmt: skip
    screen.report({"policies": told}, table, *([Line(), *map(Line, notes)] if notes else []))
    fails = any(not each.servable or (args.strict and each.breaks_without) for each in found)
    return NOBODY_FITS if fails else OK


def _checked(check: PolicyCheck) -> str:
    return f"{check.policy}, {check.policy_class}" if check.policy_class else check.policy


def _check_row(check: PolicyCheck) -> Row:
    fits = f"{check.fitting} of {check.allowed}"
    style: Style = "plain" if check.servable and not check.breaks_without else "bad"
    if check.model is None:
        return Row((_checked(check), "nobody", fits, "", "", ""), style)
    first = next((loss for loss in check.losses if loss.model != check.model), None)
    loss = "nothing changes" if first is None else f"without {first.provider}: {first.model}"
    if check.breaks_without:
        loss = f"breaks without {', '.join(check.breaks_without)}"
    costs = ("unknown" if usd is None else dollars(usd) for usd in (check.estimated_cost_usd, check.worst_cost_usd))
    return Row((_checked(check), check.model, fits, *costs, loss), style)
