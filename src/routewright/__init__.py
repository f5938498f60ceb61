"""routewright routes chat requests across many language models inside your own process.

    from routewright import Router

    router = Router.sandbox()
    answer = router.blocking.route("Why is the sky blue?")
    print(answer.output, router.explain(answer))

Names are loaded when they are first used, so that importing the package costs little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core.check import PolicyCheck
    from ._core.routing.decision import Decision
    from ._core.routing.why_not import WhyNot
    from ._engine.answer import Answer
    from ._engine.hooks import Subscription
    from ._engine.prepared import InputTokens, Prepared
    from ._engine.steps import StepCall, StepDone, Steps, StepWait
    from ._engine.stream import Stream
    from .backends.clock import SystemClock
    from .backends.coordination.memory import MemoryCoordination
    from .backends.coordination.sqlite import SqliteCoordination
    from .backends.providers.anthropic import AnthropicProvider
    from .backends.providers.callable import CallableProvider, HostedProvider
    from .backends.providers.gemini import GeminiProvider
    from .backends.providers.http import HttpRequest
    from .backends.providers.openai import OpenAIProvider
    from .backends.providers.sandbox import SandboxProvider
    from .backends.storage.memory import MemoryStorage
    from .backends.storage.sqlite import SqliteStorage
    from .blocking import BlockingPrepared, BlockingStream
    from .catalogue import Catalogue
    from .console import BlockingConsole, Console
    from .contrib.invoices import Reconciliation
    from .contrib.usage_exports import ExportLine, UsageExport, read_usage_export
    from .errors import *
    from .guardrail import DenyList, PatternGuardrail
    from .ledger import BlockingLedger, Ledger
    from .policies import PolicyFile, read_policies
    from .router import BlockingRouter, Router
    from .settings import Capture, ExecutionLimits, Limits, Retention, Settings
    from .storage import open_storage
    from .trace import BlockingTraceStore, TraceStore
    from .webhook import StandardWebhookSigner, WebhookSigner
    from .wire import *
    from .wire.secret import Secret

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    # the router and what it gives back
    "Answer",
    "BlockingLedger",
    "BlockingPrepared",
    "BlockingRouter",
    "BlockingStream",
    "BlockingTraceStore",
    "Decision",
    "InputTokens",
    "Ledger",
    "PolicyCheck",
    "Prepared",
    "Router",
    "StepCall",
    "StepDone",
    "StepWait",
    "Steps",
    "Stream",
    "Subscription",
    "TraceStore",
    "WhyNot",
    # accounts, keys and incidents
    "Account",
    "AccountStanding",
    "BlockingConsole",
    "Console",
    "Credit",
    "Incident",
    "Key",
    "KeyStanding",
    "NewKey",
    "Purse",
    "RateLimits",
    # webhooks
    "StandardWebhookSigner",
    "WebhookSigner",
    # what a router is made of
    "AnthropicProvider",
    "CallableProvider",
    "Capture",
    "Catalogue",
    "DenyList",
    "ExecutionLimits",
    "GeminiProvider",
    "HostedProvider",
    "HttpRequest",
    "Limits",
    "MemoryCoordination",
    "MemoryStorage",
    "OpenAIProvider",
    "PatternGuardrail",
    "PolicyFile",
    "Retention",
    "SandboxProvider",
    "Secret",
    "Settings",
    "SqliteCoordination",
    "SqliteStorage",
    "SystemClock",
    "open_storage",
    "read_policies",
    "read_usage_export",
    # what requests, models, policies and traces are made of
    "Allow",
    "Bill",
    "Block",
    "Budget",
    "CacheOpts",
    "CacheReport",
    "Caller",
    "Content",
    "Delta",
    "Event",
    "ExportLine",
    "Fallback",
    "FallbackReport",
    "FaultKind",
    "Finish",
    "LatencyReport",
    "LedgerRow",
    "LedgerSum",
    "Message",
    "Model",
    "Page",
    "Params",
    "Policy",
    "PolicyFallback",
    "PolicyGuardrail",
    "PolicyWeights",
    "PriceChange",
    "PriceTier",
    "Pricing",
    "Redact",
    "Reconciliation",
    "Redaction",
    "RouteRequest",
    "RouteResponse",
    "Statement",
    "Tool",
    "ToolDelta",
    "Trace",
    "TraceItem",
    "UpstreamCall",
    "Usage",
    "UsageExport",
    "UsageReport",
    # errors
    "AuthenticationFailed",
    "BlockedByPolicy",
    "BodyTooLarge",
    "BudgetExceeded",
    "ContentRefused",
    "CursorExpired",
    "CursorInvalid",
    "IdempotencyKeyReused",
    "InsufficientBalance",
    "InternalError",
    "InvalidJson",
    "MethodNotAllowed",
    "NoCandidates",
    "NoProviders",
    "NotFound",
    "PermissionDenied",
    "PreconditionFailed",
    "Problem",
    "ProviderFault",
    "QuotaExhausted",
    "RateLimited",
    "RouterClosed",
    "RouterError",
    "RouterTimeoutError",
    "SignatureError",
    "StorageCorrupt",
    "StorageFull",
    "StorageReadOnly",
    "StorageUnavailable",
    "StorageVersion",
    "UnsupportedMediaType",
    "UnsupportedWrite",
    "UpstreamFailed",
    "ValidationFailed",
]

_HOME = {
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
    "PolicyCheck": "_core.check",
    "PolicyFile": "policies",
    "Prepared": "_engine.prepared",
    "Reconciliation": "contrib.invoices",
    "Retention": "settings",
    "Router": "router",
    "SandboxProvider": "backends.providers.sandbox",
    "Secret": "wire.secret",
    "Settings": "settings",
    "SqliteCoordination": "backends.coordination.sqlite",
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
    "WhyNot": "_core.routing.why_not",
    "open_storage": "storage",
    "read_policies": "policies",
    "UsageExport": "contrib.usage_exports",
    "read_usage_export": "contrib.usage_exports",
}
"""Where a name lives that is neither an error nor a shape of the wire."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
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
