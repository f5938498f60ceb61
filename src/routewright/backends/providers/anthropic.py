"""Anthropic, and every host that speaks its Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.protocols import Clock, Transport
from routewright.wire import Feature, Model, UpstreamCall
from routewright.wire.secret import Secret

from .blocks import Blocks
from .claude import lacks
from .endpoint import Endpoint, check_arguments
from .http import HttpProvider
from .messages import message_body

ANTHROPIC = Endpoint(
    name="anthropic",
    base_url="https://api.anthropic.com",
    key_variables=("ANTHROPIC_API_KEY",),
    url_variable="ANTHROPIC_BASE_URL",
)
VERSION = "2023-06-01"
"""Of the API. The next one, 2026-10-21, takes no temperature for any model, and for what is sent and read here it
changes nothing else."""


class AnthropicProvider(HttpProvider):
    """Serves models over the Messages API, Anthropic's own or another host's.

        AnthropicProvider()                                    # key from ANTHROPIC_API_KEY
        AnthropicProvider("your-key", name="mine", base_url="https://llm.example.com", models=[...])

    Keys and ``headers`` are those of ``OpenAIProvider``; ``base_url`` is written with or without ``/v1``. Where
    neither the call nor the model has a cap for the answer, 4,096 tokens are asked for. How chats are said in this
    protocol stands in ``messages.py``.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "anthropic",
        base_url: str | None = None,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_arguments(name, api_key, base_url, headers)
        super().__init__(
            Messages(name),
            _endpoint(name, base_url),
            api_key,
            base_url=base_url,
            models=models,
            transport=transport,
            headers=headers,
            environ=environ,
            clock=clock,
        )


class Messages:
    """The Messages API (``http.Dialect``)."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def url(self, base_url: str, call: UpstreamCall) -> str:
        """One address for all models."""
        return f"{base_url.removesuffix('/v1')}/v1/messages"

    def credentials(self, key: str) -> dict[str, str]:
        """The key, and the version of the API."""
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def body(self, call: UpstreamCall) -> bytes:
        """The call as a list of turns."""
        return msgspec.json.encode(message_body(call))

    def reader(self, call: UpstreamCall) -> Blocks:
        """Make what reads the call's answer."""
        return Blocks(self._provider, may_be_silent=call.messages[-1].role == "tool")

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """What the model does not take."""
        return lacks(model)

    def learns(self, fault: ProviderFault) -> bool:
        """Nothing is found out by trying."""
        return False


def _endpoint(name: str, base_url: str | None) -> Endpoint:
    if name == ANTHROPIC.name:
        return ANTHROPIC
    if base_url is not None:
        return Endpoint(name=name, base_url=base_url, needs_key=False)
    hint = f"give base_url=..., or leave the name at {ANTHROPIC.name!r}"
    raise ValidationFailed.of(Problem("name", f"no host is known as {name!r}", hint))
