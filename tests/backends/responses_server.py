"""A server of the Responses API: the types of the ``openai`` package, and rules that only the vendor's errors say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_type_hints

from openai.types.responses.response_create_params import ResponseCreateParams

from tests.upstream import Answer, Piece, Request, Upstream, of_json

from .openai_server import violations

USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 32,
}
KNOWN = set(get_type_hints(ResponseCreateParams.__args__[0]))


def thought(number: int = 1, *summary: str, **more: Any) -> dict[str, Any]:
    """An item of reasoning."""
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": parts, "encrypted_content": f"gAAA{number}", **more}


def said(*texts: str, **more: Any) -> dict[str, Any]:
    """A message of the assistant."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content, **more}


def called(name: str, arguments: Any, id: str = "call_1", **more: Any) -> dict[str, Any]:
    """A function call."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    item = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": text}
    return item | {"status": "completed"} | more


def refused(text: str = "No.") -> dict[str, Any]:
    return said() | {"content": [{"type": "refusal", "refusal": text}]}


def whole(*output: dict[str, Any] | str, status: str = "completed", **more: Any) -> dict[str, Any]:
    """A response."""
    items = [said(item) if isinstance(item, str) else item for item in output]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": items,
        "usage": USAGE,
        "service_tier": "default",
        "store": False,
        **more,
    }


def events_of(response: dict[str, Any], size: int = 3) -> list[dict[str, Any]]:
    """The vendor's events of a response."""
    start = response | {"status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": start},
        {"type": "response.in_progress", "response": start},
    ]
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        blank = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}
        opening = item | blank.get(item["type"], {}) | {"status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": index, "item": opening})
        events += [event | place for event in _events_of_item(item, size)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{response['status']}", "response": response})
    return [{"sequence_number": number, **event} for number, event in enumerate(events)]


def _events_of_item(item: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "function_call":
            stem = "response.function_call_arguments"
            yield from ({"type": f"{stem}.delta", "delta": piece} for piece in _cut(item["arguments"], size))
            yield {"type": f"{stem}.done", "arguments": item["arguments"], "name": item["name"]}
        case "reasoning":
            for index, part in enumerate(item["summary"]):
                stem = "response.reasoning_summary"
                at = {"summary_index": index}
                yield {"type": f"{stem}_part.added", "part": part | {"text": ""}, **at}
                yield from ({"type": f"{stem}_text.delta", "delta": piece, **at} for piece in _cut(part["text"], size))
                yield {"type": f"{stem}_text.done", "text": part["text"], **at}
                yield {"type": f"{stem}_part.done", "part": part, **at}
        case "message":
            for index, part in enumerate(item["content"]):
                at = {"content_index": index}
                field = "refusal" if part["type"] == "refusal" else "text"
                stem = "response.refusal" if field == "refusal" else "response.output_text"
                yield {"type": "response.content_part.added", "part": part | {field: ""}, **at}
                yield from ({"type": f"{stem}.delta", "delta": piece, **at} for piece in _cut(part[field], size))
                yield {"type": f"{stem}.done", field: part[field], **at}
                yield {"type": "response.content_part.done", "part": part, **at}


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def sse(*events: dict[str, Any] | Piece, named: bool = True) -> Answer:
    """Events as a stream. ``named``: with an ``event:`` line."""
    pieces: list[Piece] = []
    for event in events:
        if not isinstance(event, dict):
            pieces.append(event)
            continue
        name = f"event: {event['type']}\n" if named and "type" in event else ""
        pieces.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
    return Answer(pieces, headers={"content-type": "text/event-stream"}, chunked=True)


def answer_to(request: Request, response: dict[str, Any]) -> Answer:
    """A response, plain or streamed as requested."""
    return sse(*events_of(response)) if request.body.get("stream") else of_json(response)


class ResponsesServer(Upstream):
    """Refuses what the vendor refuses, with its status and words."""

    def steps(self, method: str, path: str, headers: Any, body: bytes) -> Any:
        request = Request(method, path, headers, body)
        problems = problems_of(request.body) if path.endswith("/responses") else [f"Invalid URL ({method} {path})"]
        if not problems:
            return super().steps(method, path, headers, body)
        self.requests.append(request)
        self.problems += problems
        error = {"message": problems[0], "type": "invalid_request_error", "param": None, "code": None}
        return of_json({"error": error}, 400).steps


def problems_of(body: Any) -> list[str]:
    """What the vendor says against a request."""
    problems = [*problems_of_form(body), *_problems_of_input(body["input"])]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("name") not in [tool["name"] for tool in body.get("tools", ())]:
        problems.append(f"Tool choice {choice} not found in 'tools' parameter.")
    return problems


def problems_of_form(body: Any) -> list[str]:
    """What the vendor says against the fields of a request."""
    problems = [f"Unknown parameter: '{name}'." for name in body.keys() - KNOWN - {"stream"}]
    cap = body.get("max_output_tokens")
    if cap is not None and cap < 16:
        problems.append(f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, got {cap}.")
    if body.get("store") is not False:
        problems.append("Response objects are stored for 30 days.")
    problems += [problem[:300] for problem in violations(ResponseCreateParams, body)]
    for tool in body.get("tools", ()):
        if tool.get("strict") is None and "additionalProperties" not in tool["parameters"]:
            problems.append(f"Invalid schema for function '{tool['name']}': 'additionalProperties' is required.")
    return problems


def _problems_of_input(items: list[dict[str, Any]]) -> Iterator[str]:
    made: set[str] = set()
    open_calls: list[str] = []
    for number, item in enumerate(items):
        following = items[number + 1] if number + 1 < len(items) else {}
        kind = item.get("type", "message")
        own = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if kind == "reasoning":
            if not item.get("encrypted_content"):
                yield f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
            follows = following.get("type") in ("reasoning", "function_call") or following.get("role") == "assistant"
            if not follows:
                yield f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
        if own and item.get("id") and kind != "reasoning":
            yield f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
        if kind == "function_call":
            if item["call_id"] in made:
                yield f"Duplicate call_id '{item['call_id']}'."
            if len(item["call_id"]) > 64:
                yield "Invalid 'input[].call_id': string too long."
            json.loads(item["arguments"])
            made.add(item["call_id"])
            open_calls.append(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in made:
                yield f"No tool call found for function call output with call_id {item['call_id']}."
            elif item["call_id"] in open_calls:
                open_calls.remove(item["call_id"])
        elif item.get("role") == "assistant" and not isinstance(item["content"], str):
            yield from (
                "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'."
                for part in item["content"]
                if part["type"] not in ("output_text", "refusal")
            )
        for part in item["content"] if isinstance(item.get("content"), list) else ():
            if part.get("file_url") and part.get("filename"):
                yield "Mutually exclusive parameters: 'file_url' and 'filename'."
    yield from (f"No tool output found for function call {id}." for id in open_calls)
