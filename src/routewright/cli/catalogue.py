"""The command ``catalogue``, with ``import``."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from routewright._core.catalogue.price_list import Listed, changes_of, read_price_list, updates_of, with_updates
from routewright._setup.config import read_catalogue
from routewright._setup.input_file import Document, json_document, read
from routewright.catalogue import Catalogue
from routewright.settings import SystemClock
from routewright.wire import JsonObject
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean, shown
from routewright.wire.problems import listed as in_quotes
from routewright.wire.timestamps import timestamp

from .command import CATALOGUE, JSON, arg, flag, refused, repeated, several, verb
from .show import Line, Screen, replace_file
from .store import is_same

_NAMED = 10  # the most problems shown


@verb(
    "catalogue import",
    arg("file FILE", "price list to import"),
    arg("--output FILE", "JSON file to write (default: that of --catalogue, else models.json)"),
    several("--provider NAME,...", "only prices of these providers; the list's own names settle contradictions"),
    repeated("--add GLOB", "also add new models whose ids match, such as mistral/*"),
    flag("--dry-run", "show what would change, and write nothing"),
    CATALOGUE,
    JSON,
)
def _import(args: Namespace, screen: Screen) -> None:
    """Import prices from a public price list.

    FILE is a JSON file like litellm's price map or models.dev's api.json. The models whose prices or ends differ are
    written to a catalogue file. What the list does not mention stays as it is."""
    output = Path(args.output or args.catalogue or "models.json")
    today = timestamp(SystemClock().time())[: len("2026-11-22")]
    content = _content(args, output)
    base = args.catalogue or (output if output.exists() else None)
    catalogue = Catalogue() if base is None else Catalogue.load(base)
    document = read(args.file)
    with document.naming():
        listed, problems = read_price_list(document.content)
    selection = _select_rows(args, listed)
    updates, refusals = updates_of(catalogue.models, selection, today, add=args.add)
    problems += refusals
    # a partial import does not update the date of the other models
    text = _text(with_updates(content, updates, today if args.provider is None else None))
    is_written = text != _text(with_updates(content, (), None)) and not args.dry_run
    if is_written:
        _check(json_document(output, text))
        replace_file(output, text)
    changes = changes_of(updates, today)
    ids = {key: [edit.model for edit in changes if edit.is_new is (key == "new")] for key in ("changed", "new")}
    steps = [{"model": edit.model, **price._asdict(), "mark": price.mark} for edit in changes for price in edit.prices]
    reports = {"prices": steps, "problems": [problem._asdict() for problem in problems]}
    next_step = f"written to {output}: use it as --catalogue {output}, or Catalogue.load({str(output)!r})"
    screen.report(
        ids | reports | {"written": str(output) if is_written else None},
        *(Line(str(edit), "bad" if any(price.mark for price in edit.prices) else "plain") for edit in changes),
        *(Line(str(problem), "bad") for problem in problems[:_NAMED]),
        *([Line(f"and {len(problems) - _NAMED} more; --json lists all", "dim")] if len(problems) > _NAMED else ()),
        note=next_step if is_written else "nothing is written",
    )


def _select_rows(args: Namespace, rows: list[Listed]) -> list[Listed]:
    """The rows of the asked providers. Refuses providers and globs that match nothing in the list."""
    providers = frozenset(args.provider or ())
    names = {name for row in rows for name in row.names}
    for name in sorted(providers - names):
        hint = did_you_mean(name, names) or f"it has {in_quotes(sorted(names))}"
        raise refused("--provider", f"{quoted(name)} is not in the list", hint)
    ids = {row.model.id for row in rows}
    for glob in args.add:
        if not any(fnmatchcase(id, glob) for id in ids):
            hint = did_you_mean(glob, ids) or "write a glob over ids, such as 'openai/*'"
            raise refused("--add", f"{quoted(glob)} matches no model of the list", hint)
    return [row for row in rows if not providers or not providers.isdisjoint(row.names)]


def _text(content: Mapping[str, object]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2, default=lambda day: day.isoformat()) + "\n"


def _check(document: Document) -> None:
    """Raise ``ValidationFailed`` for the content of a catalogue file that could not be loaded."""
    with document.naming():
        rows, aliases = read_catalogue(document, known=[model.id for model in Catalogue().models])[:2]
        Catalogue().overlaid(rows, aliases=aliases)


def _content(args: Namespace, output: Path) -> JsonObject:
    """The current content of the output file, or else of the file of ``--catalogue``. Raises ``ValidationFailed``."""
    if output.suffix.lower() != ".json":
        hint = "give --output models.json"
        raise refused("--output", f"{shown(str(output))} is not a .json file", hint)
    catalogue_file = None if args.catalogue is None else Path(args.catalogue)
    if output.exists() and catalogue_file is not None and not is_same(output, catalogue_file):
        hint = "leave out --catalogue to write over it, or name a new file"
        raise refused("--output", f"{output} exists, and is not the file of --catalogue", hint)
    source = output if output.exists() else catalogue_file
    if source is None:
        return {}
    document = read(source)
    _check(document)
    assert isinstance(document.content, dict)
    return document.content
