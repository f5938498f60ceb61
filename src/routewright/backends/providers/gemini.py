"""Google's generateContent, both ways: the protocol of Gemini.

System and developer messages go before the conversation, wherever they stand in it; names of speakers have no field.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from routewright._core.request.json_scan import object_in
from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault
from routewright.protocols import Clock, Transport
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Feature,
    Finish,
    FunctionSpec,
    ImageUrl,
    Message,
    Model,
    Part,
    TextPart,
    ToolDelta,
    UpstreamCall,
    Usage,
)
from routewright.wire.secret import Secret

from .answer import Function, Piece, ToolCalls, count_of, usage_last
from .endpoint import Endpoint, wire_name
from .faults import CUT, decoded, ended, fault_in_answer, malformed, written
from .http import HttpProvider

GOOGLE = Endpoint(
    name="google",
    base_url="https://generativelanguage.googleapis.com",
    key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),  # the first counts, as in Google's own packages
    url_variable="GOOGLE_GEMINI_BASE_URL",
)
MOST_STOPS = 5
INSTRUCTIONS = ("system", "developer")
UNSIGNED = "skip_thought_signature_validator"
"""Google's word for a call whose thought nobody signed: Gemini 3 and later refuse a history in which there is none."""
NEWEST = (99, 0)
_FETCHES = (2, 5)
"""From here on images are fetched by their address."""
_SIGNING = (3, 0)
"""From here on thoughts are signed, images have a resolution of their own, and results may hold images."""
_SAMPLES_ALONE = (3, 6)
"""From here on sampling is the model's own: what is asked for is ignored, or refused."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_VERSIONED = re.compile(r"/v\d\w*$")
_KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".bmp": "image/bmp"}
"""Of images that are fetched, by the end of their address."""
_UNEXPLAINED = ("OTHER", "IMAGE_OTHER")
"""Finish reasons of an answer that broke off, where Google does not say why."""
_UNSPECIFIED = ("FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")
_WORD = re.compile(r"[A-Z][A-Z_]{0,63}")

Json = dict[str, Any]


class GeminiProvider(HttpProvider):
    """Serves Google's models over generateContent.

        GeminiProvider()                                # key from GOOGLE_API_KEY or GEMINI_API_KEY
        GeminiProvider(["AIza1...", "AIza2..."])        # the next one where a key is refused or at its limit

    System and developer messages go before the conversation, wherever they stand in it. Conversations with tool calls
    go on here, whichever model made the calls. Keys and ``headers`` are as ``OpenAIProvider`` has them.
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
        super().__init__(replace(GOOGLE, name=name), api_key, base_url, models, transport, headers, environ, clock)

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """Sampling if the model ignores it; images by their address if it fetches none."""
        generation = generation_of(model)
        alone = generation >= _SAMPLES_ALONE or "gemini-3.5-flash-lite" in wire_name(model)
        sampling: tuple[Feature, ...] = ("temperature", "top_p") if alone else ()
        return sampling if generation >= _FETCHES else (*sampling, "image_url")

    def _address(self, call: UpstreamCall) -> str:
        """One address a model, and another for streams; v1beta unless the base URL names a version."""
        root = self._url if _VERSIONED.search(self._url) else f"{self._url}/v1beta"
        method = "streamGenerateContent?alt=sse" if call.stream else "generateContent"
        return f"{root}/models/{quote(wire_name(call.model), safe='')}:{method}"

    def _credentials(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def _body(self, call: UpstreamCall) -> bytes:
        return msgspec.json.encode(content_body(call))

    def _reader(self, call: UpstreamCall) -> GeneratedContent:
        return GeneratedContent(self.name)


def generation_of(model: Model) -> tuple[int, int]:
    """The version of Gemini in a model's name; the newest if it has none, (0, 0) if it is no Gemini."""
    name = wire_name(model)
    numbers = re.search(r"gemini-(\d+)(?:\.(\d+))?", name)
    if numbers is None:
        return NEWEST if "gemini" in name else (0, 0)
    return int(numbers[1]), int(numbers[2] or 0)


# --- requests


def content_body(call: UpstreamCall) -> Json:
    """The JSON body. Raises ``ProviderFault("request")`` if the protocol cannot express the call."""
    body: Json = {"contents": _contents(call)}
    if instructions := [*_instructions(call.messages)]:
        body["systemInstruction"] = {"parts": instructions}
    if call.tools:
        specs = [tool.function_spec for tool in call.tools]
        body["tools"] = [{"functionDeclarations": [_declaration(spec) for spec in specs]}]
        if mode := _calling(call, specs):
            body["toolConfig"] = {"functionCallingConfig": mode}
    if config := _config(call):
        body["generationConfig"] = config
    return body


def _instructions(messages: Sequence[Message]) -> Iterator[Json]:
    for message in messages:
        for part in _parts(message.content) if message.role in INSTRUCTIONS else ():
            if not isinstance(part, TextPart):
                raise _unsayable("takes no images in system messages")
            yield {"text": part.text}


def _declaration(spec: FunctionSpec) -> Json:
    named = {"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters}
    return {name: value for name, value in named.items() if value is not None}


def _calling(call: UpstreamCall, specs: Sequence[FunctionSpec]) -> Json:
    """Whether functions are called; ``strict`` holds for all of them, if for one."""
    choice = call.tool_choice
    if choice is None or choice == "auto":
        strict = any(spec.strict for spec in specs)
        return {"mode": "VALIDATED"} if strict else {"mode": "AUTO"} if choice else {}
    if isinstance(choice, str) and choice in _MODES:
        return {"mode": _MODES[choice]}
    name = choice if isinstance(choice, str) else choice.function.name
    return {"mode": "ANY", "allowedFunctionNames": [name]}


def _config(call: UpstreamCall) -> Json:
    params, lacking = call.params, call.model.unsupported or ()  # a model that lacks it does it of itself
    stops = [params.stop] if isinstance(params.stop, str) else params.stop
    if stops and len(stops) > MOST_STOPS:
        raise _unsayable(f"takes {MOST_STOPS} stop sequences at most, got {len(stops)}")
    form = params.response_format or {}
    is_json = form.get("type") not in (None, "text")
    named = {
        "temperature": None if "temperature" in lacking else params.temperature,
        "topP": None if "top_p" in lacking else params.top_p,
        "maxOutputTokens": call.max_output_tokens,
        "stopSequences": stops or None,
        "seed": None if params.seed is None else int(params.seed),
        "responseMimeType": "application/json" if is_json else None,
        "responseJsonSchema": (form.get("json_schema") or {}).get("schema") if is_json else None,
    }
    return {name: value for name, value in named.items() if value is not None}


def _contents(call: UpstreamCall) -> list[Json]:
    """The turns of a conversation; consecutive messages of one role are one turn."""
    signing, contents = generation_of(call.model) >= _SIGNING, list[Json]()
    called: dict[str, str] = {}  # functions, by the id of the last call that had it
    for message in call.messages:
        if message.role in INSTRUCTIONS:
            continue
        role = "model" if message.role == "assistant" else "user"
        if not contents or contents[-1]["role"] != role:
            contents.append({"role": role, "parts": []})
        parts = contents[-1]["parts"]
        if message.role == "tool":
            parts.append(_result(message, called, signing))
            continue
        said = [_part(part, signing) for part in _parts(message.content)]
        calls: list[Json] = []
        for each in message.tool_calls or ():
            called[each.id] = each.function.name
            arguments = object_in(each.function.arguments or "{}")
            if arguments is None:
                raise _unsayable("takes no tool call whose arguments are not a JSON object")
            calls.append({"functionCall": {"id": each.id, "name": each.function.name, "args": arguments}})
        if calls and signing and not any("functionCall" in part for part in parts):  # the first call stands for all
            calls[0]["thoughtSignature"] = UNSIGNED
        parts += [part for part in said if part != {"text": ""}] + calls or said
    if not contents:
        raise _unsayable("needs a message that is not a system message")
    return contents


def _part(part: Part, signing: bool) -> Json:
    if isinstance(part, TextPart):
        return {"text": part.text}
    image, detail = image_of(part.image_url), part.image_url.detail
    if signing and detail in ("low", "high"):
        image["mediaResolution"] = {"level": f"MEDIA_RESOLUTION_{detail.upper()}"}
    return image


def _result(message: Message, called: Mapping[str, str], signing: bool) -> Json:
    """The result of a call, which names the function that was called."""
    id = message.tool_call_id or ""
    name = called.get(id) or message.name
    if not name:
        raise _unsayable("takes no result of a call that the conversation does not hold")
    texts, images = list[str](), list[Json]()
    for part in _parts(message.content):
        if isinstance(part, TextPart):
            texts.append(part.text)
            continue
        image = image_of(part.image_url)
        if not signing or "inlineData" not in image:
            raise _unsayable("takes images in results from Gemini 3 on, and as data: URLs only")
        images.append(image)
    text = "".join(texts)
    response: Json = {"id": id, "name": name, "response": object_in(text) or {"output": text}}
    return {"functionResponse": response | ({"parts": images} if images else {})}


def image_of(image: ImageUrl) -> Json:
    """An image as it is sent: its bytes, or its address."""
    url = image.url
    if url[:5].lower() == "data:":
        head, comma, data = url[5:].partition(",")
        kind, *options = head.split(";")
        if not comma or not data:
            raise _unsayable("takes no data: URL without data")
        if "base64" not in (option.strip().lower() for option in options):
            data = base64.b64encode(unquote_to_bytes(data)).decode()
        return {"inlineData": {"mimeType": kind.lower(), "data": data}}
    if url[:6].lower() != "https:":
        raise _unsayable("takes images by https:// addresses and data: URLs only")
    path = re.split("[?#]", url, maxsplit=1)[0].lower()
    kinds = [kind for end, kind in _KINDS.items() if path.endswith(end)]
    return {"fileData": {"fileUri": url} | ({"mimeType": kinds[0]} if kinds else {})}


def _parts(content: str | list[Part] | None) -> list[Part]:
    if isinstance(content, list):
        return content
    return [] if content is None else [TextPart(content)]


def _unsayable(what: str) -> ProviderFault:
    return ProviderFault(FaultKind.REQUEST, f"generateContent {what}")


# --- answers


class _Call(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    args: Json | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    function_call: _Call | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    index: int | None = None
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Document(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Document)


class GeneratedContent:
    """Reads one answer (``answer.Reader``). A stream ends with its connection: the last reason counts."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._started = False
        """It had a candidate."""
        self._reason: str | None = None
        self._spoke = False
        self._tools = ToolCalls()
        self._usage: Usage | None = None

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give the chunks of an event (``answer.Reader``)."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        yield from self._take(event.data)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give the chunks of a whole answer (``answer.Reader``)."""
        yield from self._take(document)
        if not self._started:
            raise malformed(self._provider, "no candidates", document)
        yield self.end()

    def end(self) -> Finish:
        """Return the end; raises if the answer is empty or not whole."""
        if self._reason is None:
            raise self._fault(FaultKind.TRUNCATED, "ended the answer without a finish reason")
        if self._tools and self._reason == "stop":
            return Finish("tool_calls")
        if not self._spoke and not self._tools and self._reason not in CUT:
            raise malformed(self._provider, "neither text nor function calls")
        return Finish(self._reason)

    def _take(self, document: bytes | str) -> Iterator[Chunk]:
        content = decoded(_decoder, self._provider, document, "no generated content")
        usage = read_usage(content.usage_metadata)
        told, self._usage = self._usage, usage or self._usage
        return usage_last(self._said(content, document), None if usage == told else usage)

    def _said(self, content: _Document, document: bytes | str) -> Iterator[Chunk]:
        if content.error:
            raise fault_in_answer(self._provider, written(document))
        blocked = content.prompt_feedback and content.prompt_feedback.block_reason
        if blocked and not content.candidates:
            is_word = _WORD.fullmatch(blocked) and blocked not in _UNSPECIFIED  # anything else may be text
            raise self._fault(FaultKind.REFUSED, f"refused the prompt{f': {blocked.lower()}' if is_word else ''}")
        for candidate in content.candidates or ():
            if not candidate.index:  # one was asked for
                yield from self._add(candidate)

    def _add(self, candidate: _Candidate) -> Iterator[Chunk]:
        self._started = True
        parts = candidate.content.parts if candidate.content else None
        for part in parts or ():
            if part.function_call is not None:
                yield self._call(part.function_call)
            elif part.text and not part.thought:
                self._spoke = True
                yield Delta(part.text)
        if candidate.finish_reason in _UNEXPLAINED:
            raise self._fault(FaultKind.TRUNCATED, f"broke off with {candidate.finish_reason!r}")
        if candidate.finish_reason:
            self._reason = ended(self._provider, candidate.finish_reason)

    def _call(self, call: _Call) -> ToolDelta:
        if not call.name:
            raise malformed(self._provider, "a function call without a name")
        return self._tools.add(Piece(id=call.id, function=Function(call.name, call.args or {})))

    def _fault(self, kind: FaultKind, what: str) -> ProviderFault:
        return ProviderFault(kind, f"{self._provider} {what}", status=200)


def read_usage(usage: Any) -> Usage | None:
    """Token counts as they were reported; None unless all that are there are sound, the prompt's among them."""
    if not isinstance(usage, dict) or usage.get("promptTokenCount") is None:
        return None
    prompt, results = _count(usage, "promptTokenCount"), _count(usage, "toolUsePromptTokenCount")
    text, thoughts = _count(usage, "candidatesTokenCount"), _count(usage, "thoughtsTokenCount")
    if prompt is None or results is None or text is None or thoughts is None:
        return None
    cached = _count(usage, "cachedContentTokenCount") or 0
    return Usage(prompt + results, text + thoughts, min(cached, prompt), thoughts)


def _count(usage: Json, name: str) -> int | None:
    """A count, 0 if it is left out; None if it is not sound."""
    value = usage.get(name)
    return 0 if value is None else count_of(value)
