"""Messages as Google has them: contents, each of one role, whose parts are text, images, calls and their results."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from routewright._core.request.json_scan import object_in
from routewright.errors import ProviderFault
from routewright.wire import ImageUrl, Message, Part, TextPart, ToolCall

INSTRUCTIONS = ("system", "developer")
UNSIGNED = "skip_thought_signature_validator"
"""Google's word for a call whose thought nobody signed: Gemini 3 and later refuse a history in which there is none."""
NEWEST = (99, 0)
_SIGNING = (3, 0)
"""From here on thoughts are signed, images have a resolution of their own, and results may hold images."""
_KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".bmp": "image/bmp"}
"""Of images that are fetched by their address, by its end."""

Json = dict[str, Any]


def generation_of(model: str) -> tuple[int, int]:
    """Which Gemini a model is, by its name; none is told by (0, 0). Without a number it is the newest."""
    if "gemini" not in model:
        return (0, 0)
    numbers = re.search(r"gemini-(\d+)(?:\.(\d+))?", model)
    return NEWEST if numbers is None else (int(numbers[1]), int(numbers[2] or 0))


def instruction_of(messages: Sequence[Message]) -> Json | None:
    """What system and developer messages say, wherever they stand in the conversation: it has one place for them."""
    parts = [part for message in messages if message.role in INSTRUCTIONS for part in _instructions(message)]
    return {"parts": parts} if parts else None


def contents_of(messages: Sequence[Message], generation: tuple[int, int]) -> list[Json]:
    """The turns of a conversation, those of one role that follow one another as one.

    Names of speakers have no place there. Raises ``ProviderFault("request")`` for what cannot be said.
    """
    writer, contents = _Writer(generation), list[Json]()
    for message in messages:
        if message.role in INSTRUCTIONS:
            continue
        role = "model" if message.role == "assistant" else "user"
        if not contents or contents[-1]["role"] != role:
            contents.append({"role": role, "parts": []})
        contents[-1]["parts"] += writer.parts_of(message, signed=_has_call(contents[-1]))
    if not contents:
        raise unsayable("needs a message that is not a system message")
    return contents


def unsayable(what: str) -> ProviderFault:
    """The fault of a call that this vendor has no words for."""
    return ProviderFault("request", f"generateContent {what}")


def _instructions(message: Message) -> Iterator[Json]:
    for part in _parts(message.content):
        if not isinstance(part, TextPart):
            raise unsayable("takes no images in system messages")
        yield {"text": part.text}


def _has_call(content: Json) -> bool:
    return any("functionCall" in part for part in content["parts"])


class _Writer:
    """Writes messages in their order: results name the function that was called."""

    def __init__(self, generation: tuple[int, int]) -> None:
        self._signing = generation >= _SIGNING
        self._called: dict[str, str] = {}
        """Functions, by the id of the last call that had it."""

    def parts_of(self, message: Message, *, signed: bool) -> list[Json]:
        """The parts of one message; ``signed``: a call before it in this turn stands for all."""
        if message.role == "tool":
            return [self._result(message)]
        said = [self._part(part) for part in _parts(message.content)]
        calls = [self._call(call) for call in message.tool_calls or ()]
        if calls and self._signing and not signed:
            calls[0]["thoughtSignature"] = UNSIGNED
        return [part for part in said if part != {"text": ""}] + calls or said

    def _part(self, part: Part) -> Json:
        if isinstance(part, TextPart):
            return {"text": part.text}
        image, detail = image_of(part.image_url), part.image_url.detail
        if self._signing and detail in ("low", "high"):
            image["mediaResolution"] = {"level": f"MEDIA_RESOLUTION_{detail.upper()}"}
        return image

    def _call(self, call: ToolCall) -> Json:
        self._called[call.id] = call.function.name
        arguments = object_in(call.function.arguments or "{}")
        if arguments is None:
            raise unsayable("takes no tool call whose arguments are not a JSON object")
        return {"functionCall": {"id": call.id, "name": call.function.name, "args": arguments}}

    def _result(self, message: Message) -> Json:
        id = message.tool_call_id or ""
        name = self._called.get(id) or message.name
        if not name:
            raise unsayable("takes no result of a call that the conversation does not hold")
        parts = _parts(message.content)
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        response = {"id": id, "name": name, "response": object_in(text) or {"output": text}}
        images = [self._shown(part) for part in parts if not isinstance(part, TextPart)]
        return {"functionResponse": response | ({"parts": images} if images else {})}

    def _shown(self, part: Part) -> Json:
        image = self._part(part)
        if not self._signing or "inlineData" not in image:
            raise unsayable("takes images in results from Gemini 3 on, and as data: URLs only")
        return {"inlineData": image["inlineData"]}


def image_of(image: ImageUrl) -> Json:
    """An image as it is sent: what is in it, or where it is."""
    url = image.url
    if url[:5].lower() == "data:":
        return {"inlineData": _data(url)}
    if url[:6].lower() != "https:":
        raise unsayable("takes images by https:// addresses and data: URLs only")
    kind = next((kind for end, kind in _KINDS.items() if _path(url).endswith(end)), None)
    return {"fileData": {"fileUri": url} | ({"mimeType": kind} if kind else {})}


def _data(url: str) -> Json:
    head, comma, data = url[5:].partition(",")
    kind, *options = head.split(";")
    if not comma or not data:
        raise unsayable("takes no data: URL without data")
    if "base64" not in (option.strip().lower() for option in options):
        data = base64.b64encode(unquote_to_bytes(data)).decode()
    return {"mimeType": kind.lower(), "data": data}


def _path(url: str) -> str:
    return re.split("[?#]", url, maxsplit=1)[0].lower()


def _parts(content: str | list[Part] | None) -> list[Part]:
    if isinstance(content, list):
        return content
    return [] if content is None else [TextPart(content)]
