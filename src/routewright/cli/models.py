"""The command ``models``: the list of models, or one model whole."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import get_args

import msgspec

from routewright.backends.providers.features import protocol_at
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.catalogue import Catalogue, model_called, price_sources
from routewright.router import Router
from routewright.settings import Settings, SystemClock
from routewright.wire import JsonObject, Modality, Model
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean, listed
from routewright.wire.timestamps import timestamp

from .command import CATALOGUE, JSON, arg, flag, refused, repeated, verb
from .route import NOTHING_CONFIGURED, PROVIDER, named_providers
from .show import Line, Screen, fields, listing, pick

_COLUMNS = "id context_window pricing_per_1m.input_usd pricing_per_1m.output_usd quality modalities availability"
_PRICES = "input_usd cached_input_usd cache_write_usd cache_write_hour_usd output_usd reasoning_usd audio_input_usd"
_LIMITS = "context_window max_output_tokens modalities structured_output reasoning quality ttft_s tokens_per_s"
_OTHERS = "a provider of your own, or LiteLLMProvider"
_OPTIONAL = ("flex", "priority", "verbosity", "cache_control")
"""Features that are left out where they are not supported; requests with others go to other models."""


@verb(
    "models",
    arg("name NAME", "show this model: an id, an alias, or a name without its vendor", nargs="?"),
    repeated("--modality", "only models that accept this", Modality),
    flag("--all", "include models that cannot be called: deprecated, disabled, without a key"),
    PROVIDER,
    CATALOGUE,
    JSON,
)
def _models(args: Namespace, screen: Screen) -> None:
    """List the models that can be routed to, or show one.

    Prices are US dollars per million tokens."""
    today = timestamp(SystemClock().time())[: len("2026-11-22")]
    catalogue = Catalogue() if args.catalogue is None else Catalogue.load(args.catalogue)
    if age := catalogue.stale(today, Settings().stale_after_days):
        screen.note(age)
    router = Router(catalogue=catalogue, settings=Settings(stale_after_days=None))
    if args.name is not None:
        _show(_named(args.name, router), args.catalogue, catalogue, today, screen)
        return
    models = router.models()
    configured = any(model.availability.status != "unavailable" for model in models)
    if not configured:
        screen.note(NOTHING_CONFIGURED)
    offered = models if args.provider is None else named_providers(args.provider, models)
    entries = [model for model in offered if set(args.modality) <= set(model.modalities or ())]
    if not args.all:
        entries = [model for model in entries if _is_current(model, today)]
        entries = [model for model in entries if not configured or model.availability.status != "unavailable"]
    entries.sort(key=lambda model: model.id)
    rows = [{**msgspec.to_builtins(model), "availability": _availability(model, today)} for model in entries]
    note = "" if entries else "no callable model matches; --all includes those that cannot be called"
    screen.report({"models": entries}, listing(rows, _COLUMNS), note=note)


def _named(name: str, router: Router) -> Model:
    """The model with this id, alias or name. Raises ``ValidationFailed`` for none or several."""
    names = router.model_names()
    models = {model.id: model for model in router.models()}
    vendors = {model.provider for model in models.values()}
    by_vendor = {id for vendor in vendors if (id := model_called(name, models.values(), vendor))}
    ids = {names[name]} if name in names else by_vendor
    if not ids:
        hint = did_you_mean(name, [*names, *(id.rpartition("/")[2] for id in models)])
        server = ENDPOINTS.get(name.partition("/")[0])
        if server is not None and not (hint or server.needs_key or server.is_set(os.environ)):
            hint = f"set {server.to_set} to the address of the server"
        raise refused("NAME", f"unknown model {quoted(name)}", hint or "'routewright models --all' lists the known ids")
    if len(ids) > 1:
        raise refused("NAME", f"{quoted(name)} is the name of several models", f"give one of {listed(sorted(ids))}")
    return models[ids.pop()]


def _show(model: Model, file: str | None, catalogue: Catalogue, today: str, screen: Screen) -> None:
    """Print one model whole. ``file``: the catalogue file, if there is one."""
    # as its vendor serves it, also without a key; the models of local servers are not in the catalogue
    served = next((row for row in Router.sandbox(catalogue=catalogue).models() if row.id == model.id), model)
    own, bundled = ({row.id: row for row in rows.models}.get(model.id) for rows in (catalogue, Catalogue()))
    is_bundled = own and bundled and own.pricing_per_1m == bundled.pricing_per_1m
    sources = price_sources()[model.id] if is_bundled else [{"title": file or "its provider"}]
    endpoint = ENDPOINTS.get(model.provider)
    to_set = _OTHERS if endpoint is None else None if endpoint.is_set(os.environ) else endpoint.to_set
    end = next((end for end in catalogue.deprecations(today=today) if end.model == model.id), None)
    card = {
        "id": model.id,
        "name": model.display_name,
        "aliases": [alias for alias, target in catalogue.aliases.items() if target == model.id],
        "status": _availability(model, today),
        "to_set": to_set,
        "protocol": protocol_at(model.provider, served),
        **pick(model, _LIMITS),
        "regions": model.availability.regions,
        "released": model.released_at,
        "ends": end and end.ends,
        "replacement": end and end.replacement,
    }
    texts = [" ".join(source[name] for name in ("starts", "title", "url") if name in source) for source in sources]
    prices = _prices(model, today)
    gaps = _gaps(served)
    columns = [name for name in _PRICES.split() if any(row[name] is not None for row in prices)]
    screen.report(
        {**card, "price_sources": sources, "prices": prices, "not_supported": gaps},
        fields({**card, "price_sources": texts}),
        Line(),
        listing(prices, f"from for {' '.join(columns)}"),
        Line(),
        listing(gaps, "not_supported why"),
    )


def _prices(model: Model, today: str) -> list[JsonObject]:
    """The present prices, then those that are announced, one row per kind of call."""
    ahead = [(change.starts, change.pricing_per_1m) for change in model.price_changes or () if change.starts > today]
    rows: list[JsonObject] = []
    for start, pricing in (("now", model.pricing_per_1m), *ahead):
        prices = msgspec.to_builtins(pricing) or {}
        kinds = {"calls": prices, "batch": {name[6:]: usd for name, usd in prices.items() if name.startswith("batch_")}}
        kinds |= {f"input above {tier['above_tokens']:,}": tier for tier in prices.get("tiers", ())}
        kinds |= {service["tier"]: service for service in prices.get("service_tiers", ())}
        for kind, usd in kinds.items():
            if usd:
                rows.append({"from": start, "for": kind} | {name: usd.get(name) for name in _PRICES.split()})
    return rows


def _gaps(model: Model) -> list[JsonObject]:
    """What requests of this model cannot have, and why."""
    reasons = dict.fromkeys(set(get_args(Modality)) - {*(model.modalities or ())}, "not accepted by the model")
    reasons |= {} if model.reasoning else {"reasoning": "the model does not reason"}
    reasons |= {} if model.structured_output else {"json_schema": "the model has no structured output"}
    for name in model.unsupported or ():
        reasons[name] = f"not supported by {model.provider} for this model{', so left out' * (name in _OPTIONAL)}"
    return [{"not_supported": name, "why": reasons[name]} for name in sorted(reasons)]


def _is_current(model: Model, today: str) -> bool:
    """True if neither disabled nor deprecated."""
    return not model.disabled and (model.deprecated_at is None or model.deprecated_at[:10] > today)


def _availability(model: Model, today: str) -> str:
    retires = None if model.deprecated_at is None else model.deprecated_at[:10]
    if model.disabled:
        return "disabled"
    if not _is_current(model, today):
        return f"deprecated {retires}"
    if model.availability.status == "unavailable":
        return "no key"
    status = "free offer, by name" if model.free_tier else model.availability.status
    return status if retires is None else f"until {retires}"
