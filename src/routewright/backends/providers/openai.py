"""OpenAI, and every host that speaks its chat completions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.protocols import Clock, Transport
from routewright.wire import FaultKind, Feature, Model, UpstreamCall
from routewright.wire.secret import Secret

from .completion import Completion
from .endpoint import check_arguments, url_of_region
from .hosts import HOSTS, Host
from .http import HttpProvider
from .request import USAGE_FIELD, request_body

_OTHERS = {"anthropic": "AnthropicProvider", "google": "GeminiProvider"}
"""Who serves vendors that are known and no hosts of this protocol."""


class OpenAIProvider(HttpProvider):
    """Serves models over chat completions, OpenAI's own or another host's.

        OpenAIProvider()                                    # key from OPENAI_API_KEY
        OpenAIProvider(name="mistral")                      # key from MISTRAL_API_KEY
        OpenAIProvider("sk-...", name="mine", base_url="https://llm.example.com/v1", models=[...])
        OpenAIProvider(["sk-1...", "sk-2..."])              # the next one where a key is refused or at its limit
        OpenAIProvider(region="eu")                         # kept to a region where the host has one of that name

    Keys are read when the provider is made, from the variable parted by commas; without one where the host needs it
    that raises ``ValidationFailed``. ``headers`` are sent with every request, and kept as secret as the keys.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "openai",
        base_url: str | None = None,
        region: str | None = None,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        host: Host | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_arguments(name, api_key, base_url, headers)
        host = _checked_host(host) or _host(name, base_url)
        super().__init__(
            Chat(host),
            replace(host, name=name),
            api_key,
            base_url=url_of_region(host, region, base_url),
            models=models,
            transport=transport,
            headers=headers,
            environ=environ,
            clock=clock,
        )
        self.region = region
        """Where all calls are served, as policies name it (``protocols.RegionalProvider``)."""


class Chat:
    """Chat completions, as one host speaks them (``http.Dialect``)."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.refuses_usage = False
        """The host has refused to be asked for the usage of a stream, and is asked no more."""

    def url(self, base_url: str, call: UpstreamCall) -> str:
        """One address for all models."""
        return f"{base_url}/chat/completions"

    def credentials(self, key: str) -> dict[str, str]:
        """The key, as a bearer token where the host does not say otherwise."""
        if not key:
            return {}
        header = self._host.key_header
        return {header: f"Bearer {key}" if header == "authorization" else key}

    def body(self, call: UpstreamCall) -> bytes:
        """The call in the host's dialect."""
        body = request_body(call, self._host)
        if self.refuses_usage:
            body.pop(USAGE_FIELD, None)
        return msgspec.json.encode(body)

    def reader(self, call: UpstreamCall) -> Completion:
        """Make what reads the call's answer."""
        return Completion(self._host.name)

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """What the host lacks, and what models that reason take there in its own measure only."""
        return (*self._host.unsupported, *(self._host.unsupported_reasoning if model.reasoning else ()))

    def learns(self, fault: ProviderFault) -> bool:
        """Whether the host refuses to be asked for usage."""
        if fault.kind is not FaultKind.REQUEST or USAGE_FIELD not in (fault.body or ""):
            return False
        self.refuses_usage = True
        return True


def _checked_host(host: object) -> Host | None:
    if isinstance(host, Host | None):
        return host
    hint = "name a known one as name=..., or pass base_url=..."
    raise ValidationFailed.of(Problem("host", f"must be a Host, got {type(host).__name__}", hint))


def _host(name: str, base_url: str | None) -> Host:
    if name in HOSTS:
        return HOSTS[name]
    if base_url is not None:
        return Host(name=name, base_url=base_url, needs_key=False, usage_on_request=True)
    if name in _OTHERS:
        raise ValidationFailed.of(Problem("name", f"{name} has a protocol of its own", f"use {_OTHERS[name]}"))
    near = difflib.get_close_matches(name, HOSTS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValidationFailed.of(
        Problem("name", f"no host is known as {name!r}", f"{hint}give base_url=..., or one of {', '.join(HOSTS)}")
    )
