"""Parts of a worker process: Router, store, TLS and telemetry, as the plan says."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread

from routewright.backends.providers.environment import providers_from_environment
from routewright.catalogue import Catalogue
from routewright.console import Console
from routewright.errors import Problem, StorageUnavailable, ValidationFailed
from routewright.policies import PolicyFile
from routewright.protocols import Cache, LocalStorage, Storage
from routewright.router import Router
from routewright.settings import CacheSettings, Capture, ExecutionLimits, Limits, Retention, Settings, WebhookSettings
from routewright.storage import open_cache, open_coordination, open_storage
from routewright.wire import PutAccount, PutKey
from routewright.wire.problems import one_of, shown

from .plan import Plan, Tls

SERVICE = "routewright"
"""Default of ``OTEL_SERVICE_NAME``."""
_PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}
"""Packages for the protocols of OTLP."""
_MODULES = {"traces": ("trace_exporter", "OTLPSpanExporter"), "metrics": ("metric_exporter", "OTLPMetricExporter")}


def settings_of(plan: Plan) -> Settings:
    """The Router's settings. Raises ``ValidationFailed``."""
    values = dict(plan.settings)
    retention = values.pop("retention")
    capture = values.pop("capture")
    stale_after = values.pop("stale_after_days")
    if retention is not None:
        retention = Retention(**{name: None if days == "forever" else days for name, days in retention.items()})
    return Settings(  # evaluated in this order: `values` comes last, without what was popped
        limits=Limits(default_max_output_tokens=values.pop("default_max_output_tokens")),
        execution=ExecutionLimits(**values.pop("execution")),
        retention=retention,
        capture=None if capture is None else Capture(**capture),
        cache=CacheSettings(**values.pop("cache")),
        webhooks=WebhookSettings(**values.pop("webhooks")),
        stale_after_days=None if stale_after == "never" else stale_after,
        **values,
    )


def router_of(plan: Plan, storage: Storage, cache: Cache | None = None) -> Router:
    """A Router with its models and policies loaded. Raises ``ValidationFailed``."""
    coordination = None  # the storage's own
    if plan.coordination != "memory:":
        coordination = open_coordination(plan.coordination, processes=plan.processes or plan.workers)
    providers = None  # those of the environment, without more leave than they have by default
    if plan.fetches_urls or plan.caller_extra:
        providers = providers_from_environment(
            os.environ, fetches_urls=plan.fetches_urls, caller_extra=plan.caller_extra
        )
    router = Router(
        providers=providers,
        catalogue=None if plan.catalogue is None else Catalogue.load(plan.catalogue),
        policies=() if plan.policies is None else PolicyFile(plan.policies),
        storage=storage,
        cache=cache,
        coordination=coordination,
        settings=settings_of(plan),
    )
    router.models()
    router.policies()
    return router


@asynccontextmanager
async def open_router(plan: Plan) -> AsyncIterator[tuple[Router, Console]]:
    """Router and Console of a worker, over the prepared store. Raises ``RouterError``."""
    storage = open_storage(plan.store)
    if isinstance(storage, LocalStorage) and not storage.path.is_file():
        # a new one would have no account, key or balance
        advice = "restore a backup, or restart the server, which then creates an empty one"
        raise StorageUnavailable(f"the store {storage.path} was removed while it was in use; {advice}")
    if plan.seed is not None:
        name = plan.seed.account.name
        await storage.apply(name, [PutAccount(plan.seed.account, expect="absent")])
        await storage.apply(name, [PutKey(key, expect="absent") for key in plan.seed.keys])
    router = router_of(plan, storage, open_cache(plan.cache))
    stop_export = export(router) if plan.otel else None
    secret = None if plan.seed is None else plan.seed.secret
    try:
        console = Console(storage, secret=secret, catalogue=router.catalogue)
        await console.accounts()  # raises where the store cannot be read
        yield router, console
    finally:
        await router.aclose()
        if stop_export is not None:
            await anyio.to_thread.run_sync(stop_export)


def exporter(signal: Literal["traces", "metrics"]) -> Callable[[], Any] | None:
    """The exporter that OpenTelemetry's variables choose for a signal, or None. Raises ``ValidationFailed``."""
    if os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp") == "none":
        return None
    variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    variable = variable if os.environ.get(variable) else "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = os.environ.get(variable) or "http/protobuf"
    if protocol not in _PROTOCOLS:
        raise ValidationFailed.at(variable, f"is {shown(protocol)}", one_of(protocol, [*_PROTOCOLS]))
    module = f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[protocol]}.{_MODULES[signal][0]}"
    try:
        exporter_class: Callable[[], Any] = getattr(import_module(module), _MODULES[signal][1])
    except ModuleNotFoundError as error:
        hint = f"run: pip install opentelemetry-exporter-otlp-proto-{_PROTOCOLS[protocol]}"
        raise ValidationFailed.at(variable, f"is {protocol}, which needs {error.name}", hint) from error
    return exporter_class


def export(router: Router) -> Callable[[], None]:
    """Export spans and metrics of a Router's calls by OTLP, as OpenTelemetry's variables say. Call the result once the
    Router is closed: it sends the rest."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from routewright.integrations.otel import OpenTelemetry

    resource = Resource({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    if (span_exporter := exporter("traces")) is not None:
        spans.add_span_processor(BatchSpanProcessor(span_exporter()))
    readers = [] if (exporter_type := exporter("metrics")) is None else [PeriodicExportingMetricReader(exporter_type())]
    metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
    OpenTelemetry(spans, metrics).watch(router)

    def stop() -> None:
        spans.shutdown()
        metrics.shutdown()

    return stop


def server_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 or higher (spec 1), with HTTP/1.1. Raises ``ValidationFailed`` naming the configuration key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    for name, path in (("tls.cert", tls.cert), ("tls.key", tls.key or tls.cert)):
        try:
            Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a path"
            raise ValidationFailed.at(name, f"{path} cannot be read: {reason}", "name a file in PEM") from error
    is_encrypted = False

    def password() -> str:  # else OpenSSL prompts at the terminal
        nonlocal is_encrypted
        is_encrypted = True
        return tls.key_password or ""

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except (ssl.SSLError, ValueError) as error:
        raise ValidationFailed.of(_tls_problem(tls, error, encrypted=is_encrypted)) from error
    return context


def _tls_problem(tls: Tls, error: Exception, *, encrypted: bool) -> Problem:
    name, path = ("tls.cert", tls.cert) if tls.key is None else ("tls.key", tls.key)
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return Problem(name, f"{path} has a private key that does not belong to the certificate", "name the right file")
    if encrypted and tls.key_password is None:
        return Problem("tls.key_password", f"is not set, but the private key in {path} is encrypted", "set it")
    if encrypted:
        return Problem("tls.key_password", f"does not decrypt the private key in {path}", "check it")
    if "PRIVATE KEY" not in Path(path).read_text("latin-1"):
        return Problem(name, f"{path} has no private key in PEM", "set tls.key to the file of the key")
    return Problem("tls.cert", f"{tls.cert} has no certificate in PEM, or {path} no usable key", "check both files")
