"""Google's own protocol for Gemini: generateContent, plain and streamed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec

from routewright.errors import ProviderFault
from routewright.protocols import Clock, Transport
from routewright.wire import Feature, FunctionSpec, Model, NamedToolChoice, Params, UpstreamCall
from routewright.wire.secret import Secret

from .contents import contents_of, generation_of, instruction_of, unsayable
from .endpoint import Endpoint, wire_name
from .generate_content import GeneratedContent
from .http import HttpProvider

GOOGLE = Endpoint(
    name="google",
    base_url="https://generativelanguage.googleapis.com",
    key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),  # the first counts, as in Google's own packages
    url_variable="GOOGLE_GEMINI_BASE_URL",
)
MOST_STOPS = 5

_FETCHES = (2, 5)
"""From here on images are fetched by their address."""
_SAMPLES_ALONE = (3, 6)
"""From here on sampling is the model's own: what is asked for is ignored, or refused."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_VERSIONED = re.compile(r"/v\d\w*$")


class GeminiProvider(HttpProvider):
    """Serves Google's models over generateContent.

        GeminiProvider()                                # key from GOOGLE_API_KEY or GEMINI_API_KEY
        GeminiProvider(["AIza1...", "AIza2..."])        # the next one where a key is refused or at its limit

    System and developer messages go before the conversation, wherever they stand in it. Conversations with tool calls
    go on here, whoever made the calls. Keys and ``headers`` are as ``OpenAIProvider`` has them.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "google",
        base_url: str | None = None,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            GenerateContent(name),
            replace(GOOGLE, name=name),
            api_key,
            base_url=base_url,
            models=models,
            transport=transport,
            headers=headers,
            environ=environ,
            clock=clock,
        )


class GenerateContent:
    """generateContent, version v1beta unless the address names one (``http.Dialect``)."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def url(self, base_url: str, call: UpstreamCall) -> str:
        """One address a model, and another for streams."""
        root = base_url if _VERSIONED.search(base_url) else f"{base_url}/v1beta"
        method = "streamGenerateContent?alt=sse" if call.stream else "generateContent"
        return f"{root}/models/{quote(wire_name(call.model), safe='')}:{method}"

    def credentials(self, key: str) -> dict[str, str]:
        """Google's own header."""
        return {"x-goog-api-key": key} if key else {}

    def body(self, call: UpstreamCall) -> bytes:
        """The call as Google takes it."""
        body: dict[str, Any] = {"contents": contents_of(call.messages, generation_of(wire_name(call.model)))}
        if instruction := instruction_of(call.messages):
            body["systemInstruction"] = instruction
        if call.tools:
            specs = [tool.function_spec for tool in call.tools]
            body["tools"] = [{"functionDeclarations": [_declaration(spec) for spec in specs]}]
            if mode := _calling(call.tool_choice, specs):
                body["toolConfig"] = {"functionCallingConfig": mode}
        if config := _config(call):
            body["generationConfig"] = config
        return msgspec.json.encode(body)

    def reader(self, call: UpstreamCall) -> GeneratedContent:
        """Make what reads the call's answer."""
        return GeneratedContent(self._provider)

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """Sampling where the model ignores it; images by their address where none are fetched."""
        generation = generation_of(wire_name(model))
        alone = generation >= _SAMPLES_ALONE or "gemini-3.5-flash-lite" in wire_name(model)
        sampling: tuple[Feature, ...] = ("temperature", "top_p") if alone else ()
        return sampling if generation >= _FETCHES else (*sampling, "image_url")

    def learns(self, fault: ProviderFault) -> bool:
        """There is one way to write a call."""
        return False


def _declaration(spec: FunctionSpec) -> dict[str, Any]:
    """A function whose parameters are a JSON schema, as they came."""
    named = {"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters}
    return {name: value for name, value in named.items() if value is not None}


def _calling(choice: str | NamedToolChoice | None, specs: Sequence[FunctionSpec]) -> dict[str, Any]:
    """Whether functions are called; ``strict`` holds for all of them, if for one."""
    if choice is None or choice == "auto":
        strict = any(spec.strict for spec in specs)
        return {"mode": "VALIDATED"} if strict else {"mode": "AUTO"} if choice else {}
    if isinstance(choice, str) and choice in _MODES:
        return {"mode": _MODES[choice]}
    name = choice if isinstance(choice, str) else choice.function.name
    return {"mode": "ANY", "allowedFunctionNames": [name]}


def _config(call: UpstreamCall) -> dict[str, Any]:
    params = call.params
    lacking = call.model.unsupported or ()  # where it asks for what a model does of itself
    named = {
        "temperature": None if "temperature" in lacking else params.temperature,
        "topP": None if "top_p" in lacking else params.top_p,
        "maxOutputTokens": call.max_output_tokens,
        "stopSequences": _stops(params.stop),
        "seed": None if params.seed is None else int(params.seed),
    }
    return {name: value for name, value in named.items() if value is not None} | _format(params)


def _stops(stop: str | list[str] | None) -> list[str] | None:
    stops = [stop] if isinstance(stop, str) else stop
    if stops and len(stops) > MOST_STOPS:
        raise unsayable(f"takes {MOST_STOPS} stop sequences at most, got {len(stops)}")
    return stops or None


def _format(params: Params) -> dict[str, Any]:
    wanted = params.response_format or {}
    if wanted.get("type") in (None, "text"):
        return {}
    schema = (wanted.get("json_schema") or {}).get("schema")
    return {"responseMimeType": "application/json"} | ({} if schema is None else {"responseJsonSchema": schema})
