"""What a person is told of a plan before it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from routewright._core.request.problems import listed
from routewright.backends.providers.environment import VENDORS, providers_from_environment
from routewright.router import Router

from .building import store_file
from .plan import Address, Plan


def facts_of(plan: Plan, router: Router, config: Path | None) -> dict[str, str]:
    """By name, each in a few words; what is empty is not there."""
    file = store_file(plan)
    is_new = file is not None and not file.is_file()
    policies = [policy.name for policy in router.policies()]
    available = sum(model.availability.status == "available" for model in router.models())
    admin = "" if plan.admin is None else f"http://{place(plan.admin)} for health checks and metrics, without a key"
    store = "in memory: it ends with the server" if file is None else plan.store.removeprefix("sqlite:///")
    return {
        "address": f"{'http' if plan.tls is None else 'https'}://{place(plan.address)}{plan.root_path}",
        "admin": admin,
        "workers": str(plan.workers),
        "keys": "live and test" if plan.environment is None else f"of {plan.environment} alone",
        "store": f"{store}, to be made" if is_new else store,
        "certificate": "" if plan.tls is None else plan.tls.cert,
        "policies": "" if plan.policies is None else f"{plan.policies}: {listed(policies) or 'none'}",
        "catalogue": plan.catalogue or "",
        "models": f"{available} for live keys",
        "configuration": "" if config is None else str(config),
    }


def missing_of(plan: Plan) -> tuple[str, ...]:
    """What is asked for, and will not be there, since an extra is not installed."""
    if plan.admin is None or find_spec("prometheus_client") is not None:
        return ()
    missing = "admin.port: /metrics will have no figures: prometheus_client is not installed"
    return (f"{missing}; run: pip install 'routewright[metrics]'",)


def providers_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that name a provider that is configured. Nothing of what they hold."""
    found = {provider.name for provider in providers_from_environment(environ)}
    return tuple(
        next(name for name in (*vendor.key_variables, vendor.url_variable or "") if environ.get(name, "").strip())
        for vendor in VENDORS
        if vendor.name in found
    )


def place(address: Address) -> str:
    """As it stands in a URL."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
