"""Tables of calls and the bodies that vendors are sent for them, or why a call cannot be sent."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import given

from routewright import AnthropicProvider, GeminiProvider, OpenAIProvider
from routewright._core.tokens.estimate import MESSAGE_TOKENS, count_overhead
from routewright.backends.providers.anthropic import OpenEnded, closed_form
from routewright.backends.providers.gemini import UNSIGNED
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.tokens import PackedTokenCounter
from routewright.errors import ProviderFault
from routewright.wire import (
    Feature,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    ImagePart,
    ImageUrl,
    Message,
    Model,
    NamedToolChoice,
    Params,
    RouteRequest,
    TextPart,
    Tool,
    ToolCall,
    UpstreamCall,
)
from tests.tables import table

from .conversations import calls, conversations
from .provider_calls import body_for, call, written
from .vendors import ANTHROPIC, GEMINI, KEY, OPENAI, VENDORS, Vendor

HAIKU = Model(id="anthropic/claude-haiku-4-5", max_output_tokens=64_000)
FLASH, OLDER = Model(id="google/gemini-3.5-flash"), Model(id="google/gemini-2.5-flash")
OF = {"openai": Model(id="openai/gpt-x"), "anthropic": HAIKU, "google": FLASH}
BY_NAME = {str(vendor): vendor for vendor in VENDORS}
PROVIDERS = {str(vendor): vendor.make(KEY) for vendor in VENDORS}
F = Tool(name="f")
Said = Message | str
CANARY = "canary in the prompt"


def upstream(name: str, *messages: Said, **rest: Any) -> UpstreamCall:
    fields: dict[str, Any] = {"model": OF[name], "stream": False} | rest
    return call(*messages, **fields)


def body_of(name: str, *messages: Said, **rest: Any) -> dict[str, Any]:
    """The body of a call, checked with the official types."""
    raw = PROVIDERS[name].request(upstream(name, *messages, **rest)).body
    assert BY_NAME[name].problems(raw) == []
    body: dict[str, Any] = json.loads(raw)
    return body


def unsayable(name: str, *messages: Said, **rest: Any) -> str:
    """Why a call cannot be expressed, in words that show nothing of it."""
    with pytest.raises(ProviderFault) as caught:
        PROVIDERS[name].request(upstream(name, *messages, **rest))
    fault = caught.value
    assert (fault.kind, fault.status, fault.answered, fault.__context__) == ("request", None, False, None)
    assert "canary" not in written(fault)
    return fault.message.removeprefix("the Messages API ")


def asks(name: str, arguments: str = "{}", id: str = "c1") -> ToolCall:
    return ToolCall(id, FunctionCall(name, arguments))


def calling(*asked: ToolCall, text: Any = None) -> Message:
    return Message("assistant", text, list(asked))


def result(content: Any, id: str = "c1", **more: Any) -> Message:
    return Message("tool", content, tool_call_id=id, **more)


def image(url: str, detail: Any = None) -> ImagePart:
    return ImagePart(ImageUrl(url, detail))


def pictured(url: str) -> Message:
    return Message("user", [image(url)])


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def form(schema: dict[str, Any], **more: Any) -> Params:
    named = {"name": "answer", "schema": schema, **more}
    return Params(response_format={"type": "json_schema", "json_schema": named})


# --- one conversation in three protocols

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"at": {"type": ["number"]}}}
SPOKEN = [
    Message("developer", "be brief"),
    Message("system", [TextPart("and kind"), TextPart("now")]),
    Message("user", [TextPart("what is this?"), image("https://x.example/a.PNG?b=c.gif", "low")], name="ann"),
    calling(asks("look", '{"at": 1.0}'), asks("smell", "", "c2"), text="let me look"),
    result('{"seen": "a parrot"}'),
    result("nothing", "c2"),
    Message("user", [image("data:image/PNG;base64,AAAA", "auto")]),
]
TOOLS = [Tool(function=FunctionSpec("look", "Look.", SCHEMA, strict=True)), Tool(name="smell")]
CHAT_BODY: dict[str, Any] = {
    "model": "big-2026/x",
    "messages": [{"role": "developer", "content": "be brief"},
        {"role": "system", "content": [text("and kind"), text("now")]},
        {"role": "user", "name": "ann",
            "content": [text("what is this?"),
                {"type": "image_url", "image_url": {"url": "https://x.example/a.PNG?b=c.gif", "detail": "low"}}]},
        {"role": "assistant", "content": "let me look",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1.0}'}},
                {"id": "c2", "type": "function", "function": {"name": "smell", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"seen": "a parrot"}'},
        {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
        {"role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/PNG;base64,AAAA", "detail": "auto"}}]}],
    "max_completion_tokens": 100,
    "tools": [{"type": "function",
            "function": {"name": "look", "description": "Look.", "parameters": SCHEMA, "strict": True}},
        {"type": "function", "function": {"name": "smell"}}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "temperature": 0.5, "top_p": 1, "stop": ["a", "b"], "seed": 42, "response_format": {"type": "json_object"},
}  # fmt: skip
MESSAGES_BODY: dict[str, Any] = {
    "model": "big-2026/x",
    "max_tokens": 100,
    "system": "be brief\n\nand kind\n\nnow",
    "messages": [{"role": "user",
            "content": [text("what is this?"),
                {"type": "image", "source": {"type": "url", "url": "https://x.example/a.PNG?b=c.gif"}}]},
        {"role": "assistant",
            "content": [text("let me look"), {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1.0}},
                {"type": "tool_use", "id": "c2", "name": "smell", "input": {}}]},
        {"role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text('{"seen": "a parrot"}')]},
                {"type": "tool_result", "tool_use_id": "c2", "content": [text("nothing")]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]}],
    "tools": [{"name": "look", "description": "Look.", "strict": True,
            "input_schema": SCHEMA | {"additionalProperties": False}},
        {"name": "smell", "input_schema": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "tool", "name": "look"},
    "temperature": 0.5, "stop_sequences": ["a", "b"],
}  # fmt: skip
CONTENT_BODY: dict[str, Any] = {
    "contents": [{"role": "user",
            "parts": [{"text": "what is this?"},
                {"fileData": {"fileUri": "https://x.example/a.PNG?b=c.gif", "mimeType": "image/png"},
                    "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}}]},
        {"role": "model",
            "parts": [{"text": "let me look"},
                {"functionCall": {"id": "c1", "name": "look", "args": {"at": 1.0}},
                    "thoughtSignature": "skip_thought_signature_validator"},
                {"functionCall": {"id": "c2", "name": "smell", "args": {}}}]},
        {"role": "user",
            "parts": [{"functionResponse": {"id": "c1", "name": "look", "response": {"seen": "a parrot"}}},
                {"functionResponse": {"id": "c2", "name": "smell", "response": {"output": "nothing"}}},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}],
    "systemInstruction": {"parts": [{"text": "be brief"}, {"text": "and kind"}, {"text": "now"}]},
    "tools": [{"functionDeclarations": [{"name": "look", "description": "Look.", "parametersJsonSchema": SCHEMA},
                {"name": "smell"}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
    "generationConfig": {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 100, "stopSequences": ["a", "b"],
        "seed": 42, "responseMimeType": "application/json", "responseJsonSchema": {"type": "object", "$defs": {}}},
}  # fmt: skip
WISHES = {
    "openai": Params(0.5, 1.0, stop=["a", "b"], seed=42.0, response_format={"type": "json_object"}),
    "anthropic": Params(0.5, stop=["a", "b"]),
    "google": Params(
        0.5, 0.9, stop=["a", "b"], seed=42.0, response_format=form({"type": "object", "$defs": {}}).response_format
    ),
}


@table(
    ("vendor", "body", "model"),
    [
        (OPENAI, CHAT_BODY, "big-2026/x"),
        (ANTHROPIC, MESSAGES_BODY, "big-2026/x"),
        (GEMINI, CONTENT_BODY, "gemini-3.5-flash/x"),
    ],
)
def test_a_conversation_has_the_form_of_each_protocol(vendor: Vendor, body: dict[str, Any], model: str) -> None:
    sent = call(
        *SPOKEN, params=WISHES[vendor.name], tools=TOOLS, tool_choice="look", max_output_tokens=100,
        model=Model(id=f"{vendor.name}/big", provider_model_id=model), stream=False,
    )  # fmt: skip
    request = PROVIDERS[vendor.name].request(sent)
    assert vendor.problems(request.body) == []
    assert json.loads(request.body) == body
    assert b"42.0" not in request.body, "a whole number is written as one"
    assert b'"top_p":1.0' not in request.body.replace(b" ", b"")
    if vendor is GEMINI:
        assert request.url == f"{GEMINI.base_url}/v1beta/models/gemini-3.5-flash%2Fx:generateContent"


# --- fields of a body

ABSENT = "no such field"
CHOSEN = NamedToolChoice(FunctionName("f"))


def mode(word: str, *allowed: str) -> dict[str, Any]:
    names = {"allowedFunctionNames": list(allowed)} if allowed else {}
    return {"toolConfig": {"functionCallingConfig": {"mode": word, **names}}}


def config(**fields: Any) -> dict[str, Any]:
    return {"generationConfig": fields or ABSENT}


OBJECT = Params(response_format={"type": "json_object"})
CLOSABLE: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FUNCTION = {"type": "function", "function": {"name": "f"}}
FIELDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("openai", {"tools": [F], "tool_choice": word}, {"tool_choice": word}) for word in ("auto", "none", "required")),
    *(("openai", {"tools": [F], "tool_choice": word}, {"tool_choice": FUNCTION}) for word in ("f", CHOSEN)),
    ("openai", {"tool_choice": "auto"}, {"tool_choice": ABSENT}),
    ("openai", {"tools": []}, {"tools": ABSENT}),
    ("openai", {"params": Params(1.0)}, {"temperature": 1}),
    *(("anthropic", {"tools": [F], "tool_choice": word}, {"tool_choice": sent}) for word,
        sent in (("auto", {"type": "auto"}), ("none", {"type": "none"}), ("required", {"type": "any"}),
            ("f", {"type": "tool", "name": "f"}), (CHOSEN, {"type": "tool", "name": "f"}))),
    *(("anthropic", {"tool_choice": word}, {"tool_choice": ABSENT}) for word in ("auto", "none", "required", CHOSEN)),
    # the cap is that of the call, or the model's, or 4,096
    ("anthropic", {"max_output_tokens": 5}, {"max_tokens": 5}),
    ("anthropic", {}, {"max_tokens": 64_000, "system": ABSENT}),
    ("anthropic", {"model": Model(id="anthropic/x")}, {"max_tokens": 4096}),
    # default sampling is left out where it would be refused
    *(("anthropic", {"model": Model(id=f"anthropic/{model}"), "params": params}, {"temperature": cold, "top_p": top})
        for model, params, cold,
        top in (("claude-haiku-4-5", Params(0.0), 0, ABSENT), ("claude-haiku-4-5", Params(1.0), 1, ABSENT),
            ("claude-haiku-4-5", Params(1.0, 0.5), ABSENT, 0.5), ("claude-haiku-4-5", Params(0.5, 1.0), 0.5, ABSENT),
            ("claude-haiku-4-5", Params(1.0, 1.0), ABSENT, ABSENT),
            ("claude-3-5-haiku-20241022", Params(0.5, 0.5), 0.5, 0.5),
            ("claude-opus-5-5", Params(1.0, 1.0), ABSENT, ABSENT), ("claude-opus-5-5", Params(0.5), 0.5, ABSENT),
            ("glm-5", Params(1.0, 1.0), 1, 1))),
    ("anthropic", {"params": Params(stop="x")}, {"stop_sequences": ["x"]}),
    ("anthropic", {"params": Params(stop=[])}, {"stop_sequences": ABSENT}),
    ("anthropic", {"params": Params(response_format={"type": "text"})}, {"output_config": ABSENT}),
    ("anthropic", {"params": form(CLOSABLE, strict=True)},
     {"output_config": {"format": {"type": "json_schema", "schema": CLOSABLE | {"additionalProperties": False}}}}),
    ("google", {"tools": [F]}, {"toolConfig": ABSENT}),
    ("google", {"tools": [F], "tool_choice": "auto"}, mode("AUTO")),
    ("google", {"tools": [F], "tool_choice": "none"}, mode("NONE")),
    ("google", {"tools": [F], "tool_choice": "required"}, mode("ANY")),
    *(("google", {"tools": [F], "tool_choice": word}, mode("ANY", "f")) for word in ("f", CHOSEN)),
    *(("google", {"tool_choice": word}, {"toolConfig": ABSENT}) for word in ("auto", "none", "required", "f", CHOSEN)),
    *(("google", {"tools": [F, Tool(name="g", strict=True)], "tool_choice": word}, mode("VALIDATED")) for word in (None,
            "auto")),
    ("google", {"params": OBJECT}, config(responseMimeType="application/json")),
    ("google", {"params": Params(stop=["a"] * 5)}, config(stopSequences=["a"] * 5)),
    ("google", {"params": Params(stop="a")}, config(stopSequences=["a"])),
    # a bare call sends only its message
    ("google", {"params": Params(response_format={"type": "text"}, stop=[])},
     {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], **config()}),
    # what a model has no parameters for
    ("google",
     {"params": Params(1.0, 1.0), "model": Model(id="google/gemini-4-argon", unsupported=("temperature", "top_p"))},
     config()),
]  # fmt: skip


@table("name", BY_NAME)
def test_fields_have_the_vendors_names_and_values(name: str) -> None:
    for vendor, rest, fields in FIELDS:
        if vendor == name:
            body = body_of(name, **rest)
            assert {field: body.get(field, ABSENT) for field in fields} == fields, rest


# --- turns of a conversation

ABC = [calling(*(asks("f", id=id) for id in ("a.b", "a|b", "a_b"))), *(result("1", id) for id in ("a.b", "a|b", "a_b"))]
PNG = "data:image/png;base64,AAAA"
SOURCE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def turn(*content: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def outcome(id: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id} | ({"content": list(content)} if content else {})


def test_turns_of_messages_alternate_with_results_first_and_blank_texts_left_out() -> None:
    system = body_of(
        "anthropic", Message("system", "a"), "b", Message("developer", [TextPart("c"), TextPart("d")]), "e"
    )
    assert system["system"] == "a\n\nc\n\nd"
    assert system["messages"] == [turn(text("b"), text("e"))]
    asked = calling(asks("f", "", "c1"), asks("f", id="c2"))
    turns = body_of("anthropic", "a", asked, result("1"), "b", Message("system", "s"), result("", "c2"))["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["input"] for block in turns[1]["content"]] == [{}, {}]
    assert turns[2] == turn(outcome("c1", text("1")), outcome("c2"), text("b"))
    blank = body_of("anthropic", "a", Message("assistant", " \n"), Message("user", [TextPart(""), TextPart("b")]))
    assert blank["messages"] == [turn(text("a"), text("b"))]
    _, asked_for, answers = body_of("anthropic", "x", *ABC)["messages"]
    ids = [block["id"] for block in asked_for["content"]]
    assert (len({*ids}), ids[2]) == (3, "a_b"), "ids of other vendors"
    assert [block["tool_use_id"] for block in answers["content"]] == ids
    drawn = body_of("anthropic", "draw", calling(asks("draw")), result([TextPart("a chart"), image(PNG)]))["messages"]
    assert drawn[-1] == turn(outcome("c1", text("a chart"), SOURCE))


@table(
    ("model", "taken"),
    [
        ("claude-sonnet-4-5", True),
        ("claude-haiku-4-5", True),
        ("glm-5", True),
        ("claude-opus-4-6", False),
        ("claude-sonnet-5", False),
        ("claude-fable-latest", False),
    ],
)
def test_a_prefill_is_sent_without_trailing_white_space_where_supported(model: str, taken: bool) -> None:
    begun, claude = Message("assistant", "{ \n"), Model(id=f"anthropic/{model}")
    if taken:
        assert body_of("anthropic", "a", begun, model=claude)["messages"][-1] == turn(text("{"), role="assistant")
        return
    why = unsayable("anthropic", "a", begun, model=claude)
    assert why == "does not support a final assistant's message for this model"
    assert body_of("anthropic", "a", begun, "b", model=claude)["messages"][1]["content"] == [text("{ \n")]


def parts_of(*messages: Said, **rest: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(turn["role"], turn["parts"]) for turn in body_of("google", *messages, **rest)["contents"]]


def test_turns_of_contents_are_joined_and_keep_empty_text_only_alone() -> None:
    spoken: list[Said] = ["a", "b", Message("assistant", "c"), Message("system", "s"), Message("assistant", "d"), "e"]
    joined = [(role, [part["text"] for part in parts]) for role, parts in parts_of(*spoken)]
    assert joined == [("user", ["a", "b"]), ("model", ["c", "d"]), ("user", ["e"])]
    assert parts_of("", model=OLDER) == [("user", [{"text": ""}])]
    (_, (_, parts)) = parts_of("a", calling(asks("f"), text=""), model=OLDER)
    assert parts == [{"functionCall": {"id": "c1", "name": "f", "args": {}}}]


@table(
    ("model", "signed"),
    [
        ("gemini-3.5-flash", True),
        ("gemini-4-argon", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-pro", False),
        ("gemma-4-31b-it", False),
    ],
)
def test_the_first_unsigned_call_of_a_turn_gets_the_placeholder(model: str, signed: bool) -> None:
    spoken: list[Said] = ["a", calling(asks("f", id="1"), asks("g", id="2"), text="so"), calling(asks("h", id="3"))]
    spoken += [result("x", "1"), result("y", "2"), result("z", "3"), calling(asks("f", id="4")), result("x", "4")]
    turns = parts_of(*spoken, model=Model(id=f"google/{model}"))
    bearing = [[part.get("thoughtSignature") for part in parts] for role, parts in turns if role == "model"]
    word = UNSIGNED if signed else None
    assert bearing == [[None, word, None, None], [word]]
    assert base64.urlsafe_b64decode(UNSIGNED), "the field is bytes"


def test_a_result_has_the_function_name_of_the_last_call_with_its_id() -> None:
    spoken: list[Said] = [
        "a",
        calling(asks("f", id="0")),
        result("1", "0"),
        calling(asks("g", id="0")),
        result("2", "0"),
    ]
    turns = parts_of(*spoken, result("3", "other", name="h"))
    results = [part["functionResponse"] for _, parts in turns for part in parts if "functionResponse" in part]
    assert [result["name"] for result in results] == ["f", "g", "h"]


def test_a_result_is_sent_as_an_object_or_under_one_key() -> None:
    deep = "[" * 100_000
    contents: list[tuple[Any, str]] = [
        ('{"a": 1e2, "b": 12345678901234567890123}', '{"a": 1e2, "b": 12345678901234567890123}'),
        ("{}", "{}"),
        ("[1]", '{"output":"[1]"}'),
        ("12", '{"output":"12"}'),
        ("", '{"output":""}'),
        ('{"a": ', '{"output":"{\\"a\\": "}'),
        (deep, f'{{"output":"{deep}"}}'),
        ([TextPart('{"a"'), TextPart(": 1}")], '{"a": 1}'),
    ]
    for content, response in contents:
        body = PROVIDERS["google"].request(upstream("google", "a", calling(asks("f")), result(content))).body
        assert f'"response":{response}}}'.encode() in body
        assert GEMINI.problems(body) == []
    shown = parts_of("a", calling(asks("f")), result([TextPart("see"), image(PNG, "high")]))[-1][1]
    data = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    assert shown == [{"functionResponse": {"id": "c1", "name": "f", "response": {"output": "see"}, "parts": [data]}}]


def test_an_image_of_gemini_is_its_data_or_its_address_in_a_resolution() -> None:
    def inline(type: str) -> dict[str, Any]:
        return {"inlineData": {"mimeType": type, "data": "QUJD"}}

    for url, part in {
        "data:image/PNG;base64,QUJD": inline("image/png"),
        "DATA:image/png;charset=x;BASE64,QUJD": inline("image/png"),
        "data:image/svg+xml,%41BC": inline("image/svg+xml"),
        "https://x.example/a.jpg#z": {"fileData": {"fileUri": "https://x.example/a.jpg#z", "mimeType": "image/jpeg"}},
        "https://x.example/a?b.png": {"fileData": {"fileUri": "https://x.example/a?b.png"}},
    }.items():
        assert parts_of(pictured(url), Message("assistant", [image(url)])) == [("user", [part]), ("model", [part])]
    for model, detail, level in (
        (FLASH, "high", "MEDIA_RESOLUTION_HIGH"),
        (FLASH, "low", "MEDIA_RESOLUTION_LOW"),
        (FLASH, "auto", None),
        (FLASH, None, None),
        (OLDER, "high", None),
    ):
        ((_, (part,)),) = parts_of(Message("user", [image("data:image/png;base64,QUJD", detail)]), model=model)
        assert part.get("mediaResolution") == (level and {"level": level})


@given(calls(conversations(), *GEMINI.models))
def test_a_valid_conversation_is_never_refused_by_gemini(sent: UpstreamCall) -> None:
    assert GEMINI.problems(PROVIDERS["google"]._body(sent)) == []


# --- what cannot be expressed

HIDDEN = image(f"data:image/png,{CANARY}")
NO_TYPE = "^supports images as base64 of image/jpeg, image/png, image/gif, image/webp, got {}$"
UNSAYABLE: list[tuple[str, str, list[Said], dict[str, Any]]] = [
    ("anthropic", "^needs a message that is neither", [Message("system", "a"), Message("user", "  ")], {}),
    ("anthropic", NO_TYPE.format(r"'image/svg\+xml'"), [pictured("data:image/svg+xml;base64,AAAA")], {}),
    ("anthropic", NO_TYPE.format("'another data: URL'"), [pictured("data:image/png,AAAA")], {}),
    ("anthropic", NO_TYPE.format(f"'image/{'x' * 34}'"), [pictured(f"data:image/{'x' * 100};base64,")], {}),
    ("anthropic", "^supports only text in system messages$",
     [Message("system", [image("https://x.example/a.png")]), "a"], {}),
    ("anthropic", r"^supports a temperature from 0 to 1, got 1\.5$", [CANARY], {"params": Params(1.5)}),
    ("anthropic", r"^supports a temperature from 0 to 1, got 1\.5$", ["a"], {"params": Params(1.5, stop="\n")}),
    ("anthropic", r"^supports only one of temperature and top_p for this model, got 0\.5 and 0\.25$", ["a"],
     {"params": Params(0.5, 0.25)}),
    ("anthropic", r"^does not support a stop sequence of only white space, got '\\n'$", ["a"],
     {"params": Params(stop=["x", "\n"])}),
    ("anthropic", "^supports only a response_format with a JSON schema, got 'json_object'$", ["a"], {"params": OBJECT}),
    ("google", "is not in the conversation", [result(CANARY, CANARY)], {}),
    ("google", "only text in system", [Message("user", "x"), Message("system", [HIDDEN])], {}),
    ("google", "a system message", [Message("system", CANARY)], {}),
    ("google", "https://", [pictured(f"http://x.example/{CANARY}")], {}),
    ("google", "without data", [pictured("data:image/png;base64,")], {}),
    ("google", "without data", [pictured("data:image/png")], {}),
    ("google", "at most 5 stop sequences, got 6", ["x"], {"params": Params(stop=[CANARY] * 6)}),
    ("google", "as data: URLs", [calling(asks("f")), result([image(f"https://x.example/{CANARY}")])], {}),
    ("google", "from Gemini 3 on", [calling(asks("f")), result([HIDDEN])], {"model": OLDER}),
]  # fmt: skip


def test_what_cannot_be_expressed_is_a_request_fault_without_text() -> None:
    for name, why, messages, rest in UNSAYABLE:
        assert re.search(why, unsayable(name, *messages, **rest)), why


# --- schemas

DRAFT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9, "description": "A digit"},
        "s": {"type": "string", "format": "date", "pattern": "^a+$"},
        "t": {"type": "string", "format": "color", "pattern": r"(?=a)b", "minLength": 2},
        "l": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1, "maxItems": 3},
        "o": {"oneOf": [{"type": "null"}, {"const": 1}]},
        "p": {"type": ["object", "null"], "properties": {"q": {"enum": ["x"]}}, "additionalProperties": True}},
    "$defs": {"e": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
}  # fmt: skip
CLOSED = {
    "type": "object",
    "properties": {"n": {"type": "integer", "description": "A digit; minimum: 1; maximum: 9"},
        "s": {"type": "string", "format": "date", "pattern": "^a+$"},
        "t": {"type": "string", "description": 'format: "color"; pattern: "(?=a)b"; minLength: 2'},
        "l": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1, "description": "maxItems: 3"},
        "o": {"anyOf": [{"type": "null"}, {"const": 1}]},
        "p": {"type": ["object", "null"], "properties": {"q": {"enum": ["x"]}}, "additionalProperties": False}},
    "$defs": {"e": {"type": "array", "items": {"type": "string"}, "description": "minItems: 2"}},
    "additionalProperties": False,
}  # fmt: skip
OPEN: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {}}},
    {"type": "object", "properties": {"a": True}},
    {"type": "array", "items": {"type": "object"}},
]
ODD: list[dict[str, Any]] = [
    {"properties": []}, {"properties": None}, {"pattern": 5}, {"format": {}}, {"anyOf": 1}, {"oneOf": True},
    {"allOf": None}, {"$defs": "x"}, {"description": 5, "minLength": 1},
]  # fmt: skip


def test_a_schema_is_closed_and_unsupported_keywords_go_to_the_description() -> None:
    before = json.dumps(DRAFT)
    assert closed_form(DRAFT) == CLOSED
    assert json.dumps(DRAFT) == before, "the original is unchanged"


def test_a_schema_that_cannot_be_closed_is_refused() -> None:
    for schema in OPEN:
        with pytest.raises(OpenEnded):
            closed_form(schema)
        why = "supports a response_format only with named properties and values of known types"
        assert unsayable("anthropic", params=form(schema)) == why
        if schema["type"] == "object":
            strict = Tool(name="f", parameters=schema, strict=True)
            assert unsayable("anthropic", tools=[strict]).startswith("supports a strict tool only with")
            loose = msgspec.structs.replace(strict, strict=None)
            assert body_of("anthropic", tools=[loose])["tools"][0]["input_schema"] == schema
    for odd in ODD:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}} | odd
        assert unsayable("anthropic", params=form(schema)).startswith("supports a response_format only with")
        strict = Tool(name="f", parameters=schema, strict=True)
        assert unsayable("anthropic", tools=[strict]).startswith("supports a strict tool only with")


# --- what a model lacks

NEW, NEWEST = "temperature top_p", "temperature top_p tool_choice"
LACKING = {
    "anthropic": {
        "claude-3-opus-20240229 claude-3-5-haiku-20241022 claude-opus-4-20250514 claude-opus-4-1-20250805 "
        "claude-haiku-4-5 claude-haiku-4-5-20251001 claude-sonnet-4-6 glm-5": "",
        "claude-opus-4-7 us.anthropic.claude-opus-4-8-v1:0 claude-opus-5 claude-sonnet-5@20260630 claude-fable-5 "
        "claude-haiku-5-5": NEW,
        "claude-sonnet-5-5 claude-sonnet-5.5 claude-opus-5-5 claude-fable-5-1 claude-mythos-preview "
        "claude-opus-latest": NEWEST,
    },
    "google": {
        "gemini-2.5-pro gemini-3.1-pro-preview gemini-3.5-flash": "",
        "gemini-3.5-flash-lite gemini-3.6-flash gemini-4-argon gemini-flash-latest": NEW,
        "gemini-2.0-flash gemma-4-31b-it": "image_url file_url",
    },
}
ALWAYS = {
    "anthropic": {"seed", "json_object", "http_url", "flex", "priority", "verbosity"},
    "google": {"http_url", "parallel_tool_calls", "verbosity", "cache_control"},
}


@table("name", LACKING)
def test_unsupported_features_follow_from_the_version(name: str) -> None:
    for models, features in LACKING[name].items():
        for model in models.split():
            own = {"parallel_tool_calls"} if model == "glm-5" else set()
            lacking = set(PROVIDERS[name].unsupported(Model(id=f"{name}/{model}")))
            assert lacking == ALWAYS[name] | {*features.split()} | own, model


def test_reasoning_models_of_openai_are_sent_no_sampling() -> None:
    thinks, params = Model(id="openai/o3", reasoning=True), Params(temperature=1.0, top_p=1.0)
    lacking = OpenAIProvider(KEY).unsupported(thinks)
    assert {"temperature", "top_p"} <= set(lacking)
    assert not {"temperature", "top_p"} & set(OpenAIProvider(KEY).unsupported(Model(id="openai/gpt-4.1")))
    sent = body_for("openai", model=msgspec.structs.replace(thinks, unsupported=lacking), params=params)
    assert not {"temperature", "top_p"} & set(sent)


def test_addresses_may_have_a_path_and_a_version() -> None:
    for base, root in {
        "https://x.example": "https://x.example/v1beta",
        "https://x.example/proxy": "https://x.example/proxy/v1beta",
        "https://x.example/v1alpha": "https://x.example/v1alpha",
        "https://x.example/google/v1": "https://x.example/google/v1",
    }.items():
        request = GeminiProvider(KEY, base_url=base).request(call(model=FLASH))
        assert request.url == f"{root}/models/gemini-3.5-flash:generateContent"
    for base in ("https://llm.example.com", "https://llm.example.com/v1/"):
        assert AnthropicProvider(KEY, base_url=base).request(call()).url == "https://llm.example.com/v1/messages"


# --- the dialects of hosts


@table("host", HOSTS.values(), ids=lambda host: host.name)
def test_every_row_has_valid_addresses_variables_and_features(host: Any) -> None:
    for address in [*host.regions.values(), *([host.base_url] if host.base_url else [])]:
        parts = urlsplit(address)
        assert parts.scheme == ("https" if host.needs_key else "http"), address
        assert parts.hostname
        assert not address.endswith("/")
    assert host.base_url or host.url_variable
    assert host.key_variables
    assert set(host.unsupported) | set(host.unsupported_reasoning) <= set(get_args(Feature))
    assert not set(host.unsupported) & set(host.unsupported_reasoning)
    environ = {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com"}
    made = OpenAIProvider(KEY, name=host.name, environ=environ)
    assert made._url.startswith("https://") or not host.needs_key


def test_each_host_gets_its_own_dialect() -> None:
    rest = {"max_output_tokens": 5, "params": Params(seed=1.0)}
    mistral = body_for("mistral", **rest)
    assert (mistral["max_tokens"], mistral["random_seed"]) == (5, 1)
    assert not {"max_completion_tokens", "seed", "stream_options"} & set(mistral)
    assert body_for("groq", **rest)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body_for("groq", **rest, stream=False)
    assert body_for("minimax")["reasoning_split"] is True
    assert body_for("openrouter")["provider"] == {"require_parameters": True}
    system = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert body_for("mistral", Message("developer", "a"), "b")["messages"] == system
    caps = {name: next(field for field in body_for(name, **rest) if field.startswith("max")) for name in HOSTS}
    newer = {"openai", "azure", "groq", "xai", "cerebras", "moonshotai", "minimax", "alibaba", "xiaomi"}
    assert {name for name, field in caps.items() if field == "max_completion_tokens"} == newer


def test_names_are_left_out_where_unsupported() -> None:
    named, bare = Message("user", "hi", name="ann"), {"role": "user", "content": "hi"}
    for host, sent in (("mistral", bare), ("groq", bare), ("openai", bare | {"name": "ann"})):
        assert body_for(host, named)["messages"] == [sent]
    assert named.name == "ann"


@table("choice", ["f", CHOSEN])
def test_a_chosen_tool_is_sent_alone_where_it_cannot_be_named(choice: Any) -> None:
    tools = [Tool(name="e"), Tool(name="f"), Tool(name="g")]
    body = body_for("llamacpp", tools=tools, tool_choice=choice)
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]
    assert len(body_for("openai", tools=tools, tool_choice=choice)["tools"]) == 3
    for word in ("auto", "none", "required"):
        body = body_for("llamacpp", tools=tools, tool_choice=word)
        assert (body["tool_choice"], len(body["tools"])) == (word, 3)


LONG_ID = "call_0fypS1hVX"
ASKED = calling(asks("f", id=LONG_ID), asks("f", id="abcDEF123"))
RESULTS = [result("1", LONG_ID), result("2", "abcDEF123")]


@pytest.mark.parametrize("host", ["openai", "groq", "mistral", "vllm"])
def test_a_turn_of_tool_calls_has_a_content_of_null(host: str) -> None:
    turn = body_for(host, ASKED)["messages"][0]
    assert (turn["role"], turn["content"], len(turn["tool_calls"])) == ("assistant", None, 2)


def test_text_parts_are_joined_where_unsupported_unless_there_are_images() -> None:
    spoken = [
        Message("user", [TextPart("a"), TextPart("b")]),
        Message("user", [TextPart("c"), image("https://example.com/a.png")]),
        Message("user", ""),
    ]
    first, second, third = (message["content"] for message in body_for("deepseek", *spoken)["messages"])
    assert (first, third) == ("a\n\nb", "")
    assert [part["type"] for part in second] == ["text", "image_url"]
    assert len(body_for("openai", *spoken)["messages"][0]["content"]) == 2


def test_consecutive_messages_of_one_role_are_joined_where_required() -> None:
    spoken = [
        Message("user", "a"), Message("developer", "s"), Message("user", [TextPart("b")]), Message("assistant", "c"),
        ASKED, *RESULTS, Message("system", "t"), Message("user", "d"),
        Message("user", [TextPart("e"), image("https://example.com/a.png")]),
    ]  # fmt: skip
    told = body_for("perplexity", *spoken)["messages"]
    first = [("system", "s\n\nt"), ("user", "a\n\nb"), ("assistant", "c")]
    assert [(message["role"], message["content"]) for message in told[:3]] == first
    assert [message["role"] for message in told[3:]] == ["assistant", "tool", "tool", "user"]
    assert [part.get("text") for part in told[6]["content"]] == ["d", "e", None]
    assert len(body_for("openai", *spoken)["messages"]) == len(spoken)


CHART, PLAN = image(PNG), image("https://example.com/plan.png", "low")
DRAWN = [
    Message("user", "Draw both."),
    calling(*(asks("draw", id=id) for id in "abc")),
    result([TextPart("A chart."), CHART], "a"),
    result([PLAN, CHART], "b"),
    result("Failed.", "c"),
    Message("user", "Well?"),
]


def of_image(part: ImagePart) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(msgspec.json.encode(part))
    return sent


@table("host", sorted(HOSTS.keys() - {"mistral"}))
def test_images_of_tool_results_go_to_a_user_message_after_them(host: str) -> None:
    sent = body_for(host, *DRAWN)["messages"]
    assert [each["role"] for each in sent[:6]] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert [each["content"] for each in sent[2:5]] == ["A chart.", "(attachments, which are shown below)", "Failed."]
    assert [each["tool_call_id"] for each in sent[2:5]] == ["a", "b", "c"]
    of_a, of_b = text("Attachments of the tool call a:"), text("Attachments of the tool call b:")
    shown = [of_a, of_image(CHART), of_b, of_image(PLAN), of_image(CHART)]
    assert sent[5]["content"][:5] == shown
    assert [text("Well?")] == sent[5]["content"][5:] or sent[6:] == [{"role": "user", "content": "Well?"}]
    assert body_for(host, *DRAWN[:5])["messages"][5]["content"] == shown


def test_text_added_for_images_of_results_is_within_the_bound_of_the_prompt() -> None:
    """Budgets rely on this."""
    id = "call_" + "Q7x" * 20
    shown, bare = result([CHART], id), result([CHART], "")
    plain, sent = body_for("mistral", bare)["messages"], body_for("openai", shown)["messages"]
    added = [sent[0]["content"], sent[1]["content"][0]["text"]]
    assert [each["role"] for each in plain + sent] == ["tool", "tool", "user"]
    room = count_overhead(RouteRequest([shown])) - count_overhead(RouteRequest([result("", id)]))
    counter = PackedTokenCounter()
    assert MESSAGE_TOKENS + sum(counter.count(each, "o200k_base") for each in added) <= room


def test_images_stay_in_tool_results_where_no_user_message_may_follow() -> None:
    sent = body_for("mistral", *DRAWN)["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert sent[2]["content"] == [text("A chart."), of_image(CHART)]
    assert sent[3]["content"] == [of_image(PLAN), of_image(CHART)]


@table("host", ["deepseek", "moonshotai"])
def test_tool_calls_get_blank_reasoning_where_it_is_required(host: str) -> None:
    spoken = [Message("user", "hi"), ASKED, *RESULTS, Message("assistant", "so")]

    def thoughts(reasoning: bool, *messages: Message) -> list[Any]:
        body = body_for(host, *messages, model=Model(id="x/m", reasoning=reasoning))
        return [message.get("reasoning_content") for message in body["messages"]]

    assert thoughts(True, *spoken) == [None, " ", None, None, " "]
    assert set(thoughts(False, *spoken)) == {None}
    assert set(thoughts(True, spoken[0], spoken[-1])) == {None}
