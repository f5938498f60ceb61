"""Selects a policy's models by words: ids, aliases, globs and common properties (``tag:eu``). Words are resolved to ids
with the current catalogue when a policy is published. Free offers match only by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from routewright.errors import ValidationFailed
from routewright.wire import Capability, Model, Policy
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean, listed

from .catalogue.models import is_pattern, resolve

CAPABLE: dict[Capability, Callable[[Model], bool]] = {
    "image": lambda model: "image" in (model.modalities or ()),
    "tools": lambda model: "tool" in (model.modalities or ()),
    "json": lambda model: bool(model.structured_output),
    "reasoning": lambda model: bool(model.reasoning),
}

_HAVING: dict[str, Callable[[Model], Sequence[str]]] = {
    "provider": lambda model: (model.provider,),
    "tag": lambda model: model.tags or (),
    "capability": lambda model: [name for name, holds in CAPABLE.items() if holds(model)],
}
"""Properties that words select models by, by the prefix before the colon."""
_WILD = re.compile(r"[*?]")


class ModelIndex:
    """Models and aliases that policies select from."""

    def __init__(self, models: Sequence[Model], aliases: Mapping[str, str]) -> None:
        self.models = models
        self.aliases = aliases
        self.row = {model.id: row for row, model in enumerate(models)}

    def find(self, word: str) -> Model | None:
        """The model with an id or alias."""
        row = self.row.get(self.aliases.get(word, word))
        return None if row is None else self.models[row]


def select_models(policy: Policy, index: ModelIndex, path: str) -> tuple[str, ...] | None:
    """Ids of the models that a policy allows, in order of selection. None: all. ``path`` is the policy's. Raises
    ``ValidationFailed`` for words without a match, with a suggestion, and if no model is left."""
    if policy.models is None and not policy.exclude and not policy.capabilities:
        return None
    words = [(f"{path}.models[{place}]", word) for place, word in enumerate(policy.models or ())]
    offered: dict[str, Model] = {}
    for at, word in words:
        matching = _match_models(word, index, at)
        offered_by_word = [model for model in matching if index.find(word) is not None or not model.free_tier]
        if not offered_by_word:
            problem = f"{quoted(word)} matches only free offers ({listed([model.id for model in matching])})"
            raise ValidationFailed.at(at, problem, "name each of them by its id")
        offered |= {model.id: model for model in offered_by_word}
    picked = [*offered.values()] if words else [model for model in index.models if not model.free_tier]
    out = [_match_models(word, index, f"{path}.exclude[{place}]") for place, word in enumerate(policy.exclude or ())]
    excluded = {model.id for models in out for model in models}
    remaining = [model for model in picked if model.id not in excluded]
    able = [model.id for model in remaining if not find_missing(policy, model)]
    if not able:
        missing = f"none has all of {listed(policy.capabilities or ())}" if remaining else "'exclude' removes all"
        problem = f"allows no model: of {len(picked)} that match 'models', {missing}"
        raise ValidationFailed.at(path, problem, "widen 'models', or shorten 'exclude' and 'capabilities'")
    return tuple(able)


def find_missing(policy: Policy, model: Model) -> list[str]:
    """Required capabilities that a model lacks."""
    return [name for name in policy.capabilities or () if not CAPABLE[name](model)]


def match_words(words: Iterable[str], model: Model, index: ModelIndex) -> list[str]:
    """The words that match a model."""
    picked: list[str] = []
    for word in words:
        named = index.find(word)
        if _matcher_of(word)(model) if named is None else named.id == model.id:
            picked.append(word)
    return picked


def match_models(words: Sequence[str], index: ModelIndex) -> tuple[str, ...]:
    """Ids of all models that words match. Words without a match are left out."""
    return tuple(
        model.id
        for model in index.models
        if any(not model.free_tier or index.find(word) is not None for word in match_words(words, model, index))
    )


def _match_models(word: str, index: ModelIndex, path: str) -> list[Model]:
    if (named := index.find(word)) is not None:
        return [named]
    picked = [*filter(_matcher_of(word), index.models)]
    if not picked:
        is_name = ":" not in word and not _WILD.search(word)
        problem = f"unknown model {quoted(word)}" if is_name else f"{quoted(word)} matches no model"
        raise ValidationFailed.at(path, problem, _suggest(word, index))
    return picked


def _matcher_of(word: str) -> Callable[[Model], bool]:
    """A predicate for a word that is not a name."""
    parts = word.split(":", 1)
    if len(parts) > 1 and parts[0] in _HAVING:
        return lambda model: parts[1] in _HAVING[parts[0]](model)
    if not _WILD.search(word):
        return lambda model: False
    # as a regular expression without backtracking: ``*`` is any text, ``?`` any character
    first, *rest = [re.escape(piece).replace(r"\?", ".") for piece in word.split("*")]
    middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    pattern = re.compile(f"{first}{middle}.*{rest[-1]}" if rest else first, re.DOTALL)
    return lambda model: pattern.fullmatch(model.id) is not None


def _suggest(word: str, index: ModelIndex) -> str:
    """A hint for a word without a match: the closest known word."""
    values = {kind: dict.fromkeys(v for model in index.models for v in of(model)) for kind, of in _HAVING.items()}
    common = [f"{kind}:{value}" for kind, words in values.items() for value in words]
    if same := [name for name in common if name.partition(":")[2] == word]:
        return f"did you mean {same[0]!r}?"
    names = [model.id for model in index.models] + [*index.aliases]
    if word.startswith("capability:"):
        return f"known capabilities: {listed([*CAPABLE])}"
    if word.partition(":")[0] in _HAVING:
        near = did_you_mean(word, common)
    else:
        globs = dict.fromkeys(f"{model.provider}/*" for model in index.models) if _WILD.search(word) else ()
        near = did_you_mean(word, [*globs, *names, *common])
    if not near and word.startswith("tag:"):
        return f"known tags: {listed([*values['tag']])}" if values["tag"] else "give models 'tags' in a catalogue file"
    return near or "Router.models() lists the known ids"


def resolve_order(
    names: Sequence[str] | None, models: tuple[str, ...] | None, index: ModelIndex, path: str, field: str
) -> tuple[str, ...] | None:
    """Ids of a policy's ordered list: ``fallback.models`` or ``prefer``. None: not set. ``models`` are the allowed
    ones. Raises ``ValidationFailed`` for a model that is not allowed."""
    if names is None:
        return None
    path = f"{path}.{field}"
    for place, word in enumerate(names):
        if index.find(word) is None and is_pattern(word):
            problem = f"{quoted(word)} can match several models, which have no order"
            raise ValidationFailed.at(f"{path}[{place}]", problem, "name each of them by its id")
    chain = resolve(names, index.aliases, index.row, path)
    outside = [] if models is None else [model for model in chain if model not in models]
    if outside:
        lists = f"{field}: {listed(chain)}; models: {listed(models or ())}"
        problem = f"{listed(outside)} is outside the whitelist ({lists})"
        hint = f"let 'models', 'exclude' and 'capabilities' allow it, or take it out of '{field}'"
        raise ValidationFailed.at(path, problem, hint)
    return tuple(chain)
