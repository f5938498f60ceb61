"""What providers declare: their models, regions, missing features, and the vendor fields that they take from callers.
Says which provider serves which model. A custom provider may fail in any of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

from msgspec.structs import replace

from routewright._core.catalogue.models import fields_of, overlay, overlay_catalogue, token_prices
from routewright._core.request.rules import CALLER_EXTRA, URLS, checked_caller_extra
from routewright.errors import Problem, RouterError, ValidationFailed
from routewright.protocols import BaseProvider, Provider, options_of
from routewright.wire import Feature, Model
from routewright.wire.json_scan import quoted
from routewright.wire.problems import listed, shown

T = TypeVar("T")
_log = logging.getLogger(__name__)
FEATURES = get_args(Feature)
_UNSUPPORTED_URLS: dict[object, tuple[Feature, ...]] = {False: URLS, True: ("caller_url",), "callers": ()}
"""Features that a provider lacks, by its ``fetches_urls``."""


def overlay_providers(models: Sequence[Model], providers: Sequence[Provider]) -> tuple[Model, ...]:
    """A catalogue overlaid with the models that providers declare. Raises ``ValidationFailed``."""
    return overlay_declared(models, [read_models(provider, models) for provider in providers])


def overlay_declared(models: Sequence[Model], declarations: Sequence[Sequence[Model]]) -> tuple[Model, ...]:
    return overlay(models, [fields_of(model) for declaration in declarations for model in declaration])


def as_served(models: Sequence[Model], server: Mapping[str, Provider]) -> list[Model]:
    """The models as their providers serve them: without unsupported features, without URLs where none are fetched, and
    in the provider's region, which overrides the catalogue's."""
    regions, urls = dict[int, str](), dict[int, tuple[Feature, ...]]()
    for key, owner in {id(owner): owner for owner in server.values()}.items():
        region: object = _option(owner, "region")
        if region is not None and not isinstance(region, str):
            problem = f"region of {shown(owner.name)} is {shown(region)}"
            raise ValidationFailed.at("providers", problem, "make it a string, or None")
        regions[key] = region or ""
        urls[key] = _unsupported_urls(owner)
    served: list[Model] = []
    for model in models:
        provider = server.get(model.id)
        key, unsupported = id(provider), {*(model.unsupported or ())}
        if provider is not None:
            source = f"unsupported() of {shown(provider.name)}"
            names: object = _read(source, partial(options_of(provider, BaseProvider).unsupported, model))
            if (
                not isinstance(names, Collection)
                or isinstance(names, str)
                or not all(map(FEATURES.__contains__, names))
            ):
                hint = f"return some of {', '.join(FEATURES)}"
                raise ValidationFailed.at("providers", f"{source} returned {shown(names)}", hint)
            unsupported.update(names, urls[key])
        if unsupported and provider is not None:
            model = replace(model, unsupported=tuple(sorted(unsupported)))
        if regions.get(key):
            model = replace(model, availability=replace(model.availability, regions=(regions[key],)))
        served.append(model)
    return served


def is_whole(provider: Provider) -> bool:
    return _read(f"whole of {shown(provider.name)}", lambda: bool(options_of(provider, BaseProvider).whole))


def _option(provider: Provider, name: str) -> Any:
    """An optional attribute. It may be a property that fails."""
    return _read(f"{name} of {shown(provider.name)}", lambda: getattr(options_of(provider, BaseProvider), name))


def _unsupported_urls(provider: Provider) -> tuple[Feature, ...]:
    fetches: object = _option(provider, "fetches_urls")
    if not isinstance(fetches, bool) and fetches != "callers":
        problem = f"fetches_urls of {shown(provider.name)} is {shown(fetches)}"
        raise ValidationFailed.at("providers", problem, "make it True, False or 'callers'")
    return _UNSUPPORTED_URLS[fetches]


def caller_extra_of(server: Mapping[str, Provider]) -> dict[str, frozenset[str]]:
    """Vendor fields that callers with a key may send, by the name of the provider that gets them. The sandbox gets
    those of the vendors whose models it has."""
    by_vendor, by_name = dict[str, frozenset[str]](), dict[str, frozenset[str]]()
    for key, provider in {id(provider): provider for provider in server.values()}.items():
        extra, source = _option(provider, "caller_extra"), f"caller_extra of {shown(provider.name)}"
        names = CALLER_EXTRA if extra is None else checked_caller_extra(extra, source)
        by_name[provider.name] = names & by_name.get(provider.name, names)
        by_vendor |= {model.partition("/")[0]: names for model, owner in server.items() if id(owner) == key}
    return by_vendor | by_name


def _read(source: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except RouterError:
        raise
    except Exception as error:  # its message may hold secrets
        problem = Problem("providers", f"{source} failed with {type(error).__name__}", "see the chained exception")
        raise ValidationFailed.of(problem) from error


def read_models(provider: Provider, catalogue: Sequence[Model]) -> tuple[Model, ...]:
    """The models that a provider declares; called once, since the next answer may differ. The catalogue overrides what
    a server lists."""
    source = f"models() of {shown(provider.name)}"
    answer: object = _read(source, provider.models)
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        models: Sequence[Model] = answer
        declared = _read(source, lambda: tuple(models))
        if not options_of(provider, BaseProvider).discovers:
            return declared
        served = overlay_catalogue(declared, catalogue)
        usable = _read(source, lambda: tuple(model for model in served if not token_prices(model.pricing_per_1m)))
        if len(usable) < len(served):
            names = listed([model.id for model in served if model not in usable])
            _log.warning(
                "%s lists prices that are too low to be per million tokens; left out: %s", provider.name, names
            )
        return usable
    if isinstance(answer, Coroutine):
        answer.close()  # else Python warns that it was not awaited
        raise ValidationFailed.of(Problem("providers", f"{source} is a coroutine", "make it a plain function"))
    raise ValidationFailed.of(Problem("providers", f"{source} returned {shown(answer)}", "return a list of Model"))


def servers_of(
    models: Sequence[Model], providers: Sequence[Provider], declarations: Sequence[Sequence[Model]]
) -> dict[str, Provider]:
    """The provider of each model. Two providers of one model are refused as ambiguous."""
    server: dict[str, Provider] = {}
    for provider, declaration in zip(providers, declarations, strict=True):
        ids = [model.id for model in declaration]
        for model_id in ids or [model.id for model in models if model.provider == provider.name]:
            if model_id in server:
                name, other = shown(provider.name), shown(server[model_id].name)
                if server[model_id] is provider:
                    problem, hint = f"models() of {name} returned {quoted(model_id)} twice", "return it once"
                else:
                    problem, hint = f"{other} and {name} both serve {quoted(model_id)}", "declare it for one of them"
                raise ValidationFailed.at("providers", problem, hint)
            server[model_id] = provider
    return server
