"""Google's generateContent, the protocol of Gemini.

System and developer messages go before the conversation. There is no field for names of speakers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack
from urllib.parse import quote, unquote_to_bytes

import msgspec

from routewright import wire
from routewright.errors import ProviderFault
from routewright.wire.json_scan import object_in
from routewright.wire.json_stream import complete_object
from routewright.wire.thoughts import AT, in_places

from .answer import Function, Piece, Reader
from .endpoint import wire_name
from .faults import dicts_of, fault_in_answer, fault_of_document, text_of
from .features import GEMINI_THINKING, SIGNING, generation_of
from .hosts import GOOGLE
from .http import HttpOptions, HttpProvider
from .reasoning import effort_of, merge, thinking_of, tier_of, with_extra
from .tool_ids import with_ids
from .usage import count_of

MOST_STOPS = 5
INSTRUCTIONS = ("system", "developer")
UNSIGNED = "skip_thought_signature_validator"
"""Google's placeholder for a call without a signature, which Gemini 3 and later require."""
_SIGNATURE = "thoughtSignature"
_CALL = "call"
"""In an item: the number of the signed call."""
"""In an item: the number of characters before the signature."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_VERSIONED = re.compile(r"/v\d\w*$")
_KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".bmp": "image/bmp"}
"""Types of fetched images by file name suffix."""
_UNEXPLAINED = ("OTHER", "IMAGE_OTHER")
"""Finish reasons of aborted answers without a known cause."""
_UNSPECIFIED = ("FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")
_WORD = re.compile(r"[A-Z][A-Z_]{0,63}")
_PDF = "application/pdf"
_TIERS = {"default": "standard", "flex": "flex", "priority": "priority"}


class GeminiProvider(HttpProvider):
    """Serves Google's models over generateContent.

        GeminiProvider()                                # key from GOOGLE_API_KEY or GEMINI_API_KEY
        GeminiProvider(["AIza1...", "AIza2..."])        # uses the next key if one is refused or at its limit

    System and developer messages go before the conversation. Conversations with tool calls of other models can continue
    here. Keys and the other options are those of ``OpenAIProvider``.
    """

    _vendor = GOOGLE.name
    quotas = ()  # not in Google's headers

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "google",
        base_url: str | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        super().__init__(replace(GOOGLE, name=name), api_key, base_url, **options)

    def _address(self, call: wire.UpstreamCall) -> str:
        """The address of the model and method; v1beta unless the base URL has a version."""
        root = self._url if _VERSIONED.search(self._url) else f"{self._url}/v1beta"
        method = "streamGenerateContent?alt=sse" if call.stream else "generateContent"
        return f"{root}/models/{quote(wire_name(call.model), safe='')}:{method}"

    def _credentials(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def _body(self, call: wire.UpstreamCall) -> bytes:
        return msgspec.json.encode(content_body(call, self.name))

    def _reader(self, call: wire.UpstreamCall, headers: Mapping[str, str]) -> GeneratedContent:
        return GeneratedContent(self.name, tier_of(headers.get("x-gemini-service-tier")))


# --- requests


def content_body(call: wire.UpstreamCall, provider: str = GOOGLE.name) -> wire.JsonObject:
    """The JSON body of a call. Raises ``ProviderFault("request")`` if it is not expressible."""
    body: wire.JsonObject = {"contents": _build_contents(call, provider)}
    parts = [part for message in call.messages if message.role in INSTRUCTIONS for part in _parts(message.content)]
    texts = [{"text": part.text} for part in parts if isinstance(part, wire.TextPart)]
    if len(texts) < len(parts):
        raise _fault_of("supports only text in system messages")
    if texts:
        body["systemInstruction"] = {"parts": texts}
    if call.tools:
        specs = [tool.function_spec for tool in call.tools]
        body["tools"] = [{"functionDeclarations": [_declare(spec) for spec in specs]}]
        choice = call.tool_choice
        mode: wire.JsonObject = {}
        if choice in (None, "auto") and any(spec.strict for spec in specs):
            mode = {"mode": "VALIDATED"}  # of all functions, as there is no mode of a single one
        elif isinstance(choice, str) and choice in _MODES:
            mode = {"mode": _MODES[choice]}
        elif choice is not None:
            name = choice if isinstance(choice, str) else choice.function.name
            mode = {"mode": "ANY", "allowedFunctionNames": [name]}
        if mode:
            body["toolConfig"] = {"functionCallingConfig": mode}
    params = call.params
    unsupported = call.model.unsupported or ()  # else the model does it anyway
    stops = [params.stop] if isinstance(params.stop, str) else params.stop
    if stops and len(stops) > MOST_STOPS:
        raise _fault_of(f"supports at most {MOST_STOPS} stop sequences, got {len(stops)}")
    form = params.response_format or {}
    is_json = form.get("type") not in (None, "text")
    config = _drop_none({
        "temperature": None if "temperature" in unsupported else params.temperature,
        "topP": None if "top_p" in unsupported else params.top_p,
        "maxOutputTokens": call.max_output_tokens, "stopSequences": stops or None,
        "seed": None if params.seed is None else int(params.seed),
        "responseMimeType": "application/json" if is_json else None,
        "responseJsonSchema": (form.get("json_schema") or {}).get("schema") if is_json else None,
    })  # fmt: skip
    if (effort := effort_of(call)) is not None:
        thinking = thinking_of(GEMINI_THINKING, call.model, generation_of(call.model))
        config = merge(config, thinking.fields(effort, call.max_output_tokens))
    if config:
        body["generationConfig"] = config
    if call.params.service_tier in _TIERS:
        body["serviceTier"] = _TIERS[call.params.service_tier]
    return with_extra(body, call, provider)


def _declare(spec: wire.FunctionSpec) -> wire.JsonObject:
    return _drop_none({"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters})


def _drop_none(fields: wire.JsonObject) -> wire.JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _build_contents(call: wire.UpstreamCall, provider: str) -> list[wire.JsonObject]:
    """The turns. Consecutive messages of one role are joined."""
    signing = generation_of(call.model) >= SIGNING
    contents: list[wire.JsonObject] = []
    functions: dict[str, str] = {}  # by id of their last call
    for message in with_ids(call.messages):
        if message.role in INSTRUCTIONS:
            continue
        role = "model" if message.role == "assistant" else "user"
        if not contents or contents[-1]["role"] != role:
            contents.append({"role": role, "parts": []})
        parts = contents[-1]["parts"]
        if message.role == "tool":
            parts.append(_build_result(message, functions, signing))
            continue
        thought = message.reasoning
        own = thought.items if thought is not None and thought.provider == provider else ()
        items = [item for item in own if isinstance(item.get(_SIGNATURE), str)]
        pieces = _split_text(message.content, items)
        pieces = pieces or [_encode_part(part, signing) for part in _parts(message.content)]
        calls: list[wire.JsonObject] = []
        for tool_call in message.tool_calls or ():
            functions[tool_call.id] = tool_call.function.name
            arguments = msgspec.Raw(complete_object(tool_call.function.arguments).encode())
            calls.append({"functionCall": {"id": tool_call.id, "name": tool_call.function.name, "args": arguments}})
        for item in items:
            if isinstance(number := item.get(_CALL), int) and 0 <= number < len(calls):
                calls[number][_SIGNATURE] = item[_SIGNATURE]
        is_first = calls and signing and not any("functionCall" in part for part in parts)
        if is_first and not any(_SIGNATURE in part for part in calls):
            calls[0][_SIGNATURE] = UNSIGNED  # the first call suffices
        parts += [part for part in pieces if part != {"text": ""}] + calls or pieces
    if not contents:
        raise _fault_of("needs a message that is not a system message")
    return contents


def _split_text(content: str | list[wire.Part] | None, items: Sequence[wire.JsonObject]) -> list[wire.JsonObject]:
    """A text in pieces that end with a signature. Empty if no text is signed."""
    signed = [item for item in items if AT in item]
    if not signed or isinstance(content, list):
        return []
    calls: Sequence[object] = ()
    pieces = in_places(signed, content or "", calls)
    return [{"text": text} | ({_SIGNATURE: item[_SIGNATURE]} if item else {}) for text, _, item in pieces]


def _encode_part(part: wire.Part, signing: bool) -> wire.JsonObject:
    match part:
        case wire.TextPart():
            return {"text": part.text}
        case wire.AudioPart():
            return {"inlineData": {"mimeType": f"audio/{part.input_audio.format}", "data": part.input_audio.data}}
        case wire.FilePart():
            return encode_media(part.file.file_data, _PDF)
    image = encode_media(part.image_url.url)
    detail = part.image_url.detail
    if signing and detail in ("low", "high"):
        image["mediaResolution"] = {"level": f"MEDIA_RESOLUTION_{detail.upper()}"}
    return image


def _build_result(message: wire.Message, functions: Mapping[str, str], signing: bool) -> wire.JsonObject:
    """The result of a call, with the name of its function."""
    id = message.tool_call_id or ""
    name = functions.get(id) or message.name
    if not name:
        raise _fault_of("does not support the result of a call that is not in the conversation")
    texts: list[str] = []
    media: list[wire.JsonObject] = []
    for part in _parts(message.content):
        if isinstance(part, wire.TextPart):
            texts.append(part.text)
            continue
        encoded = _encode_part(part, signing=False)
        if not signing or "inlineData" not in encoded or isinstance(part, wire.AudioPart):
            raise _fault_of("supports images and documents in results only from Gemini 3 on, as data: URLs")
        media.append(encoded)
    text = "".join(texts)
    response: wire.JsonObject = {"id": id, "name": name, "response": object_in(text) or {"output": text}}
    return {"functionResponse": response | ({"parts": media} if media else {})}


def encode_media(url: str, kind: str = "") -> wire.JsonObject:
    """An image or document as data or address. ``kind``: its type, if known."""
    if url[:5].lower() == "data:":
        head = url[5:].partition(",")[0]
        data = url[len(head) + 6 :]
        media_type, *options = head.split(";")
        if not data:
            raise _fault_of("does not support a data: URL without data")
        if "base64" not in (option.strip().lower() for option in options):
            data = base64.b64encode(unquote_to_bytes(data)).decode()
        return {"inlineData": {"mimeType": media_type.lower(), "data": data}}
    if url[:6].lower() != "https:":
        raise _fault_of("supports images and documents only as https:// addresses and data: URLs")
    path = re.split("[?#]", url, maxsplit=1)[0].lower()
    kind = kind or next((kind for end, kind in _KINDS.items() if path.endswith(end)), "")
    return {"fileData": {"fileUri": url} | ({"mimeType": kind} if kind else {})}


def _parts(content: str | list[wire.Part] | None) -> list[wire.Part]:
    if isinstance(content, list):
        return content
    return [] if content is None else [wire.TextPart(content)]


def _fault_of(problem: str) -> ProviderFault:
    return ProviderFault(wire.FaultKind.REQUEST, f"generateContent {problem}")


# --- answers


class _Call(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    args: wire.JsonObject | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
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


class GeneratedContent(Reader):
    """Reads one answer. A stream ends with its connection."""

    holder = "candidates"
    _chars = _called = 0
    _usage: wire.Usage | None = None

    def take(self, document: bytes | str) -> None:
        """Decode a document, usage last."""
        content = self._decode(_decoder, document, "no generated content")
        usage = read_usage(content.usage_metadata)
        is_known = usage == self._usage
        self._usage = usage or self._usage
        self._take(None if is_known else usage, self._read, content, document)

    def _read(self, content: _Document, document: bytes | str) -> None:
        # Reasons that are faults (OTHER) raise at once, after the chunks of their own document: what came before is
        # delivered and billed (contract 2: all attempts that produced tokens). A prompt that was blocked has no
        # candidates at all, which would look like an empty answer. The row "a blocked prompt" of
        # test_generated_content_is_read and test_finish_reasons_without_an_answer_are_faults_after_the_usage prove it.
        if content.error:
            raise fault_in_answer(self._provider, text_of(document))
        blocked = content.prompt_feedback and content.prompt_feedback.block_reason
        if blocked and not content.candidates:
            is_word = _WORD.fullmatch(blocked) and blocked not in _UNSPECIFIED  # else it may be any text
            message = f"{self._provider} refused the prompt{f': {blocked.lower()}' if is_word else ''}"
            raise ProviderFault(wire.FaultKind.REFUSED, message, status=200)
        for candidate in content.candidates or ():
            if candidate.index:  # only one is requested
                continue
            self._started = True
            for part in (candidate.content and candidate.content.parts) or ():
                call = part.function_call
                text = part.text or ""
                if call is None and not part.thought:
                    self._chars += len(text)
                if part.thought_signature:
                    position = {AT: [self._chars, 0]} if call is None else {_CALL: self._called}
                    self.chunks.append(wire.Thought(item={_SIGNATURE: part.thought_signature, **position}))
                if call is not None:
                    self._pieces += 1
                    self._called += 1
                    if not call.name:
                        raise fault_of_document(self._provider, "a function call without a name")
                    self.chunks.append(self._tools.begin(Piece(None, call.id, Function(call.name, call.args or {}))))
                elif text and not part.thought:
                    self._pieces += 1
                    self.chunks.append(wire.Delta(text))
                elif text:
                    self.chunks.append(wire.Thought(text))
            if candidate.finish_reason in _UNEXPLAINED:
                message = f"{self._provider} broke off with {candidate.finish_reason!r}"
                raise ProviderFault(wire.FaultKind.TRUNCATED, message, status=200)
            if candidate.finish_reason:
                self._end_with(candidate.finish_reason)


def read_usage(usage: object) -> wire.Usage | None:
    """The reported token counts, 0 for one that is not known, or None if none is or any is invalid."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage, "promptTokenCount")
    results = _count(usage, "toolUsePromptTokenCount")
    text = _count(usage, "candidatesTokenCount")
    thoughts = _count(usage, "thoughtsTokenCount")
    if prompt is None or results is None or text is None or thoughts is None or not (prompt or text):
        return None
    if not (prompt and text):
        rest = max((_count(usage, "totalTokenCount") or 0) - prompt - results - text - thoughts, 0)
        prompt = prompt or rest
        text = text or rest
    cached = min(_count(usage, "cachedContentTokenCount") or 0, prompt)
    audio = max(_count_audio(usage, "promptTokensDetails") - _count_audio(usage, "cacheTokensDetails"), 0)
    return wire.Usage(prompt + results, text + thoughts, cached, thoughts, audio=min(audio, prompt - cached))


def _count_audio(usage: wire.JsonObject, name: str) -> int:
    """Audio tokens in counts by modality."""
    return sum(_count(row, "tokenCount") or 0 for row in dicts_of(usage.get(name)) if row.get("modality") == "AUDIO")


def _count(usage: wire.JsonObject, name: str) -> int | None:
    """A count, 0 if it is missing, None if it is invalid."""
    value = usage.get(name)
    return 0 if value is None else count_of(value)
