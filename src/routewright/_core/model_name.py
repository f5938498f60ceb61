"""Which model does a provider mean by a name? What is one model's name without doubt is it; nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from routewright.wire import Model

_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
"""What providers put behind a name for one state of a model, or for the newest."""
_PREFIX = "models/"  # what Google puts before names
_SIGNS = re.compile(r"[^a-z0-9]+")


class Named(NamedTuple):
    """What one model goes by."""

    id: str
    provider: str
    wire_name: str
    display_name: str


def named(model: Model) -> Named:
    """What a model of the catalogue goes by."""
    return Named(model.id, model.provider, model.provider_model_id, model.display_name)


def named_by_id(model_id: str) -> Named:
    """What a model goes by of which the catalogue knows nothing."""
    provider, _, name = model_id.partition("/")
    return Named(model_id, provider, name, name)


def model_called(
    name: str, groups: Sequence[Iterable[Named]], provider: str | None, aliases: Mapping[str, str]
) -> str | None:
    """The id of the model that a provider calls by a name; None: none is, or several may be. It is looked for in one
    group after the other, at last among the aliases. ``provider``: whose name it is; None: nobody said."""
    there = [[each for each in group if provider in (None, each.provider)] for group in groups]
    for known in there:
        for fits in _WAYS:
            found = {each.id for each in known if fits(name.removeprefix(_PREFIX), each)}
            if found:
                return found.pop() if len(found) == 1 else None
    meant = aliases.get(name)
    return meant if any(each.id == meant for known in there for each in known) else None


def _is_exact(name: str, model: Named) -> bool:
    return name in (model.id, model.wire_name, f"{model.provider}/{model.wire_name}")


def _is_dated(name: str, model: Named) -> bool:
    """One of both says of which day it is, and the other does not."""
    theirs, ours = undated(name), undated(model.wire_name)
    return theirs == ours and (theirs == name or ours == model.wire_name)


def _is_shown(name: str, model: Named) -> bool:
    """It is the name for people: capitals, and what stands between words, say nothing."""
    return _bare(name) in (_bare(model.display_name), _bare(model.wire_name)) and _bare(name) != ""


_WAYS: tuple[Callable[[str, Named], bool], ...] = (_is_exact, _is_dated, _is_shown)


def undated(name: str) -> str:
    """A name without its date."""
    return _DATE.sub("", name)


def _bare(name: str) -> str:
    return _SIGNS.sub("-", name.lower()).strip("-").removesuffix("-latest")
