"""The command ``catalogue``: ``import``, ``deprecations`` and ``show``."""

from __future__ import annotations

from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from routewright._core.catalogue.models import resolve_one
from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.problems import listed as listed_names
from routewright._core.request.rules import is_date
from routewright.backends.clock import SystemClock
from routewright.catalogue import Catalogue
from routewright.config import read_catalogue
from routewright.contrib.price_lists import PriceList, provider_of, read_price_list
from routewright.contrib.proposals import Proposal, Wish, is_ours, overlay_text, propose, with_proposal
from routewright.document import read
from routewright.errors import Problem, ValidationFailed
from routewright.policies import read_policies
from routewright.policy_loss import policy_losses

from .blocks import Line
from .catalogue_page import deprecations_page, losses_page, proposal_page, show_page
from .draft import SHARED, replacing
from .options import Arguments
from .screen import Screen

_OUTPUT = "models.toml"


def run_catalogue(args: Arguments, screen: Screen) -> None:
    """Do what the command line says. Raises ``RouterError``."""
    match args.topic:
        case "import":
            _import(args, screen)
        case "deprecations":
            _deprecations(args, screen)
        case _:
            _show(args, screen)


def _import(args: Arguments, screen: Screen) -> None:
    source = args.file or ""
    output = Path(args.output or args.catalogue or _OUTPUT)
    wish = _wish(args)
    content = _content(args, output)
    catalogue = _base(args, output)
    listed = read_price_list(source)
    _check_named(wish, listed)
    proposal = propose(catalogue.models, listed, wish)
    if not args.json:
        screen.show(*proposal_page(listed, proposal))
    text = overlay_text(with_proposal(content, proposal, _as_of(args)))
    writes = text != overlay_text(content) and not args.dry_run
    if writes:
        _write(output, text)
    if args.json:
        screen.json(_proposal_json(listed, proposal, str(output) if writes else None))
    elif writes:
        screen.say(
            Line(f"written to {output}: use it as --catalogue {output}, or Catalogue.load({str(output)!r})", "dim")
        )
    else:
        screen.say(Line("nothing is written", "dim"))


def _wish(args: Arguments) -> Wish:
    starts = _checked_day("--starts", args.starts)
    return Wish(_today().isoformat(), tuple(args.add), frozenset(args.provider or ()), starts)


def _check_named(wish: Wish, listed: PriceList) -> None:
    """Refuse a provider, and a glob of new models, that the list does not have: a slip would change nothing, unsaid."""
    known = {name for row in listed.rows for name in (row.source, provider_of(row.source))}
    for name in sorted(wish.providers - known):
        hint = did_you_mean(name, known) or f"it has {listed_names(sorted(known))}"
        raise ValidationFailed.of(Problem("--provider", f"{quoted(name)} is not in the list", hint))
    ids = {row.model.id for row in listed.rows}
    for glob in wish.add:
        if not any(fnmatchcase(each, glob) for each in ids):
            hint = did_you_mean(glob, ids) or "write a glob over ids, such as 'openai/*'"
            raise ValidationFailed.of(Problem("--add", f"{quoted(glob)} picks no model of the list", hint))


def _as_of(args: Arguments) -> str | None:
    """The day of the facts. A list that is taken in part does not make the rest younger."""
    told = _checked_day("--as-of", args.as_of)
    return told or (_today().isoformat() if args.provider is None else None)


def _checked_day(option: str, text: str | None) -> str | None:
    if text is not None and not (len(text) == len("YYYY-MM-DD") and is_date(text)):
        raise ValidationFailed.of(Problem(option, f"must be a date, got {shown(text)}", "write YYYY-MM-DD"))
    return text


def _content(args: Arguments, output: Path) -> dict[str, Any]:
    """What the file to be written says already, or the one that it takes the place of."""
    if output.suffix.lower() != ".toml":
        hint = "give --output models.toml"
        raise ValidationFailed.of(Problem("--output", f"{shown(str(output))} is no TOML file, which is written", hint))
    told = None if args.catalogue is None else Path(args.catalogue)
    if output.exists() and told is not None and not _is_same(output, told):
        hint = "leave out --catalogue to write over it, or name a new file"
        raise ValidationFailed.of(Problem("--output", f"{output} exists, and is not the file of --catalogue", hint))
    source = output if output.exists() else told
    if source is None:
        return {}
    content = _checked(source)
    if source == output and not args.force and not args.dry_run and not is_ours(source, content):
        hint = "give --force, or another --output"
        problem = "was written by hand: its comments and layout would be lost"
        raise ValidationFailed.of(Problem(str(source), problem, hint))
    return content


def _is_same(first: Path, second: Path) -> bool:
    return second.exists() and first.samefile(second)


def _checked(path: Path) -> dict[str, Any]:
    """The content of a catalogue file, as it stands there. Raises ``ValidationFailed`` for what is none."""
    document = read(path)
    with document.naming():
        read_catalogue(document, known=[model.id for model in Catalogue().models])
    assert isinstance(document.content, dict)
    return document.content


def _base(args: Arguments, output: Path) -> Catalogue:
    """The catalogue that the list is compared with."""
    path = args.catalogue or (output if output.exists() else None)
    return Catalogue() if path is None else Catalogue.load(path)


def _write(path: Path, text: str) -> None:
    """Write a catalogue file that can be read again; nobody ever reads half of it."""
    try:
        with replacing(path, SHARED) as file:
            file.write(text)
            file.flush()
            Catalogue.load(file.name)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ValidationFailed.of(Problem(str(path), problem, "check the path")) from error


def _proposal_json(listed: PriceList, proposal: Proposal, written: str | None) -> dict[str, Any]:
    return {
        "shape": listed.shape,
        "changes": [change._asdict() for change in proposal.changes],
        "added": proposal.added,
        "kept": proposal.kept,
        "contradictions": [each._asdict() for each in proposal.contradictions],
        "unread": [problem._asdict() for problem in (*listed.unread, *proposal.refused)],
        "left_out": listed.left_out,
        "counts": {
            "changed": len(proposal.updates) - len(proposal.added),
            "added": len(proposal.added),
            "same": proposal.same,
            "unknown": proposal.unknown,
        },
        "written": written,
    }


def _deprecations(args: Arguments, screen: Screen) -> None:
    if args.within is not None and args.within < 0:
        raise ValidationFailed.of(Problem("--within", f"must be at least 0, got {args.within}", ""))
    today, catalogue = _today(), _catalogue(args)
    policies = [] if args.policies is None else read_policies(args.policies)
    found = catalogue.deprecations(args.within, today=today)
    lost = policy_losses(catalogue, policies, today, args.within)
    if args.json:
        screen.json({"models": found, "policies": lost})
        return
    if found:
        screen.show(*deprecations_page(found))
    else:
        screen.say(Line("no model ends in this time", "dim"))
    if lost:
        screen.show(Line(), *losses_page(lost))
    elif policies:
        screen.say(Line("every policy keeps its first choice", "dim"))


def _show(args: Arguments, screen: Screen) -> None:
    catalogue = _catalogue(args)
    known = {model.id: place for place, model in enumerate(catalogue.models)}
    named = resolve_one(args.model_id or "", catalogue.aliases, known, "MODEL")
    model = catalogue.models[known[named]]
    if args.json:
        screen.json(msgspec.to_builtins(model))
    else:
        screen.show(*show_page(model, _today().isoformat()))


def _catalogue(args: Arguments) -> Catalogue:
    return Catalogue() if args.catalogue is None else Catalogue.load(args.catalogue)


def _today() -> date:
    return datetime.fromtimestamp(SystemClock().time(), UTC).date()
