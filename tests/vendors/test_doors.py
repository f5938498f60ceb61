"""What clients of other vendors send, and what they get: broken tool arguments, blocks and items, coding agents."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from routewright import Caller, Catalogue, Delta, Finish, Model, Pricing, Router
from routewright.server import create_app
from routewright.testing import ScriptedProvider
from routewright.wire import ToolDelta, UpstreamCall, text_of
from routewright.wire.json_stream import JsonObjectStream, complete_object
from tests.server.asgi_client import Client, ask, scope_of
from tests.tables import table

CHAT = "/openai/v1/chat/completions"
RESPONSES = "/openai/v1/responses"
MESSAGES = "/anthropic/v1/messages"
CLIENTS = Path(__file__).parent.parent / "data" / "clients"
ONE = Model(id="test/one", quality=0.9, context_window=100_000, modalities=("text", "tool"), reasoning=True)
HI = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

pytestmark = pytest.mark.anyio


async def sent(path: str, body: dict[str, Any], *model: Any, **scope: Any) -> tuple[Client, list[UpstreamCall]]:
    """What a client gets for a body, and the calls upstream. ``model``: the pieces of the model's answer."""
    provider = ScriptedProvider([[*model, Finish("stop")]], models=[ONE])
    app = create_app(Router(providers=[provider]), authenticate=lambda _: Caller())
    defaults = {"model": "auto", **({} if path.endswith("responses") else {"max_tokens": 9})}
    return await ask(app, scope_of(path=path, **scope), {**defaults, **body}), provider.calls


@table(("path", "name"), [(CHAT, "gpt-4.1"), (RESPONSES, "gpt-4.1"), (MESSAGES, "claude-sonnet-4-6")])
async def test_an_alias_of_the_operator_is_not_the_vendor_s_model(path: str, name: str) -> None:
    row = {"id": "azure/mine", "quality": 0.5, "pricing_per_1m": Pricing(1.0, 1.0)}
    router = Router.sandbox(catalogue=Catalogue().overlaid([row], aliases={name: "azure/mine"}))
    app = create_app(router, authenticate=lambda _: Caller())
    text = {"input": "Hi"} if path == RESPONSES else {"messages": [HI], "max_tokens": 9}
    answer = await ask(app, scope_of(path=path), {"model": name, **text})
    assert json.loads(answer.body)["model"] == "azure/mine"


def events_of(answer: Client) -> list[dict[str, Any]]:
    data = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(each) for each in data if each != b"[DONE]"]


def items_of(answer: Client) -> Any:
    """The output of a streamed answer, put together as clients do, without its ids."""
    events = events_of(answer)
    if events[0].get("object") == "chat.completion.chunk":
        return _chat_of(event["choices"][0]["delta"] for event in events if event["choices"])
    if events[0]["type"] == "message_start":
        return _blocks_of(events)
    for event in events:
        EVENT.validate_python(event)
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in output]


def _chat_of(deltas: Any) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for delta in deltas:
        calls = delta.pop("tool_calls", [])
        message |= {"content": (message.get("content") or "") + delta.pop("content")} if delta.get("content") else delta
        for piece in calls:
            known = message.setdefault("tool_calls", [])
            index = piece.pop("index")
            if index == len(known):
                known.append(piece)
            else:
                known[index]["function"]["arguments"] += piece["function"]["arguments"]
    return message


def _blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            texts[event["index"]] = texts.get(event["index"], "") + delta.get("text", delta.get("partial_json", ""))
    for index, text in texts.items():
        blocks[index] |= {"text": text} if blocks[index]["type"] == "text" else {"input": json.loads(text)}
    return blocks


# C. Tool arguments


def streamed(*pieces: str) -> str:
    stream = JsonObjectStream()
    return "".join(map(stream.add, pieces)) + stream.finish()


ARGUMENTS = [
    pytest.param('{"order": 7}', '{"order": 7}', id="C sound"),
    pytest.param(' {"a": [1, {"b": null}]}\n', ' {"a": [1, {"b": null}]}\n', id="C sound, with blanks"),
    pytest.param("", "{}", id="C qwen: no arguments"),
    pytest.param(" \n", "{}", id="C vllm: blank arguments"),
    pytest.param('{"order": 7', {"order": None}, id="C ollama: cut after a number that may go on"),
    pytest.param('{"order": 7, ', {"order": 7}, id="C cut after a comma"),
    pytest.param('{"path": "a", "text": "b', {"path": "a", "text": False}, id="C deepseek: cut in a text"),
    pytest.param('{"path": "a"', {"path": "a"}, id="C llama.cpp: the last brace is missing"),
    pytest.param('{"todos": [{"a": "b"}, {"a"', {"todos": False}, id="C cut in a list"),
    pytest.param('{"a": "b\\ud83d', {"a": False}, id="C cut in a pair of surrogates"),
    pytest.param('{"a": "b\\u00', {"a": False}, id="C cut in an escape"),
    pytest.param('{"a": "b\nc"}', {"a": False}, id="C glm: a raw line break"),
    pytest.param("{'a': 1}", {}, id="C mistral: single quotes"),
    pytest.param('{"a": True}', {"a": None}, id="C a word of Python"),
    pytest.param('{"a": 1,}', {"a": 1}, id="C a comma too many"),
    pytest.param('{"a": 1}{"a": 2}', {"a": 1}, id="C two objects"),
    pytest.param('{"a": 1}</tool_call>', {"a": 1}, id="C hermes: a tag after the object"),
    pytest.param('"{\\"a\\": 1}"', {}, id="C encoded twice"),
    pytest.param("null", {}, id="C null"),
    pytest.param("[1]", {}, id="C a list"),
    pytest.param("I cannot", {}, id="C prose"),
    pytest.param('{"a": 1e999}', {"a": None}, id="C a number out of range"),
    pytest.param('{"a":' + "[" * 70 + "]" * 70 + "}", {"a": False}, id="C nested too deep to be sent back"),
    pytest.param('{"a": 1' + " " * 9000, {"a": 1}, id="C gemini: blanks without end"),
    pytest.param("{" + "x" * 9000 + "}", {}, id="C garbage without end"),
]


@table(("text", "expected"), ARGUMENTS)
def test_arguments_become_one_json_object(text: str, expected: str | dict[str, Any]) -> None:
    for size in (1, 3, len(text) or 1):
        joined = streamed(*(text[start : start + size] for start in range(0, len(text), size)))
        if isinstance(expected, str):
            assert joined == complete_object(text) == expected
        else:
            assert json.loads(joined) == {**expected, "INVALID_JSON": text}
            assert json.loads(complete_object(text)) == {"INVALID_JSON": text}


_json = st.recursive(
    st.sampled_from([None, True, False, -(10**20), 1e300, -0.5]) | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_sound = st.builds(json.dumps, st.dictionaries(st.text(), _json, max_size=4), ensure_ascii=st.booleans())
_odd = st.text('{}[]":,\\ \n07.eE+-truefalsn\x01ud83cé\U0001f600', max_size=30) | st.text()
_cuts = st.lists(st.integers(0, 60), max_size=8)


def parts_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


@given(st.one_of(_odd, _sound, st.tuples(_sound, _odd).map("".join)), st.integers(0, 200), _cuts)
def test_any_pieces_join_to_one_json_object(text: str, size: int, cuts: list[int]) -> None:
    text = text[:size]
    joined = streamed(*parts_of(text, cuts))
    tree = json.loads(joined)
    assert type(tree) is dict
    assert joined == streamed(text), "the pieces do not matter"
    assert joined == text or tree.get("INVALID_JSON") == text or not text.strip(), "nothing is lost"
    assert json.loads(complete_object(text)) == (tree if joined == text or not text.strip() else {"INVALID_JSON": text})


@given(_sound, _cuts)
def test_sound_arguments_pass_unchanged(text: str, cuts: list[int]) -> None:
    assert streamed(*parts_of(text, cuts)) == text == complete_object(text)


@given(st.dictionaries(st.text(max_size=9), _json, min_size=1, max_size=4), st.integers(1, 200))
def test_a_member_that_is_cut_off_is_not_delivered(tree: dict[str, Any], size: int) -> None:
    text = json.dumps(tree)
    cut: dict[str, Any] = json.loads(streamed(text[: min(size, len(text) - 1)]))
    cut.pop("INVALID_JSON")
    odd = [value for name, value in cut.items() if name not in tree or value != tree[name]]
    assert odd in ([], [None], [False])


def test_valid_text_is_sent_at_once() -> None:
    stream = JsonObjectStream()
    pieces = ['{"path": "a.py", "content": "on', "e\\", "ntwo", '", "n": 1', "2", "}"]
    assert [stream.add(piece) for piece in pieces] == [
        '{"path": "a.py", "content": "on',
        "e",
        "\\ntwo",
        '", "n":',
        "",
        " 12",
    ]
    assert stream.finish() == "}"


_CALL: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [HI], "tools": [{"type": "function", "function": {"name": "f"}}]},
    RESPONSES: {"input": "Hi", "tools": [TOOL]},
    MESSAGES: {"messages": [HI], "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
}


def arguments_in(path: str, answer: Any) -> Any:
    """The arguments of the only call of an answer."""
    if path == CHAT:
        return json.loads(answer["tool_calls"][0]["function"]["arguments"])
    return json.loads(answer[0]["arguments"]) if path == RESPONSES else answer[0]["input"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("text", "plain", "live"),
    [
        pytest.param('{"order": "7"}', {"order": "7"}, {"order": "7"}, id="C sound"),
        pytest.param("", {}, {}, id="C no arguments"),
        pytest.param("oops", {"INVALID_JSON": "oops"}, {"INVALID_JSON": "oops"}, id="C prose"),
        pytest.param('{"a": "b', {"INVALID_JSON": '{"a": "b'}, {"a": False, "INVALID_JSON": '{"a": "b'},
            id="C cut in a text"),
    ],
)  # fmt: skip
async def test_doors_hand_out_valid_arguments(path: str, text: str, plain: Any, live: Any) -> None:
    pieces = [ToolDelta(0, "", "c", "f"), *(ToolDelta(0, character) for character in text)]
    answer, _ = await sent(path, _CALL[path], *pieces)
    body = answer.json
    whole = body["choices"][0]["message"] if path == CHAT else body.get("output", body.get("content"))
    assert arguments_in(path, whole) == plain
    answer, _ = await sent(path, {**_CALL[path], "stream": True}, *pieces)
    assert arguments_in(path, items_of(answer)) == live


NONE = object()


@table("path", [CHAT, RESPONSES, MESSAGES])
@table(
    ("value", "upstream"),
    [
        pytest.param(NONE, "{}", id="C zed: missing"),
        pytest.param(None, "{}", id="C null"),
        pytest.param("", "{}", id="C litellm: empty"),
        pytest.param(" \n", "{}", id="C blank"),
        pytest.param('{"a": 1}', '{"a": 1}', id="C a text"),
        pytest.param({"a": 1}, '{"a":1}', id="C ollama: an object"),
        pytest.param('{"order": 7', '{"INVALID_JSON":"{\\"order\\": 7"}', id="C cline: cut off"),
        pytest.param("null", '{"INVALID_JSON":"null"}', id="C the word null"),
        pytest.param([1], '{"INVALID_JSON":"[1]"}', id="C a list"),
    ],
)
async def test_histories_with_odd_arguments_are_accepted(path: str, value: Any, upstream: str) -> None:
    field = "input" if path == MESSAGES else "arguments"
    call = {"name": "f", **({} if value is NONE else {field: value})}
    history: dict[str, Any] = {
        CHAT: {
            "messages": [
                HI,
                {"role": "assistant", "tool_calls": [{"id": "c", "function": call}], "function_call": None},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ]
        },
        RESPONSES: {
            "input": [
                HI,
                {"type": "function_call", "call_id": "c", **call},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]
        },
        MESSAGES: {
            "messages": [
                HI,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", **call}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
            ]
        },
    }
    answer, calls = await sent(path, {**_CALL[path], **history[path]}, Delta("ok"))
    assert answer.status == 200, answer.body
    turn = calls[0].messages[1]
    assert turn.tool_calls is not None
    assert turn.tool_calls[0].function.arguments == upstream


@pytest.mark.parametrize(
    ("message", "content"),
    [
        pytest.param({"content": "Hi", "tool_calls": []}, "Hi", id="C continue: no calls"),
        pytest.param(
            {"content": "Hi", "tool_calls": None, "audio": None, "annotations": []}, "Hi", id="C openai: dumped"
        ),
        pytest.param({"content": None, "tool_calls": []}, "", id="C open-webui: an empty turn"),
        pytest.param({"content": None, "audio": {"id": "audio_1"}}, "", id="C openai: stored audio"),
        pytest.param({"content": []}, "", id="C librechat: no parts"),
        pytest.param({}, "", id="C vercel: no content"),
        pytest.param({"content": None, "refusal": "No."}, "No.", id="C openai: a refusal"),
    ],
)
async def test_assistant_turns_without_content_are_accepted(message: dict[str, Any], content: str) -> None:
    messages = [HI, {"role": "assistant", **message}, HI]
    answer, calls = await sent(CHAT, {"messages": messages}, Delta("ok"))
    assert answer.status == 200, answer.body
    assert calls[0].messages[1].content == content


@pytest.mark.parametrize("content", [pytest.param(None, id="C null"), pytest.param([], id="C no parts")])
async def test_results_of_tools_without_content_are_accepted(content: Any) -> None:
    call = {"role": "assistant", "content": [], "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    messages = [HI, call, {"role": "tool", "tool_call_id": "c", "content": content}]
    answer, calls = await sent(CHAT, {"messages": messages}, Delta("ok"))
    assert (answer.status, calls[0].messages[2].content) == (200, "")


# K. Blocks and items of tools that their vendors ran


async def note(path: str, role: str, block: dict[str, Any]) -> str:
    """The text that a block becomes."""
    body: dict[str, Any] = {"messages": [HI, {"role": role, "content": [block]}]}
    if path == RESPONSES:
        body = {"input": [HI, block]}
    answer, calls = await sent(path, body, Delta("ok"))
    assert answer.status == 200, answer.body
    assert "x-routewright-ignored" not in answer.headers
    content = calls[0].messages[-1].content
    return content if isinstance(content, str) else "".join(map(text_of, content or ()))


SIGNED = "A" * 2000


@pytest.mark.parametrize(
    ("role", "block", "text"),
    [
        pytest.param("assistant", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            '[server_tool_use] {"id":"s","name":"web_search","input":{"query":"q"}}',
            id="K anthropic: server_tool_use"),
        pytest.param("assistant",
            {"type": "web_search_tool_result", "tool_use_id": "s",
                "content": [{"type": "web_search_result", "url": "u", "encrypted_content": SIGNED}]},
            '[web_search_tool_result] {"tool_use_id":"s","content":'
            '[{"type":"web_search_result","url":"u","encrypted_content":"..."}]}',
            id="K anthropic: web_search_tool_result"),
        pytest.param("assistant", {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}},
            '[mcp_tool_use] {"id":"m","name":"n","server_name":"s","input":{}}', id="K anthropic: mcp_tool_use"),
        pytest.param("assistant", {"type": "compaction", "content": "They met.", "encrypted_content": None},
            '[compaction] {"content":"They met."}', id="K anthropic: compaction"),
        pytest.param("user",
            {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "x"}]},
            '[search_result] {"source":"u","title":"t","content":[{"type":"text","text":"x"}]}',
            id="K anthropic: search_result"),
        pytest.param("user",
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}}, "x",
            id="K anthropic: a document of blocks"),
        pytest.param("user", {"type": "document", "source": {"type": "content", "content": "x"}}, "x",
            id="K anthropic: a document of a text"),
    ],
)  # fmt: skip
async def test_blocks_of_anthropic_become_text(role: str, block: dict[str, Any], text: str) -> None:
    assert await note(MESSAGES, role, block) == text


@pytest.mark.parametrize(
    ("block", "text"),
    [
        pytest.param({"type": "tool_reference", "tool_name": "f"}, '[tool_reference] {"tool_name":"f"}',
            id="K claude code"),
        pytest.param({"type": "document", "source": {"type": "content", "content": "x"}}, "x",
            id="K anthropic: a document"),
        pytest.param({"type": "search_result", "source": "u", "title": "t", "content": []},
            '[search_result] {"source":"u","title":"t","content":[]}', id="K anthropic: search_result"),
    ],
)  # fmt: skip
async def test_blocks_in_results_become_text(block: dict[str, Any], text: str) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block], "cache_reference": "r"}
    answer, calls = await sent(MESSAGES, {"messages": [HI, use, {"role": "user", "content": [result]}]}, Delta("ok"))
    assert (answer.status, answer.headers["x-routewright-ignored"]) == (200, "cache_reference")
    assert calls[0].messages[2].content == text


@pytest.mark.parametrize(
    "block",
    [
        pytest.param({"type": "thinking", "thinking": "hm", "signature": ""}, id="K litellm: an empty signature"),
        pytest.param({"type": "thinking", "thinking": "hm"}, id="K glm: no signature"),
        pytest.param({"type": "redacted_thinking"}, id="K no data"),
    ],
)
async def test_unsigned_reasoning_is_left_out_and_named(block: dict[str, Any]) -> None:
    turn = {"role": "assistant", "content": [block, {"type": "text", "text": "So."}]}
    answer, calls = await sent(MESSAGES, {"messages": [HI, turn, HI]}, Delta("ok"))
    assert (answer.status, answer.headers["x-routewright-ignored"]) == (200, block["type"])
    assert (calls[0].messages[1].content, calls[0].messages[1].reasoning) == ("So.", None)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        pytest.param(
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
            '[web_search_call] {"action":{"type":"search","query":"q"}}', id="K codex: web_search_call"),
        pytest.param({"type": "image_generation_call", "id": "i", "result": SIGNED, "revised_prompt": "a cat"},
            '[image_generation_call] {"result":"...","revised_prompt":"a cat"}', id="K codex: image_generation_call"),
        pytest.param(
            {"type": "mcp_call", "id": "m", "name": "n", "server_label": "s", "arguments": "{}", "output": "x"},
            '[mcp_call] {"name":"n","server_label":"s","arguments":"{}","output":"x"}', id="K openai: mcp_call"),
        pytest.param({"type": "local_shell_call", "call_id": "l", "action": {"command": ["ls"]}},
            '[local_shell_call] {"call_id":"l","action":{"command":["ls"]}}', id="K codex: local_shell_call"),
    ],
)  # fmt: skip
async def test_items_of_openai_become_text(item: dict[str, Any], text: str) -> None:
    assert await note(RESPONSES, "assistant", item) == text


@pytest.mark.parametrize(
    "item",
    [
        pytest.param({"type": "compaction", "encrypted_content": "x"}, id="K codex: compaction"),
        pytest.param({"type": "compaction_trigger"}, id="K openai: compaction_trigger"),
        pytest.param({"type": "item_reference", "id": "x"}, id="K openai: item_reference"),
    ],
)
async def test_what_stands_for_a_lost_chat_is_refused(item: dict[str, Any]) -> None:
    answer, calls = await sent(RESPONSES, {"input": [HI, item]}, Delta("ok"))
    assert (answer.status, answer.json["error"]["param"], calls) == (400, "input[1].type", [])
    assert "send the" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "tool", "switch"),
    [
        pytest.param(RESPONSES, {"type": "web_search"}, 'web_search = "disabled" in config.toml', id="N codex"),
        pytest.param(RESPONSES, {"type": "image_generation", "output_format": "png"},
            "image_generation = false below [features]", id="N codex: image_generation"),
        pytest.param(RESPONSES, {"type": "mcp", "server_label": "s"}, "declare your own", id="N openai: mcp"),
        pytest.param(RESPONSES, {"type": "local_shell"}, "declare your own", id="N codex: local_shell"),
        pytest.param(MESSAGES, {"type": "web_search_20250305", "name": "web_search"}, "deny WebSearch",
            id="N claude code"),
    ],
)  # fmt: skip
async def test_tools_that_vendors_run_are_refused(path: str, tool: dict[str, Any], switch: str) -> None:
    answer, calls = await sent(path, {**_CALL[path], "tools": [tool]}, Delta("ok"))
    assert (answer.status, calls) == (400, [])
    assert switch in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        pytest.param(RESPONSES, {"type": "tool_search"}, id="K openai: hosted tool search"),
        pytest.param(MESSAGES, {"type": "tool_search_tool_regex_20251119", "name": "t"}, id="K anthropic: tool search"),
    ],
)
async def test_hosted_tool_search_is_left_out_and_named(path: str, tool: dict[str, Any]) -> None:
    body = _CALL[path]
    answer, calls = await sent(
        path, {**body, "tools": [tool, {**body["tools"][0], "defer_loading": True}]}, Delta("ok")
    )
    assert answer.status == 200, answer.body
    assert tool["type"] in answer.headers["x-routewright-ignored"]
    assert [spec.function_spec.name for spec in calls[0].tools or ()] == ["f"]


# N. Custom tools and namespaces

PATCH = '*** Begin Patch\n*** Add File: a\n+"é"\n*** End Patch\n'
INPUT = json.dumps({"input": PATCH})
CUSTOM = {"name": "apply_patch", "description": "Edits.", "format": {"type": "text"}}
GRAMMAR = {"syntax": "lark", "definition": "start: hunk+"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(INPUT, PATCH, id="N codex: apply_patch"),
        pytest.param(PATCH, PATCH, id="N deepseek: the input itself instead of arguments"),
        pytest.param(INPUT[:30], INPUT[:30], id="N cut off: as it is, so that no half patch is applied"),
        pytest.param('{"patch": "x"}', '{"patch": "x"}', id="N another parameter"),
        pytest.param("", "", id="N nothing"),
    ],
)
async def test_a_custom_tool_is_called_with_a_text(written: str, expected: str) -> None:
    pieces = [
        ToolDelta(0, "", "c", "apply_patch"),
        *(ToolDelta(0, written[at : at + 7]) for at in range(0, len(written), 7)),
    ]
    body: dict[str, Any] = {"input": "Hi", "tools": [{"type": "custom", **CUSTOM}]}
    answer, calls = await sent(RESPONSES, body, *pieces)
    (plain,) = TypeAdapter[Any](Response).validate_python(answer.json).output
    assert (plain.type, plain.call_id, plain.name, plain.input) == ("custom_tool_call", "c", "apply_patch", expected)
    parameters = (calls[0].tools or [])[0].function_spec.parameters or {}
    assert parameters["required"] == ["input"]
    answer, _ = await sent(RESPONSES, {**body, "stream": True}, *pieces)
    item = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": expected}
    assert items_of(answer) == [item]
    kinds = [event["type"] for event in events_of(answer)][2:-1]
    input_event = "response.custom_tool_call_input"
    assert kinds == [
        "response.output_item.added",
        f"{input_event}.delta",
        f"{input_event}.done",
        "response.output_item.done",
    ]
    chat: dict[str, Any] = {"messages": [HI], "tools": [{"type": "custom", "custom": CUSTOM}]}
    call = {"id": "c", "type": "custom", "custom": {"name": "apply_patch", "input": expected}}
    answer, _ = await sent(CHAT, chat, *pieces)
    assert answer.json["choices"][0]["message"]["tool_calls"] == [call]
    answer, _ = await sent(CHAT, {**chat, "stream": True}, *pieces)
    assert items_of(answer)["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            RESPONSES,
            {
                "tools": [{"type": "custom", "name": "p", "format": {"type": "grammar", **GRAMMAR}}, TOOL],
                "tool_choice": {"type": "custom", "name": "p"},
                "input": [
                    HI,
                    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "p", "input": "x"},
                    {"type": "custom_tool_call_output", "call_id": "c", "output": "y"},
                ],
            },
            id="N codex: history",
        ),
        pytest.param(
            CHAT,
            {
                "tools": [
                    {"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": GRAMMAR}}}
                ],
                "tool_choice": {"type": "custom", "custom": {"name": "p"}},
                "messages": [
                    HI,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "p", "input": "x"}}],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "y"},
                ],
            },
            id="N openai: chat",
        ),
    ],
)
async def test_a_custom_call_comes_back_in_the_history(path: str, body: dict[str, Any]) -> None:
    answer, (call, *_) = await sent(path, body, Delta("ok"))
    assert answer.status == 200
    _, turn, result = call.messages
    assert turn.tool_calls is not None
    assert (turn.tool_calls[0].function.name, turn.tool_calls[0].function.arguments) == ("p", '{"input":"x"}')
    assert (result.role, result.content, result.tool_call_id) == ("tool", "y", "c")
    assert (call.tools or [])[0].function_spec.description == "The input must match this grammar:\nstart: hunk+"
    assert msgspec.to_builtins(call.tool_choice)["function"] == {"name": "p"}


async def test_allowed_tools_may_be_custom_or_in_a_namespace() -> None:
    space = {"type": "namespace", "name": "mcp__s__", "description": "d", "tools": [{**TOOL, "name": "g"}]}
    tools = [{"type": "custom", "name": "p"}, TOOL, space]
    allowed = [{"type": "custom", "name": "p"}, {"type": "function", "name": "g", "namespace": "mcp__s__"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    answer, (call, *_) = await sent(RESPONSES, {"input": "Hi", "tools": tools, "tool_choice": choice}, Delta("ok"))
    assert answer.status == 200
    assert [tool.function_spec.name for tool in call.tools or ()] == ["p", "mcp__s__g"]


async def test_a_tool_in_a_namespace_goes_back_under_its_own_name() -> None:
    long = "n" * 60
    tools = [{"type": "namespace", "name": "mcp__s", "description": "", "tools": [TOOL, {**TOOL, "name": long}]}, TOOL]
    flat = f"mcp__s__{long}"[-64:]
    pieces = [ToolDelta(0, "{}", "c", "mcp__s__f"), ToolDelta(1, "{}", "d", flat), ToolDelta(2, "{}", "e", "f")]
    answer, (call, *_) = await sent(RESPONSES, {"input": "Hi", "tools": tools, "stream": True}, *pieces)
    assert [tool.function_spec.name for tool in call.tools or ()] == ["mcp__s__f", flat, "f"]
    found = [(item["name"], item.get("namespace"), item["arguments"]) for item in items_of(answer)]
    assert found == [("f", "mcp__s", "{}"), (long, "mcp__s", "{}"), ("f", None, "{}")]


async def test_two_tools_of_one_function_name_are_refused() -> None:
    tools = [{"type": "namespace", "name": "a", "tools": [{**TOOL, "name": "b"}]}, {**TOOL, "name": "a__b"}]
    answer, _ = await sent(RESPONSES, {"input": "Hi", "tools": tools}, Delta("ok"))
    assert (answer.status, "'a__b' again" in answer.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_control_characters_in_names_are_not_repeated(path: str) -> None:
    name = "a\x1b[31m\x07"
    tools: dict[str, Any] = {
        CHAT: {"type": name},
        RESPONSES: {"type": "namespace", "name": name, "tools": [{**TOOL, "name": name}]},
        MESSAGES: {"name": name, "input_schema": {}},
    }
    for more in ({"tools": [tools[path]] * 2}, {"tool_choice": {"type": "function", "name": name}}):
        answer, _ = await sent(path, {**_CALL[path], **more}, Delta("ok"))
        assert answer.status == 400
        assert "\x1b" not in answer.json["error"]["message"]
        assert b"\\u001b" not in answer.body


# Whole sessions of coding agents, whose request shapes are in tests/data/clients


@pytest.mark.parametrize("name", ["claude_code", "codex", "opencode"])
async def test_a_coding_agent_is_served(name: str) -> None:
    session = json.loads((CLIENTS / f"{name}.json").read_text())
    ignored: set[str] = set()
    for turn in session["turns"]:
        pieces: list[Any] = []
        for number, piece in enumerate(turn["model"]):
            if isinstance(piece, str):
                pieces.append(Delta(piece))
            else:
                pieces.append(ToolDelta(number, "", piece["id"], piece["name"]))
                pieces += [ToolDelta(number, text) for text in piece["pieces"]]
        scope = {"headers": session.get("headers", {}), "query": session.get("query", "")}
        answer, calls = await sent(turn["path"], turn["body"], *pieces, **scope)
        assert answer.status == 200, answer.body
        assert items_of(answer) == turn["answer"]
        (call,) = calls
        assert [tool.function_spec.name for tool in call.tools or ()] == turn["upstream"]["tools"]
        assert without_types(msgspec.to_builtins(call.messages)) == without_types(turn["upstream"]["messages"])
        ignored.update(answer.headers.get("x-routewright-ignored", "").split(", "))
    assert sorted(ignored - {""}) == session["ignored"]
    if "count_tokens" in session:
        answer, _ = await sent(f"{MESSAGES}/count_tokens", session["count_tokens"], **scope)
        assert answer.json["input_tokens"] > 50


def without_types(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            call.pop("type", None)
    return messages
