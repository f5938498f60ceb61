"""Calls models through the package ``litellm``, for vendors without a provider of their own here.

Requires asyncio. Retries of litellm are disabled, since the Router has its own. Its error messages may contain the
prompt, so only ``ProviderFault.body`` has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib import import_module
from typing import Any, NoReturn, get_args

import msgspec
from msgspec.structs import replace

from routewright._core.attempts.faults import kind_of_status
from routewright._core.catalogue.models import models_of
from routewright._core.request.rules import CALLER_EXTRA, checked_caller_extra
from routewright.backends.clock import SystemClock
from routewright.errors import ProviderFault, ValidationFailed, require_extra
from routewright.protocols import BaseProvider, Clock
from routewright.wire import Chunk, FaultKind, Feature, JsonObject, Model, ServiceTier, UpstreamCall
from routewright.wire.account import Secret

from .answer import decode_body
from .endpoint import Fetches, Redactor, check_arguments, check_fetches, wire_name
from .faults import conceal, retry_after, start_of
from .hosts import DIALS, Host
from .openai import Completion, request_body
from .reasoning import Thinking, at

_OFFLINE = "LITELLM_LOCAL_MODEL_COST_MAP"


def _import_litellm() -> Any:
    """Import litellm without its download of prices."""
    before = os.environ.get(_OFFLINE)
    os.environ[_OFFLINE] = "True"
    try:
        with require_extra("litellm", __name__):
            return import_module("litellm")
    finally:
        if before is None:
            del os.environ[_OFFLINE]
        else:
            os.environ[_OFFLINE] = before


litellm = _import_litellm()
litellm.suppress_debug_info = True  # else it prints advice with every error

_KINDS = {
    "Timeout": FaultKind.TIMEOUT,
    "APIConnectionError": FaultKind.CONNECT,
    "APIResponseValidationError": FaultKind.MALFORMED,
    "ContentPolicyViolationError": FaultKind.REFUSED,
    "ContextWindowExceededError": FaultKind.CONTEXT_OVERFLOW,
}
"""Kinds by class name, for exceptions whose class is more specific than the status."""
_SAME: tuple[Feature, ...] = "temperature", "top_p", "stop", "seed", "tool_choice", "parallel_tool_calls"
_FEATURES: dict[Feature, str] = {
    **{feature: feature for feature in _SAME},
    "reasoning": "reasoning_effort",
    "reasoning_none": "reasoning_effort",
    "reasoning_tokens": "thinking",
    "flex": "service_tier",
    "priority": "service_tier",
    "verbosity": "verbosity",
}
"""litellm's argument for each feature."""
_THINKING = Thinking(
    words="minimal low medium high",
    off={"reasoning_effort": "none"},
    bound="thinking.budget_tokens",
    bounded=at("thinking.type", "enabled"),
    least=1024,
)
"""litellm's own arguments, which it translates for each vendor."""
_SECRETS = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
"""Environment variables with values to redact: litellm reads keys from them itself."""
_SHORTEST_S = 0.001


class LiteLLMProvider(BaseProvider):
    """Calls models through ``litellm.acompletion``.

        LiteLLMProvider("amazon-bedrock", vendor="bedrock")          # the catalogue's models of that name
        LiteLLMProvider("acme", vendor="watsonx", models=[...], options={"project_id": "..."})

    ``vendor`` is litellm's name of the provider; by default ``name``. Without ``api_key``, litellm reads keys from the
    environment. ``options`` are passed to every call. ``fetches_urls`` and ``caller_extra`` are those of
    ``OpenAIProvider``: by default no URLs are sent, since litellm fetches images for some vendors in this process.
    """

    needs_scope = True  # some of its clients use httpcore, which shields its clean-up

    def __init__(
        self,
        name: str,
        *,
        vendor: str = "",
        models: Sequence[Model] = (),
        api_key: str | None = None,
        options: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        fetches_urls: Fetches | None = None,
        caller_extra: Collection[str] = (),
    ) -> None:
        check_arguments(name)
        if not isinstance(api_key, str | None):
            raise ValidationFailed.at("api_key", f"must be a string, got {type(api_key).__name__}", "or leave it out")
        self.name = name
        self._vendor = vendor or name
        self._models = models_of(models)
        self.fetches_urls = False if fetches_urls is None else check_fetches(fetches_urls)
        """Whether it may be sent URLs of images and files (``protocols.BaseProvider``)."""
        self.caller_extra = CALLER_EXTRA | checked_caller_extra(caller_extra)
        """Vendor fields that callers with a key may send (``protocols.Provider``)."""
        key = Secret(api_key or "")
        self._options = {**(options or {}), **({"api_key": key} if key.reveal() else {})}
        self._clock = SystemClock() if clock is None else clock
        self._dialect = Host(
            name=name, base_url="", usage_on_request=True, thinking=(_THINKING,), thought="reasoning_content",
            takes=dict.fromkeys(DIALS, ""), tiers={tier: tier for tier in get_args(ServiceTier)}, cache_ttl=True,
            files=True, id_form=re.compile("[a-zA-Z0-9_-]{1,40}"),
        )  # fmt: skip
        environment = (os.environ if environ is None else environ).items()
        secrets = [value for value in self._options.values() if isinstance(value, Secret)]
        secrets += [Secret(value) for name, value in environment if _SECRETS.search(name.upper())]
        self._redact = Redactor(secrets)

    def __repr__(self) -> str:
        return f"LiteLLMProvider({self.name!r}, vendor={self._vendor!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError("LiteLLMProvider cannot be copied or pickled, since it has a key; create another one")

    def models(self) -> Sequence[Model]:
        """The models from the constructor. Empty: the catalogue's models under ``name``."""
        return self._models

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """Features that litellm does not support for a model (``protocols.BaseProvider``)."""
        try:
            supported = litellm.get_supported_openai_params(model=wire_name(model), custom_llm_provider=self._vendor)
        except Exception:  # litellm raises a bare one for unknown vendors; the call itself will report it
            supported = None
        supported = _FEATURES.values() if supported is None else supported
        missing = [feature for feature, argument in _FEATURES.items() if argument not in supported]
        return (*missing, *(_THINKING.missing if model.reasoning else ()))

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        """Start one call (``protocols.Provider``)."""
        answer = await self._ask(call)
        try:
            async with aclosing(self._chunks(answer, call)) as chunks:
                yield chunks
        finally:
            if hasattr(answer, "aclose"):
                await answer.aclose()

    async def aclose(self) -> None:
        """Does nothing: litellm shares its connections between all users."""

    async def _ask(self, call: UpstreamCall) -> Any:
        """Call litellm. Returns an answer, or an async iterator of chunks."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ProviderFault(FaultKind.REQUEST, f"{self.name} needs asyncio, as litellm does") from None
        try:
            extra = (call.params.extra or {}).get(self.name)
            plain = replace(call, params=replace(call.params, extra=None))
            body: JsonObject = msgspec.to_builtins(request_body(plain, self._dialect))
            revealed: JsonObject = {
                name: value.reveal() if isinstance(value, Secret) else value for name, value in self._options.items()
            }
            arguments: JsonObject = {
                "model": f"{self._vendor}/{wire_name(call.model)}",
                "timeout": max(call.deadline - self._clock.monotonic(), _SHORTEST_S),
                "num_retries": 0,
                "max_retries": 0,
            }
            if extra:  # never as arguments, which can change hosts and keys
                arguments["extra_body"] = {**(revealed.get("extra_body") or {}), **extra}
            if call.traceparent is not None:
                arguments["extra_headers"] = {**(revealed.get("extra_headers") or {}), "traceparent": call.traceparent}
            return await litellm.acompletion(**(revealed | body | arguments))
        except ProviderFault:  # of the request: nothing was sent
            raise
        except Exception as error:  # litellm passes on what its many clients raise
            fault = self._fault_of(error, answered=False)
        raise fault  # outside of the handler: its context must not contain litellm's message

    async def _chunks(self, answer: Any, call: UpstreamCall) -> AsyncGenerator[Chunk, None]:
        reader = Completion(self.name, self._dialect.thought)
        reader.redact = self._redact.answer
        try:
            if not call.stream:
                for chunk in decode_body(reader, _document(answer)):
                    yield chunk
                return
            async for piece in answer:
                try:
                    reader.take(reader.redact(_document(piece).decode()))
                finally:  # also before a fault
                    for chunk in reader.drain():
                        yield chunk
            reader.end()
            for chunk in reader.drain():
                yield chunk
            return
        except ProviderFault as fault:
            fault.answered = True
            conceal(fault, self._redact)
            raise
        except Exception as error:  # litellm passes on what its many clients raise
            failure = self._fault_of(error, answered=True)
        raise failure  # outside of the handler: its context must not contain litellm's message

    def _fault_of(self, error: Exception, *, answered: bool) -> ProviderFault:
        """Classify an exception of litellm by its type and status."""
        kind = next((_KINDS[base.__name__] for base in type(error).__mro__ if base.__name__ in _KINDS), None)
        status = getattr(error, "status_code", None)
        text = str(getattr(error, "message", ""))
        if not isinstance(status, int) or not 100 <= status < 600 or kind is FaultKind.CONNECT:
            status = None  # litellm makes up one for connection errors
        if kind is FaultKind.CONNECT and answered:
            kind = FaultKind.RESET
        if kind is None:
            kind = FaultKind.SERVER if status is None else kind_of_status(status, "", text)
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        wait = retry_after({str(name).lower(): str(value) for name, value in headers.items()})
        message = f"{self.name} failed in litellm: {type(error).__name__}" + (f", status {status}" if status else "")
        fault = ProviderFault(kind, message, status=status, retry_after=wait, body=start_of(text), answered=answered)
        conceal(fault, self._redact)
        return fault


def _document(piece: Any) -> bytes:
    """Encode an answer or chunk of litellm as JSON."""
    try:
        return str(piece.model_dump_json(warnings=False)).encode()
    except ValueError:  # half a character
        return json.dumps(piece.model_dump(warnings=False), default=str).encode()
