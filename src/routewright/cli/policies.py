"""The command ``policies``."""

from __future__ import annotations

from argparse import Namespace

import msgspec

from routewright.catalogue import Catalogue
from routewright.policies import PolicyFile
from routewright.router import PolicyCheck, Router

from .command import CATALOGUE, JSON, NOBODY_FITS, OK, arg, flag, verb
from .route import PROMPT, request_of
from .show import Line, Screen, listing


@verb(
    "policies check",
    arg("policy_file FILE", "file of policies, TOML or JSON"),
    PROMPT,
    flag("--strict", "also fail for a policy that depends on one provider"),
    flag("--sandbox", "assume a key for every provider"),
    CATALOGUE,
    JSON,
)
def _check_policies(args: Namespace, screen: Screen) -> int:
    """Show how each policy would route, and what breaks it.

    Decides a request under each policy of FILE as routing would, and again without each provider: who serves it, at
    what cost, and what breaks when a provider is lost. Nothing is called. Without a key the whole catalogue counts.

    The request is a short one, unless a PROMPT or @FILE is given, or what --request holds."""
    if args.prompt is None and args.request is None:
        args.prompt = "Hello"
    request = request_of(args, ())
    with PolicyFile(args.policy_file).policies() as policies:
        catalogue = Catalogue() if args.catalogue is None else Catalogue.load(args.catalogue)
        router = (Router.sandbox if args.sandbox else Router)(catalogue=catalogue, policies=policies)
        if all(model.availability.status == "unavailable" for model in router.models()):
            screen.note("no provider is configured: checked against the whole catalogue")
            router = Router.sandbox(catalogue=catalogue, policies=policies)
        router.policies()  # raises ValidationFailed for selectors that match no model
    checks = router.check_policies(request)
    notes = []
    for check in checks:
        if check.problem is not None:
            notes.append(f"{_label(check)}: {check.problem}")
        if not check.fallback_affordable:
            notes.append(f"{_label(check)}: the budget pays for no fallback after {check.model}")
        notes += [f"{_label(check)}: {end.model} is served until {end.deprecated_at[:10]}" for end in check.ends]
    records = [
        {**msgspec.to_builtins(check), "servable": check.servable, "breaks_without": check.breaks_without}
        for check in checks
    ]
    rows = [
        {**record, "policy": _label(check), "model": check.model or "nobody", "if_a_provider_is_lost": _loss(check)}
        for record, check in zip(records, checks, strict=True)
    ]
    table = listing(rows, "policy model fitting allowed estimated_cost_usd worst_cost_usd if_a_provider_is_lost")
    screen.report({"policies": records}, table, *([Line(), *map(Line, notes)] if notes else []))
    return NOBODY_FITS if any(not check.servable or (args.strict and check.breaks_without) for check in checks) else OK


def _label(check: PolicyCheck) -> str:
    return f"{check.policy}, {check.policy_class}" if check.policy_class else check.policy


def _loss(check: PolicyCheck) -> str:
    if check.breaks_without:
        return f"breaks without {', '.join(check.breaks_without)}"
    change = next((loss for loss in check.losses if loss.model != check.model), None)
    return "" if change is None else f"without {change.provider}: {change.model}"
