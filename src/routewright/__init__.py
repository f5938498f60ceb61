"""routewright routes chat requests across many language models inside your own process.

    from routewright import Router

    router = Router.sandbox()
    answer = router.blocking.route("Why is the sky blue?")
    print(answer.output, router.explain(answer))

Names are loaded when they are first used, so that importing the package costs little."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core.routing.decision import Decision
    from ._core.routing.what_if import PolicyCheck as PolicyCheck
    from ._core.routing.what_if import WhyNot as WhyNot
    from ._engine.answer import Answer
    from ._engine.hooks import Subscription as Subscription
    from ._engine.prepared import InputTokens as InputTokens
    from ._engine.prepared import Prepared as Prepared
    from ._engine.steps import StepCall as StepCall
    from ._engine.steps import StepDone as StepDone
    from ._engine.steps import Steps as Steps
    from ._engine.steps import StepWait as StepWait
    from ._engine.stream import Stream
    from .agent import Agent
    from .backends.clock import SystemClock as SystemClock
    from .backends.coordination.memory import MemoryCoordination as MemoryCoordination
    from .backends.providers.anthropic import AnthropicProvider
    from .backends.providers.callable import CallableProvider
    from .backends.providers.callable import HostedProvider as HostedProvider
    from .backends.providers.gemini import GeminiProvider
    from .backends.providers.http import HttpRequest as HttpRequest
    from .backends.providers.openai import OpenAIProvider
    from .backends.providers.sandbox import SandboxProvider
    from .backends.storage.memory import MemoryStorage
    from .backends.storage.sqlite import SqliteStorage
    from .blocking import BlockingPrepared as BlockingPrepared
    from .blocking import BlockingStream as BlockingStream
    from .catalogue import Catalogue
    from .console import BlockingConsole as BlockingConsole
    from .console import Console
    from .contrib.invoices import Reconciliation as Reconciliation
    from .contrib.usage_exports import ExportLine as ExportLine
    from .contrib.usage_exports import UsageExport as UsageExport
    from .contrib.usage_exports import read_usage_export as read_usage_export
    from .errors import *
    from .guardrail import DenyList, PatternGuardrail
    from .ledger import BlockingLedger as BlockingLedger
    from .ledger import Ledger
    from .policies import PolicyFile as PolicyFile
    from .policies import read_policies as read_policies
    from .router import BlockingRouter as BlockingRouter
    from .router import Router
    from .settings import Capture, ExecutionLimits, Limits, Retention, Settings
    from .storage import open_storage
    from .trace import BlockingTraceStore as BlockingTraceStore
    from .trace import TraceStore
    from .webhook import StandardWebhookSigner as StandardWebhookSigner
    from .webhook import WebhookSigner
    from .wire import *
    from .wire.account import Secret as Secret

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    # a router, its arguments and results
    "Agent",
    "Answer",
    "Budget",
    "Caller",
    "Decision",
    "Fallback",
    "Message",
    "Params",
    "RouteRequest",
    "RouteResponse",
    "Router",
    "Stream",
    "Tool",
    # parts of a router
    "AnthropicProvider",
    "CallableProvider",
    "Capture",
    "Catalogue",
    "DenyList",
    "ExecutionLimits",
    "GeminiProvider",
    "Limits",
    "MemoryStorage",
    "Model",
    "OpenAIProvider",
    "PatternGuardrail",
    "Policy",
    "Pricing",
    "Retention",
    "SandboxProvider",
    "Settings",
    "SqliteStorage",
    "open_storage",
    # types for providers
    "Delta",
    "FaultKind",
    "Finish",
    "ProviderFault",
    "ToolDelta",
    "UpstreamCall",
    "Usage",
    # stored data, accounts and webhooks
    "Console",
    "Event",
    "Ledger",
    "Trace",
    "TraceStore",
    "WebhookSigner",
    # errors
    "BudgetExceeded",
    "NoCandidates",
    "RateLimited",
    "RouterError",
    "ValidationFailed",
]

_ALSO = (
    "Account AccountStanding Allow AuthenticationFailed Bill Block BlockedByPolicy BlockingConsole "
    "BlockingLedger BlockingPrepared BlockingRouter BlockingStream BlockingTraceStore BodyTooLarge CacheOpts "
    "CacheReport Content ContentRefused Credit CursorExpired CursorInvalid ExportLine FallbackReport "
    "HostedProvider HttpRequest IdempotencyKeyReused Incident InputTokens InsufficientBalance InternalError "
    "InvalidJson Key KeyStanding LatencyReport LedgerRow LedgerSum MemoryCoordination MethodNotAllowed NewKey "
    "NoProviders NotFound Page PermissionDenied PolicyCheck PolicyFallback PolicyFile PolicyGuardrail "
    "PolicyWeights PreconditionFailed Prepared PriceChange PriceTier Problem Purse QuotaExhausted RateLimits "
    "Reconciliation Redact Redaction RouterClosed RouterTimeoutError Secret SignatureError StandardWebhookSigner "
    "Statement StepCall StepDone StepWait Steps StorageCorrupt StorageFull StorageReadOnly StorageUnavailable "
    "StorageVersion Subscription SystemClock TraceItem UnsupportedMediaType UnsupportedWrite UpstreamFailed "
    "UsageExport UsageReport WhyNot read_policies read_usage_export"
).split()
"""Names that load from here as well. They belong to the modules that ``docs/reference/names.md`` says."""

_HOME = {
    "Agent": "agent",
    "Answer": "_engine.answer",
    "AnthropicProvider": "backends.providers.anthropic",
    "BlockingConsole": "console",
    "BlockingLedger": "ledger",
    "BlockingPrepared": "blocking",
    "BlockingRouter": "router",
    "BlockingStream": "blocking",
    "BlockingTraceStore": "trace",
    "CallableProvider": "backends.providers.callable",
    "Capture": "settings",
    "Catalogue": "catalogue",
    "Console": "console",
    "Decision": "_core.routing.decision",
    "DenyList": "guardrail",
    "ExecutionLimits": "settings",
    "ExportLine": "contrib.usage_exports",
    "GeminiProvider": "backends.providers.gemini",
    "HostedProvider": "backends.providers.callable",
    "HttpRequest": "backends.providers.http",
    "InputTokens": "_engine.prepared",
    "Ledger": "ledger",
    "Limits": "settings",
    "MemoryCoordination": "backends.coordination.memory",
    "MemoryStorage": "backends.storage.memory",
    "OpenAIProvider": "backends.providers.openai",
    "PatternGuardrail": "guardrail",
    "PolicyCheck": "_core.routing.what_if",
    "PolicyFile": "policies",
    "Prepared": "_engine.prepared",
    "Reconciliation": "contrib.invoices",
    "Retention": "settings",
    "Router": "router",
    "SandboxProvider": "backends.providers.sandbox",
    "Secret": "wire.account",
    "Settings": "settings",
    "SqliteStorage": "backends.storage.sqlite",
    "StandardWebhookSigner": "webhook",
    "StepCall": "_engine.steps",
    "StepDone": "_engine.steps",
    "StepWait": "_engine.steps",
    "Steps": "_engine.steps",
    "Stream": "_engine.stream",
    "Subscription": "_engine.hooks",
    "SystemClock": "backends.clock",
    "TraceStore": "trace",
    "WebhookSigner": "webhook",
    "WhyNot": "_core.routing.what_if",
    "open_storage": "storage",
    "read_policies": "policies",
    "UsageExport": "contrib.usage_exports",
    "read_usage_export": "contrib.usage_exports",
}
"""Where a name lives that is neither an error nor a shape of the wire."""

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _ALSO:
        raise AttributeError(f"module 'routewright' has no attribute {name!r}")
    value = getattr(_module_of(name), name)
    globals()[name] = value
    return value


def _module_of(name: str) -> Any:
    if name in _HOME:
        return import_module(f".{_HOME[name]}", __name__)
    errors = import_module(".errors", __name__)
    return errors if hasattr(errors, name) else import_module(".wire", __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
