"""Price lists of others, as files: reads them, and writes what they change into a catalogue file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Model, PriceChange, Pricing

from ._core.price_list import PriceList, read_list
from ._core.proposal import Proposal
from .document import naming, path_of, read

_ENTRY = ("context_window", "max_output_tokens", "structured_output", "reasoning")
"""What an entry of a new model says of it."""
_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def read_price_list(given: str | Path) -> PriceList:
    """Read a price list: a JSON file like litellm's price map or models.dev's ``api.json``, or a models.dev folder.

    Raises ``ValidationFailed`` naming the file and the place. Rows that make no sense are in ``unread``.
    """
    path = path_of(given)
    if path.is_dir():
        return _read_folder(path)
    document = read(path)
    with document.naming():
        return read_list(document.content)


def with_proposal(content: Mapping[str, Any], proposal: Proposal, as_of: str | None) -> dict[str, Any]:
    """What a catalogue file says, with a proposal's models put in. The file's other words stay.

    ``as_of``: the day of the facts, ``YYYY-MM-DD``; None: the file's own.
    """
    models = [dict(entry) for entry in content.get("models", ())]
    entries = {entry["id"]: entry for entry in models}
    prices = dict(content.get("prices", {}))
    for before, after in proposal.updates:
        entry = entries.get(after.id) or {"id": after.id}
        if before is None:
            entry |= _new_entry(after)
        else:
            _put_changes(before, after, entry, prices)
        if len(entry) > 1 and after.id not in entries:
            models.append(entry)
    dated = {} if as_of is None else {"as_of": date.fromisoformat(as_of)}
    return {**content, **dated, "models": models, "prices": prices}


def overlay_text(content: Mapping[str, Any]) -> str:
    """A catalogue file as TOML, always in the same layout."""
    tables = {key: value for key, value in content.items() if key in ("models", "prices", "aliases")}
    lines = _pairs({key: value for key, value in content.items() if key not in tables})
    for entry in tables.get("models", ()):
        lines += ["", "[[models]]", *_pairs(entry)]
    for model, prices in tables.get("prices", {}).items():
        lines += ["", f"[prices.{_key(model)}]", *_pairs(prices)]
    if tables.get("aliases"):
        lines += ["", "[aliases]", *_pairs(tables["aliases"])]
    return "\n".join(lines).lstrip("\n") + "\n"


def is_ours(path: Path, content: Mapping[str, Any]) -> bool:
    """Whether a file is as ``overlay_text`` would write it, so that writing it again loses nothing."""
    return path.read_text("utf-8") == overlay_text(content)


def _read_folder(path: Path) -> PriceList:
    try:
        content = _folder(path)
    except OSError as error:
        raise ValidationFailed.of(Problem(str(path), f"cannot be read: {error.strerror}", "check the path")) from error
    with naming(path):
        return read_list(content)


def _folder(path: Path) -> dict[str, Any]:
    """A models.dev repository: ``providers/NAME/models/**/*.toml``, in the shape of its ``api.json``."""
    root = path / "providers" if (path / "providers").is_dir() else path
    found: dict[str, Any] = {}
    for provider in sorted(root.iterdir()):
        models = provider / "models"
        rows = {each.relative_to(models).with_suffix("").as_posix(): read(each).content for each in _tomls(models)}
        if rows:
            found[provider.name] = {"models": rows}
    if not found:
        hint = "name a folder with providers/NAME/models/*.toml in it"
        raise ValidationFailed.of(Problem(str(path), "is a folder without price lists", hint))
    return found


def _tomls(folder: Path) -> Iterable[Path]:
    return sorted(each for each in folder.rglob("*.toml") if each.is_file()) if folder.is_dir() else ()


def _put_changes(before: Model, after: Model, entry: dict[str, Any], prices: dict[str, Any]) -> None:
    """Write what changed of a known model to where the file speaks of it already, else into ``prices``."""
    if after.deprecated_at != before.deprecated_at:
        entry["deprecated_at"] = after.deprecated_at
    if after.price_changes != before.price_changes:
        entry["price_changes"] = [_change(each) for each in after.price_changes or ()]
    price = after.pricing_per_1m
    if price is None or price == before.pricing_per_1m:
        return
    if "prices" in entry and after.id not in prices:
        entry["prices"] = _prices(price)
    else:
        prices[after.id] = _prices(price)


def _new_entry(model: Model) -> dict[str, Any]:
    said = {name: value for name in _ENTRY if (value := getattr(model, name))}
    entry: dict[str, Any] = {**said, "modalities": list(model.modalities or ("text",))}
    if model.pricing_per_1m is not None:
        entry["prices"] = _prices(model.pricing_per_1m)
    if model.deprecated_at is not None:
        entry["deprecated_at"] = model.deprecated_at
    return entry


def _change(change: PriceChange) -> dict[str, Any]:
    return {"starts": date.fromisoformat(change.starts), **_prices(change.pricing_per_1m)}


def _prices(pricing: Pricing) -> dict[str, Any]:
    """What it says, without what it leaves open."""
    said: dict[str, Any] = to_builtins(pricing)
    return said


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    return key if key and _BARE.issuperset(key) else _toml(key)


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case date():
            return value.isoformat()
        case list() | tuple():
            return _array([_toml(each) for each in value], nested=any(isinstance(each, dict) for each in value))
        case dict():
            return f"{{ {', '.join(_pairs(value))} }}"
        case _:
            # JSON's escapes are TOML's, but for the one control character that JSON lets stand
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _array(items: list[str], *, nested: bool) -> str:
    """Tables stand below each other, plain values beside."""
    if not nested:
        return f"[{', '.join(items)}]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
