"""Models that the package ``litellm`` calls, for vendors whose own protocol is not spoken here.

It runs on asyncio alone. Its retries are off, since the Router has its own. What it says of a fault may hold the
prompt, and is kept in ``ProviderFault.body`` only.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from routewright._core.attempts.faults import kind_of_status
from routewright._core.catalogue.models.models import models_of
from routewright.backends.clock import SystemClock
from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.protocols import Clock
from routewright.wire import Chunk, FaultKind, Feature, Model, UpstreamCall
from routewright.wire.secret import Secret

from .answer import read_whole
from .endpoint import Redactor, check_arguments, wire_name
from .faults import conceal, retry_after, start_of
from .hosts import Host
from .openai import Completion, request_body

_OFFLINE = "LITELLM_LOCAL_MODEL_COST_MAP"


def _imported() -> Any:
    """The package, without the download of prices that it makes on import."""
    before = os.environ.get(_OFFLINE)
    os.environ[_OFFLINE] = "True"
    try:
        return import_module("litellm")
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(
            f"{__name__} needs the extra 'litellm' ({exc.name} is missing): pip install 'routewright[litellm]'",
            name=exc.name,
        ) from exc
    finally:
        if before is None:
            del os.environ[_OFFLINE]
        else:
            os.environ[_OFFLINE] = before


litellm = _imported()
litellm.suppress_debug_info = True  # else it prints advice with every fault

_KINDS = {
    "Timeout": FaultKind.TIMEOUT,
    "APIConnectionError": FaultKind.CONNECT,
    "APIResponseValidationError": FaultKind.MALFORMED,
    "ContentPolicyViolationError": FaultKind.REFUSED,
    "ContextWindowExceededError": FaultKind.CONTEXT_OVERFLOW,
}
"""By the class that says more than its status."""
_FEATURES: tuple[Feature, ...] = ("temperature", "top_p", "stop", "seed", "tool_choice")
"""As it calls them too."""
_SECRETS = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
"""Variables whose values are hidden, since it finds its keys by itself."""
_SHORTEST_S = 0.001


class LiteLLMProvider:
    """Serves models through ``litellm.acompletion``.

        LiteLLMProvider("amazon-bedrock", vendor="bedrock")          # the catalogue's models of that name
        LiteLLMProvider("acme", vendor="watsonx", models=[...], options={"project_id": "..."})

    ``vendor`` is litellm's word for who serves them, ``name`` by default. Keys are read as litellm reads them, from the
    environment, unless ``api_key`` is given; ``options`` go with every call.
    """

    needs_scope = True  # some of its clients stand on httpcore, which shields its clean-up

    def __init__(
        self,
        name: str,
        *,
        vendor: str = "",
        models: Sequence[Model] = (),
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_arguments(name)
        if not isinstance(api_key, str | None):
            raise ValidationFailed.of(Problem("api_key", f"must be a string, got {type(api_key).__name__}", ""))
        self.name = name
        self._vendor = vendor or name
        self._models = models_of(models)
        self._key = Secret(api_key or "")
        self._options = dict(options or {})
        self._clock = SystemClock() if clock is None else clock
        self._dialect = Host(name=name, base_url="", usage_on_request=True)
        self._redact = Redactor(self._secrets(os.environ if environ is None else environ))

    def __repr__(self) -> str:
        return f"LiteLLMProvider({self.name!r}, vendor={self._vendor!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError("LiteLLMProvider is not copied or pickled, since its key would go along; make another one")

    def models(self) -> Sequence[Model]:
        """The models it was made with; none: those of the catalogue under its name."""
        return self._models

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """What litellm says that it cannot ask of a model (``protocols.ParticularProvider``)."""
        try:
            known = litellm.get_supported_openai_params(model=wire_name(model), custom_llm_provider=self._vendor)
        except Exception:  # it is asked again with the call, and says then what is wrong
            known = None
        return () if known is None else tuple(feature for feature in _FEATURES if feature not in known)

    def open(self, call: UpstreamCall) -> _Call:
        """Start one call (``protocols.Provider``)."""
        return _Call(self, call)

    async def aclose(self) -> None:
        """Nothing is held: litellm keeps its connections for all who use it."""

    def _secrets(self, environ: Mapping[str, str]) -> list[Secret]:
        """What must be seen nowhere."""
        own = [self._key, *(value for value in self._options.values() if isinstance(value, Secret))]
        return own + [Secret(value) for name, value in environ.items() if _SECRETS.search(name.upper())]

    async def _answer(self, call: UpstreamCall) -> Any:
        """Ask; an answer, or an iterator of its pieces."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ProviderFault(FaultKind.REQUEST, f"{self.name} needs asyncio, as litellm does") from None
        try:
            return await litellm.acompletion(**self._arguments(call))
        except Exception as error:
            fault = self._fault(error, answered=False)
        raise fault  # out here, so that it does not drag along what litellm says

    def _arguments(self, call: UpstreamCall) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.to_builtins(request_body(call, self._dialect))
        given = {**self._options, **({"api_key": self._key} if self._key.reveal() else {})}
        opened: dict[str, Any] = {
            name: value.reveal() if isinstance(value, Secret) else value for name, value in given.items()
        }
        timeout = max(call.deadline - self._clock.monotonic(), _SHORTEST_S)
        own: dict[str, Any] = {
            "model": f"{self._vendor}/{wire_name(call.model)}",
            "timeout": timeout,
            "num_retries": 0,
            "max_retries": 0,
        }
        if call.traceparent is not None:
            own["extra_headers"] = {**(opened.get("extra_headers") or {}), "traceparent": call.traceparent}
        return opened | body | own

    def _fault(self, error: Exception, *, answered: bool) -> ProviderFault:
        """What an exception of litellm's means, by its type and status."""
        named = next((_KINDS[each.__name__] for each in type(error).__mro__ if each.__name__ in _KINDS), None)
        status, said = _status(error), str(getattr(error, "message", ""))
        if named is FaultKind.CONNECT:  # its status is made up
            named, status = FaultKind.RESET if answered else named, None
        kind = named or (FaultKind.SERVER if status is None else kind_of_status(status, "", said))
        what = f"{type(error).__name__}" + (f", status {status}" if status else "")
        fault = ProviderFault(
            kind, f"{self.name} failed in litellm: {what}",
            status=status, retry_after=retry_after(_headers(error)), body=start_of(said), answered=answered,
        )  # fmt: skip
        return self._concealed(fault)

    def _concealed(self, fault: ProviderFault) -> ProviderFault:
        conceal(fault, self._redact)
        return fault


class _Call:
    """One call, read as chunks."""

    def __init__(self, provider: LiteLLMProvider, call: UpstreamCall) -> None:
        self._provider = provider
        self._call = call
        self._reader = Completion(provider.name)
        self._answer: Any = None
        self._chunks: Iterator[Chunk] = iter(())
        self._ended = False

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        self._answer = await self._provider._answer(self._call)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close = getattr(self._answer, "aclose", None)
        if close is not None:
            await close()

    def __aiter__(self) -> _Call:
        return self

    async def __anext__(self) -> Chunk:
        try:
            while True:
                for chunk in self._chunks:
                    return chunk
                if self._ended:
                    break
                self._chunks = await self._read()
        except ProviderFault as fault:
            fault.answered = True
            self._provider._concealed(fault)
            raise
        except Exception as error:
            told = self._provider._fault(error, answered=True)
        else:
            raise StopAsyncIteration
        raise told  # out here, so that it does not drag along what litellm says

    async def _read(self) -> Iterator[Chunk]:
        """The chunks of the next piece, or of the whole."""
        if not self._call.stream:
            self._ended = True
            return read_whole(self._reader, _document(self._answer))
        piece = await anext(self._answer, None)
        if piece is not None:
            return self._reader.take(_document(piece))
        self._ended = True
        return iter((self._reader.end(),))


def _document(piece: Any) -> bytes:
    """One of litellm's answers as the JSON that it stands for."""
    text: str = piece.model_dump_json(warnings=False)
    return text.encode()


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and 100 <= status < 600 else None


def _headers(error: Exception) -> dict[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return {str(name).lower(): str(value) for name, value in headers.items()}
