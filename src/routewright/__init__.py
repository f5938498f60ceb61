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
    from ._engine.answer import Answer
    from ._engine.stream import Stream
    from .agent import Agent
    from .backends.providers.anthropic import AnthropicProvider
    from .backends.providers.callable import CallableProvider
    from .backends.providers.gemini import GeminiProvider
    from .backends.providers.openai import OpenAIProvider
    from .backends.providers.sandbox import SandboxProvider
    from .backends.storage.memory import MemoryStorage
    from .backends.storage.sqlite import SqliteStorage
    from .catalogue import Catalogue
    from .console import Console
    from .errors import *
    from .guardrail import DenyList, PatternGuardrail
    from .ledger import Ledger
    from .router import Router
    from .settings import Capture, ExecutionLimits, Limits, Retention, Settings
    from .storage import open_storage
    from .trace import TraceStore
    from .webhook import WebhookSigner
    from .wire import *

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
    "RateLimits",
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
    "RouterTimeoutError",
    "ValidationFailed",
]

_HOME = {
    "Agent": "agent",
    "Answer": "_engine.answer",
    "AnthropicProvider": "backends.providers.anthropic",
    "CallableProvider": "backends.providers.callable",
    "Capture": "settings",
    "Catalogue": "catalogue",
    "Console": "console",
    "Decision": "_core.routing.decision",
    "DenyList": "guardrail",
    "ExecutionLimits": "settings",
    "GeminiProvider": "backends.providers.gemini",
    "Ledger": "ledger",
    "Limits": "settings",
    "MemoryStorage": "backends.storage.memory",
    "OpenAIProvider": "backends.providers.openai",
    "PatternGuardrail": "guardrail",
    "Retention": "settings",
    "Router": "router",
    "SandboxProvider": "backends.providers.sandbox",
    "Settings": "settings",
    "SqliteStorage": "backends.storage.sqlite",
    "Stream": "_engine.stream",
    "TraceStore": "trace",
    "WebhookSigner": "webhook",
    "open_storage": "storage",
}
"""Where a name lives that is neither an error nor a shape of the wire."""

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'routewright' has no attribute {name!r}")
    value = getattr(_module_of(name), name)
    globals()[name] = value
    return value


def _module_of(name: str) -> object:
    if name in _HOME:
        return import_module(f".{_HOME[name]}", __name__)
    errors = import_module(".errors", __name__)
    return errors if hasattr(errors, name) else import_module(".wire", __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
