"""Model reasoning: how it is parsed, and that the vendor gets it back unchanged, above all in tool loops."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from routewright import AnthropicProvider, GeminiProvider, OpenAIProvider
from routewright.backends.providers.answer import Reader, decode_body
from routewright.backends.providers.anthropic import message_body
from routewright.backends.providers.gemini import content_body
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.providers.http import HttpProvider
from routewright.wire import (
    Chunk,
    Delta,
    FunctionCall,
    Message,
    Model,
    Params,
    Reasoning,
    ReasoningBudget,
    TextPart,
    Thought,
    Tool,
    ToolCall,
    ToolDelta,
)
from tests.tables import table

from . import anthropic_server as anthropic
from . import gemini_server as gemini
from . import openai_server as openai
from .provider_calls import body_for, bytes_of, call, read_streamed

TOOL = Tool(name="get_weather", parameters={"type": "object", "properties": {}})
SIGNATURE = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds+/=="


def remembered(name: str, chunks: list[Chunk]) -> Message:
    """An answer as the assistant message of the next call."""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        if isinstance(chunk, ToolDelta):
            held = calls.setdefault(chunk.index, ["", "", ""])
            calls[chunk.index] = [held[0] + chunk.id, held[1] + chunk.name, held[2] + chunk.arguments]
    thoughts = [chunk for chunk in chunks if isinstance(chunk, Thought)]
    items = [thought.item for thought in thoughts if thought.item is not None]
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, Delta))
    asked = [ToolCall(id, FunctionCall(called, arguments)) for id, called, arguments in calls.values()]
    said = Reasoning(name, items, "".join(thought.text for thought in thoughts) or None)
    # it goes through a client and back
    return msgspec.json.decode(
        msgspec.json.encode(Message("assistant", text or None, asked or None, reasoning=said)), type=Message
    )


def next_call(name: str, model: str, answer: Message, **params: Any) -> Any:
    """The body of the call with the tool results."""
    results = [Message("tool", "12 C", tool_call_id=asked.id) for asked in answer.tool_calls or ()]
    said = [Message("user", "hi"), answer, *(results or [Message("user", "go on")])]
    made: dict[str, HttpProvider] = {"anthropic": AnthropicProvider("k"), "google": GeminiProvider("k")}
    provider = made.get(name) or OpenAIProvider("k", name=name, base_url="http://127.0.0.1:9")
    upstream = call(
        *said, model=Model(id=f"{name}/{model}", reasoning=True), tools=[TOOL], params=Params(**params),
        max_output_tokens=4000,
    )  # fmt: skip
    return json.loads(provider._body(upstream))


# --- Anthropic: the examples of Extended thinking, and of Interleaved thinking


def thinks(text: str, signature: str = SIGNATURE) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


REDACTED = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rA=="}
WEATHER = anthropic.used("get_weather", {"location": "Paris"}, "toolu_1")
EVENTS = anthropic.used("get_events", {"at": "Paris 🦜"}, "toolu_2")
CLAUDE_ANSWERS = {
    "thought and text": [thinks("Let me see.\n"), anthropic.said("Hello.")],
    "thought, text and a call": [thinks("The user wants the weather."), anthropic.said("I look. "), WEATHER],
    "what is hidden": [thinks("Hm."), REDACTED, anthropic.said("So.")],
    "no text of it": [thinks(""), WEATHER],
    "between calls": [thinks("First.", "c2lnMQ=="), WEATHER, thinks("Then.", "c2lnMg=="), EVENTS],
    "between words": [anthropic.said("One. "), thinks("Hm."), anthropic.said("Two."), WEATHER, thinks("Ah."), EVENTS],
}


def answered_by_claude(content: list[dict[str, Any]], *, stream: bool) -> list[Chunk]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    whole = anthropic.message(*content, stop=stop)
    reader = AnthropicProvider("k")._reader(call(), {})
    if not stream:
        return list(decode_body(reader, json.dumps(whole).encode()))
    return read_streamed(reader, bytes_of(anthropic.sse(*anthropic.events_of(whole))))


@table("content", CLAUDE_ANSWERS.values(), ids=CLAUDE_ANSWERS)
def test_claude_is_sent_its_reasoning_blocks_unchanged(content: list[dict[str, Any]]) -> None:
    for stream in (False, True):
        answer = remembered("anthropic", answered_by_claude(content, stream=stream))
        body = next_call("anthropic", "claude-opus-5", answer)
        assert body["messages"][1]["content"] == content
        assert anthropic.problems_of(body) == []


def test_reasoning_of_claude_is_streamed_and_complete_before_what_follows() -> None:
    chunks = answered_by_claude([thinks("abcdef"), anthropic.said("so"), WEATHER], stream=True)
    told = [chunk for chunk in chunks if isinstance(chunk, Thought | Delta)]
    assert told == [Thought("abc"), Thought("def"), Thought(item=thinks("abcdef")), Delta("so")]


def test_text_parts_follow_the_reasoning() -> None:
    answer = Message("assistant", [TextPart("a"), TextPart("b")], reasoning=Reasoning("anthropic", [thinks("t")]))
    content = next_call("anthropic", "claude-opus-5", answer)["messages"][1]["content"]
    assert content == [thinks("t"), anthropic.said("a"), anthropic.said("b")]


@table(
    ("model", "asked", "kept"),
    [
        ("claude-haiku-4-5", None, False),
        ("claude-haiku-4-5", "low", True),
        ("claude-haiku-4-5", ReasoningBudget(2000), True),
        ("claude-haiku-4-5", "none", False),
        ("claude-opus-4-8", None, False),
        ("claude-opus-4-8", "low", True),
        ("claude-opus-5", None, True),
        ("claude-opus-5", "none", False),
        ("claude-opus-5-5", None, True),
    ],
)
def test_claude_is_sent_its_reasoning_only_if_it_reasons(model: str, asked: Any, kept: bool) -> None:
    answer = remembered("anthropic", answered_by_claude([thinks("Hm."), WEATHER], stream=False))
    content = next_call("anthropic", model, answer, reasoning=asked)["messages"][1]["content"]
    assert content == [thinks("Hm."), WEATHER] if kept else [WEATHER]


@table(("model", "thinking"), [("claude-haiku-4-5", None), ("claude-opus-4-8", "adaptive")])
def test_a_tool_loop_of_another_model_continues_without_reasoning(model: str, thinking: str | None) -> None:
    asked = [ToolCall("c1", FunctionCall("f", "{}"))]
    other = Message("assistant", "so", asked, reasoning=Reasoning("deepseek", [{"reasoning_content": "hm"}]))
    body = next_call("anthropic", model, other, reasoning="low")
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]
    assert body.get("thinking", {}).get("type") == thinking
    said = [Message("user", "a"), other, Message("tool", "x", tool_call_id="c1"), Message("user", "b")]
    claude = Model(id=f"anthropic/{model}", reasoning=True)
    upstream = call(*said, model=claude, params=Params(reasoning="low"), max_output_tokens=4000)
    assert "thinking" in json.loads(AnthropicProvider("k")._body(upstream)), "a loop that is over does not matter"


# --- Gemini: the examples of Thought signatures


def signed(part: dict[str, Any], signature: str) -> dict[str, Any]:
    return part | {"thoughtSignature": signature}


PARIS = gemini.called("get_weather", {"location": "Paris"}, "c1")
LONDON = gemini.called("get_weather", {"location": "London"}, "c2")
GEMINI_ANSWERS: dict[str, tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "a call": ([[signed(PARIS, "QQ==")]], [signed(PARIS, "QQ==")]),
    "calls at once, the first of which is signed": ([[signed(PARIS, "QQ=="), LONDON]], [signed(PARIS, "QQ=="), LONDON]),
    "calls that are both signed": ([[signed(PARIS, "QQ==")], [signed(LONDON, "Qg==")]],
        [signed(PARIS, "QQ=="), signed(LONDON, "Qg==")]),
    "a signed text": ([[signed({"text": "So."}, "QQ==")]], [signed({"text": "So."}, "QQ==")]),
    "a signature alone at the end": ([[{"text": "S"}], [{"text": "o."}], [signed({"text": ""}, "QQ==")]],
        [signed({"text": "So."}, "QQ==")]),
    "a text and a signed call": ([[{"text": "I look."}, signed(PARIS, "QQ==")]],
        [{"text": "I look."}, signed(PARIS, "QQ==")]),
    "a signed text that goes on": ([[signed({"text": "One. "}, "QQ==")], [{"text": "Two."}]],
        [signed({"text": "One. "}, "QQ=="), {"text": "Two."}]),
    "a thought that is shown": ([[{"text": "hm", "thought": True}], [signed(PARIS, "QQ==")]], [signed(PARIS, "QQ==")]),
}  # fmt: skip


def answered_by_gemini(pieces: list[list[dict[str, Any]]], *, stream: bool) -> list[Chunk]:
    reader = GeminiProvider("k")._reader(call(), {})
    if not stream:
        parts = [part for piece in pieces for part in piece]
        return list(decode_body(reader, json.dumps(gemini.generated(*parts, finish="STOP")).encode()))
    documents = [gemini.generated(*piece) for piece in pieces]
    documents.append(gemini.generated(finish="STOP", usage=gemini.USAGE))
    return read_streamed(reader, bytes_of(gemini.events(*documents)))


@table(("pieces", "parts"), GEMINI_ANSWERS.values(), ids=GEMINI_ANSWERS)
def test_gemini_is_sent_its_signatures_in_place(
    pieces: list[list[dict[str, Any]]], parts: list[dict[str, Any]]
) -> None:
    for stream in (False, True):
        answer = remembered("google", answered_by_gemini(pieces, stream=stream))
        body = next_call("google", "gemini-3.6-flash", answer)
        assert body["contents"][1]["parts"] == parts
        assert gemini.problems_of(json.dumps(body).encode()) == []


def test_a_signature_is_given_before_its_call() -> None:
    pieces = [[{"text": "hm", "thought": True}], [signed(PARIS, "QQ=="), LONDON]]
    chunks = answered_by_gemini(pieces, stream=False)
    assert chunks[0] == Thought("hm")
    assert chunks[1] == Thought(item={"thoughtSignature": "QQ==", "call": 0})
    assert isinstance(chunks[2], ToolDelta)


@table("items", [[], [{"thoughtSignature": 5, "call": 0}], [{"thoughtSignature": "QQ==", "call": 7}]])
@table("provider", ["google", "anthropic"])
def test_calls_without_a_signature_get_the_placeholder(provider: str, items: list[Any]) -> None:
    asked = [ToolCall("c1", FunctionCall("get_weather", "{}"))]
    answer = Message("assistant", None, asked, reasoning=Reasoning(provider, items))
    (part,) = next_call("google", "gemini-3.6-flash", answer)["contents"][1]["parts"]
    assert part["thoughtSignature"] == "skip_thought_signature_validator"


# --- chat completions

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
SENT_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
CLAUDE = "anthropic-claude-v1"
DETAILS: list[dict[str, Any]] = [
    {"type": "reasoning.text", "text": "Let me ", "signature": None, "id": "r1", "format": CLAUDE, "index": 0},
    {"type": "reasoning.text", "text": "see.", "format": CLAUDE, "index": 0},
    {"type": "reasoning.text", "signature": SIGNATURE, "format": CLAUDE, "index": 0},
    {"type": "reasoning.encrypted", "data": "eyJlbmMi", "id": "rs_1", "format": "openai-responses-v1", "index": 1},
]
WHOLE_DETAILS: list[dict[str, Any]] = [DETAILS[0] | {"text": "Let me see.", "signature": SIGNATURE}, DETAILS[3]]


MINIMAX = {"type": "reasoning.text", "id": "t1", "index": 0}


def of_field(field: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Pieces of reasoning in a stream, and the field that is sent back."""
    return [{field: "Let me "}, {field: "see."}], {field: "Let me see."}


def listed(text: str) -> list[dict[str, Any]]:
    return [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]


HOSTED: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    **{name: (model, *of_field("reasoning_content")) for name,
        model in {"deepseek": "deepseek-v4-pro", "moonshotai": "kimi-k3", "zai": "glm-5.3", "xiaomi": "mimo-v2.6-pro",
            "alibaba": "qwen3.8-max", "togetherai": "zai-org/GLM-5.3", "llamacpp": "qwen"}.items()},
    **{name: (model, *of_field("reasoning")) for name,
        model in {"cerebras": "gpt-oss-120b", "vllm": "qwen", "ollama": "qwen3"}.items()},
    "openrouter": ("anthropic/claude-opus-5",
        [{"reasoning": piece.get("text"), "reasoning_details": [piece]} for piece in DETAILS],
        {"reasoning_details": WHOLE_DETAILS}),
    "minimax": ("MiniMax-M3", [{"reasoning_details": [MINIMAX | {"text": text}]} for text in ("Let me ", "see.")],
        {"reasoning_details": [MINIMAX | {"text": "Let me see."}]}),
    "mistral": ("mistral-large-4", [{"content": listed("Let me ")}, {"content": listed("see.")}],
        {"content": listed("Let me see.")}),
    "xai": ("grok-4.7", of_field("reasoning_content")[0], {}),
    "groq": ("openai/gpt-oss-120b", of_field("reasoning")[0], {}),
    "openai": ("gpt-5.1", of_field("reasoning_content")[0], {}),
}  # fmt: skip
"""The pieces that a host streams, and what is sent back with tool results."""


def answered_by(name: str, *documents: dict[str, Any]) -> list[Chunk]:
    provider = OpenAIProvider("k", name=name, base_url="http://127.0.0.1:9")
    reader: Reader = provider._reader(call(), {})
    return read_streamed(reader, bytes_of(openai.events(*documents)))


@table(("name", "row"), HOSTED.items(), ids=HOSTED)
def test_a_host_is_sent_reasoning_where_it_accepts_it(name: str, row: Any) -> None:
    model, pieces, back = row
    chunks = answered_by(
        name, *(openai.delta(**piece) for piece in pieces), openai.delta("So."), openai.delta(tool_calls=[CALL]),
        openai.delta(finish="tool_calls"), openai.USAGE,
    )  # fmt: skip
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, Thought)) == "Let me see."
    places = [type(chunk).__name__ for chunk in chunks]
    assert places.index("Delta") == len([chunk for chunk in chunks if isinstance(chunk, Thought)])
    message = next_call(name, model, remembered(name, chunks))["messages"][1]
    plain: dict[str, Any] = {"role": "assistant", "content": "So.", "tool_calls": [SENT_CALL]}
    if name == "mistral":
        short = message["tool_calls"][0]["id"]
        back = {
            "content": [*back["content"], {"type": "text", "text": "So."}],
            "tool_calls": [SENT_CALL | {"id": short}],
        }
    assert message == plain | back


@table("name", ["deepseek", "openrouter", "mistral", "openai"])
def test_reasoning_of_another_provider_is_dropped(name: str) -> None:
    asked = [ToolCall("abcDEF123", FunctionCall("get_weather", "{}"))]
    other = Message("assistant", "So.", asked, reasoning=Reasoning("other", [{"reasoning_content": "secret"}]))
    message = next_call(name, "m", other)["messages"][1]
    blank = {"reasoning_content": " "} if name == "deepseek" else {}
    assert message == {
        "role": "assistant", "content": "So.", "tool_calls": [SENT_CALL | {"id": "abcDEF123"}],
    } | blank  # fmt: skip


@table("item", [{}, {"reasoning_content": None}, {"reasoning_content": [1]}, {"x": 1}])
def test_an_invalid_item_is_ignored(item: dict[str, Any]) -> None:
    asked = [ToolCall("c1", FunctionCall("f", "{}"))]
    answer = Message("assistant", None, asked, reasoning=Reasoning("deepseek", [item]))
    message = next_call("deepseek", "deepseek-v4-pro", answer)["messages"][1]
    assert message["reasoning_content"] == " "
    for name in ("openrouter", "mistral", "anthropic", "google"):
        odd = {"reasoning_details": [1, {"type": []}], "content": {"a": 1}, "thoughtSignature": [], "type": 5}
        answer = Message("assistant", None, asked, reasoning=Reasoning(name, [item, odd]))
        next_call(name, "claude-opus-5", answer)


# --- forged by a client: it neither multiplies the prompt nor adds to it

TEXT = "q" * 1_000
FLASH = Model(id="google/gemini-3.5-flash", reasoning=True)
SONNET = Model(id="anthropic/claude-sonnet-4-6", reasoning=True)


def forged(provider: str, items: list[dict[str, Any]]) -> Message:
    calls = [ToolCall("c1", FunctionCall("f", "{}"))]
    return Message("assistant", TEXT, calls, reasoning=Reasoning(provider, items))


@table("at", [-1, 500, 10**9])
def test_positions_out_of_order_repeat_nothing(at: int) -> None:
    items = [{"thoughtSignature": "s", "at": at}] * 100
    sent = msgspec.json.encode(content_body(call("hi", forged("google", items), "go", model=FLASH)))
    assert sent.count(b"q") <= len(TEXT)
    block = {"type": "thinking", "thinking": "t", "signature": "s", "at": [at, at]}
    thinks = Params(reasoning="low")
    body = message_body(call("hi", forged("anthropic", [block] * 100), "go", model=SONNET, params=thinks))
    sent = msgspec.json.encode(body)
    assert sent.count(b"q") <= len(TEXT)
    assert sent.count(b"tool_use") == 1


def test_a_reasoning_block_has_only_known_fields() -> None:
    block = {"type": "thinking", "thinking": "t", "signature": "s", "cache_control": {"type": "ephemeral"}, "x": 1}
    body = message_body(call("hi", forged("anthropic", [block]), "go", model=SONNET, params=Params(reasoning="low")))
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "t", "signature": "s"}


def test_other_parts_among_reasoning_are_dropped() -> None:
    smuggled = {"type": "document_url", "document_url": "https://x/y.pdf"}
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "t"}, smuggled]}
    items: list[dict[str, Any]] = [{"content": "t"}, {"content": [thought, smuggled]}, {"content": smuggled}]
    magistral = Model(id="mistral/magistral-medium", reasoning=True)
    body = body_for("mistral", "hi", forged("mistral", items), "go", model=magistral)
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}
    assert "document_url" not in str(body)


def test_a_renamed_host_is_known_by_its_new_name() -> None:
    provider = OpenAIProvider("key", name="mine", host=HOSTS["deepseek"], models=[Model(id="mine/x", reasoning=True)])
    extra = {"mine": {"top_k": 3}, "deepseek": {"top_k": 4}}
    asked = call(
        "hi", Message("assistant", "4", reasoning=Reasoning("mine", [{"reasoning_content": "because"}])), "go",
        model=Model(id="mine/x", reasoning=True), params=Params(extra=extra), stream=False,
    )  # fmt: skip
    body = msgspec.json.decode(provider.request(asked).body)
    assert body["top_k"] == 3
    assert body["messages"][1]["reasoning_content"] == "because"
