"""How a request body is translated, and how it is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routewright import Router, wire
from routewright._core.request.rules import complete_request
from routewright.errors import ValidationFailed
from routewright.server.anthropic import FAILED, MessageCall, blocks_of
from routewright.server.fields import MOST_IGNORED
from routewright.server.vendor_requests import Directory
from tests.tables import table

from .clients import ASKED, PIXEL, WEATHER

ROUTER = Router.sandbox()
KNOWN = Directory(ROUTER.model_names(), ROUTER.models, ROUTER.caller_extra)


def reading_of(**fields: Any) -> tuple[wire.RouteRequest, set[str]]:
    reading = MessageCall(KNOWN)
    return reading.decode(msgspec.json.encode({**ASKED, **fields})), reading.ignored


def request_of(**fields: Any) -> wire.RouteRequest:
    return reading_of(**fields)[0]


def params_of(**fields: Any) -> wire.Params:
    params = request_of(**fields).params
    assert params is not None
    return params


def turns_of(*turns: tuple[str, Any]) -> list[wire.Message]:
    return request_of(messages=[{"role": role, "content": content} for role, content in turns]).messages


def refusal(**fields: Any) -> str:
    door = MessageCall(KNOWN)
    with pytest.raises(ValidationFailed) as caught:
        complete_request(door.decode(msgspec.json.encode({**ASKED, **fields})))
    return door.in_words(caught.value, 0.0).message


def test_sampling_parameters_are_translated() -> None:
    params = params_of(max_tokens=64, temperature=0.5, top_p=0.9, stop_sequences=["END"])
    assert (params.max_output_tokens, params.temperature, params.top_p, params.stop) == (64, 0.5, 0.9, ["END"])
    assert request_of(stream=True).stream


def test_system_blocks_become_one_message_before_the_others() -> None:
    request, ignored = reading_of(system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B", "new": 1}])
    assert request.messages[0] == wire.Message("system", "A\n\nB")
    assert ignored == {"new"}


def test_a_system_message_among_the_turns_stays_there() -> None:
    assert [message.role for message in turns_of(("user", "a"), ("system", "b"), ("user", "c"))] == [
        "user",
        "system",
        "user",
    ]


def test_one_text_block_is_a_text_and_several_are_parts() -> None:
    one, two = ({"type": "text", "text": text} for text in "ab")
    assert turns_of(("user", [one]))[0].content == "a"
    assert turns_of(("user", [one, two]))[0].content == [wire.TextPart("a"), wire.TextPart("b")]


def test_images_of_both_kinds_are_passed_on() -> None:
    (message,) = turns_of(
        (
            "user",
            [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            ],
        )
    )
    assert isinstance(message.content, list)
    urls = [part.image_url.url for part in message.content]  # type: ignore[union-attr]
    assert urls == [f"data:image/png;base64,{PIXEL}", "https://example.com/a.png"]


def test_a_tool_loop_becomes_calls_and_their_results_in_order() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    said = [{"type": "text", "text": "Thanks"}, {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"}]
    asked, called, result, after = turns_of(
        ("user", "?"), ("assistant", [{"type": "text", "text": "Wait"}, call]), ("user", said)
    )
    assert asked.content == "?"
    assert called.content == "Wait"
    assert called.tool_calls is not None
    assert msgspec.json.decode(called.tool_calls[0].function.arguments) == {"city": "Oslo"}
    assert (result.role, result.tool_call_id, result.content) == ("tool", "toolu_1", "Rain")
    assert (after.role, after.content) == ("user", "Thanks")


@table(
    ("content", "said"),
    [
        ("no such file", f"{FAILED}: no such file"),
        ([{"type": "text", "text": "no such file"}], f"{FAILED}: no such file"),
        (None, f"{FAILED}."),
        ("", f"{FAILED}."),
    ],
)
def test_a_failed_tool_is_said_to_have_failed(content: Any, said: str) -> None:
    block = {"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": True}
    message = turns_of(("user", [block]))[0]
    text = message.content if isinstance(message.content, str) else message.content[0].text  # type: ignore[index,union-attr]
    assert text == said


def test_the_image_of_a_tool_is_kept() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    block = {"type": "tool_result", "tool_use_id": "a", "content": [image], "is_error": True}
    content = turns_of(("user", [block]))[0].content
    assert isinstance(content, list)
    assert [part.__struct_config__.tag for part in content] == ["text", "image_url"]


def test_reasoning_is_sent_back_to_its_own_provider() -> None:
    thought: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "y"},
    ]
    request, ignored = reading_of(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [*thought, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": thought},
            {"role": "user", "content": "c"},
        ]
    )
    assert [message.content for message in request.messages] == ["a", "b", "c"]
    assert request.messages[1].reasoning == wire.Reasoning("anthropic", thought)
    assert ignored == set()


def test_packed_reasoning_of_another_vendor_is_unpacked() -> None:
    texts, silent = wire.Reasoning("google", [{"a": 1}], "Hm."), wire.Reasoning("google", [{"b": 2}])
    blocks = [*blocks_of(texts), *blocks_of(silent)]
    assert [block["type"] for block in blocks] == ["thinking", "redacted_thinking"]
    said = {"role": "assistant", "content": [*blocks, {"type": "text", "text": "Yes."}]}
    request = request_of(messages=[{"role": "user", "content": "a"}, said])
    assert request.messages[1].reasoning == wire.Reasoning("google", [{"a": 1}, {"b": 2}])


@table(
    ("fields", "reasoning"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, wire.ReasoningBudget(2048)),
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "none"),
        ({"output_config": {"effort": "xhigh"}}, "max"),
    ],
)
def test_thinking_and_effort_set_the_reasoning_effort(fields: dict[str, Any], reasoning: Any) -> None:
    request, ignored = reading_of(**fields)
    assert request.params is not None
    assert request.params.reasoning == reasoning
    assert ignored == set()


def test_cache_marks_stay_on_their_parts() -> None:
    mark, hour = {"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    request, ignored = reading_of(
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.", **hour}],
        tools=[{**WEATHER, **mark}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a", **mark}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "Rain", **mark}]},
        ],
    )
    short, long = wire.CacheControl("ephemeral"), wire.CacheControl("ephemeral", "1h")
    assert request.tools is not None
    assert request.tools[0].cache_control == short
    system, asked, _, result = request.messages
    assert system.content == [wire.TextPart("Be brief."), wire.TextPart("Be kind.", long)]
    assert asked.content == [wire.TextPart("a", short)]
    assert result.content == [wire.TextPart("Rain", short)]
    assert ignored == set()


def test_a_cache_mark_of_the_body_is_set_on_the_last_part() -> None:
    request = request_of(cache_control={"type": "ephemeral"}, system="Be brief.")
    assert request.messages[-1].content == [wire.TextPart("Hi", wire.CacheControl("ephemeral"))]
    assert request.messages[0].content == "Be brief."


def test_documents_are_files_or_text() -> None:
    sources: list[dict[str, Any]] = [
        {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        {"type": "url", "url": "https://example.com/a.pdf"},
        {"type": "text", "media_type": "text/plain", "data": "Once"},
    ]
    blocks = [{"type": "document", "source": source, "title": "a.pdf"} for source in sources]
    request, ignored = reading_of(messages=[{"role": "user", "content": blocks}])
    assert ignored == set()
    assert request.messages[-1].content == [
        wire.FilePart(wire.FileData("data:application/pdf;base64,JVBERi0=", "a.pdf")),
        wire.FilePart(wire.FileData("https://example.com/a.pdf", "a.pdf")),
        wire.TextPart("Once"),
    ]


@table(("tier", "ours"), [("auto", "auto"), ("standard_only", "default"), (None, None)])
def test_service_tiers_are_translated(tier: str | None, ours: str | None) -> None:
    assert params_of(service_tier=tier).service_tier == ours


def test_tools_keep_name_description_schema_and_strictness() -> None:
    request, ignored = reading_of(tools=[{**WEATHER, "type": "custom", "strict": True, "defer_loading": False}])
    assert request.tools is not None
    spec = request.tools[0].function_spec
    assert (spec.name, spec.description, spec.strict) == ("weather", WEATHER["description"], True)
    assert spec.parameters == WEATHER["input_schema"]
    assert ignored == {"defer_loading"}


@table(("kind", "choice"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_tool_choice_is_translated(kind: str, choice: str) -> None:
    request, ignored = reading_of(tools=[WEATHER], tool_choice={"type": kind, "disable_parallel_tool_use": True})
    assert request.tool_choice == choice
    assert request.params is not None
    assert request.params.parallel_tool_calls is False
    assert ignored == set()


def test_a_tool_can_be_chosen_by_name() -> None:
    choice = request_of(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}).tool_choice
    assert choice is not None
    assert not isinstance(choice, str)
    assert choice.function.name == "weather"


@table("field", ["output_config", "output_format"])
def test_a_schema_for_the_answer_is_honoured(field: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    found = params_of(**{field: {"format": form, "effort": "low"} if field == "output_config" else form})
    assert found.response_format is not None
    assert found.response_format["json_schema"]["schema"] == {"type": "object"}


def test_the_user_id_is_merged_into_metadata() -> None:
    request = request_of(metadata={"user_id": "u1"}, routewright={"metadata": {"team": "a"}, "goal": "quality"})
    assert request.metadata == {"user_id": "u1", "team": "a"}
    assert request.goal == "quality"


def test_unknown_fields_are_listed_as_ignored_unless_null() -> None:
    request, ignored = reading_of(top_k=3, metadata={"user_id": "u"}, mcp_servers=[], new_thing=1, container=None)
    assert ignored == {"mcp_servers", "new_thing"}
    assert request.params is not None
    assert request.params.extra == {"anthropic": {"top_k": 3, "metadata": {"user_id": "u"}}}


def test_the_ignored_list_is_bounded_and_holds_no_api_key() -> None:
    many = {f"field_{place}": 1 for place in range(100)}
    _, ignored = reading_of(**{"sk_live_0123456789abcdef": 1, "x" * 100: 1}, **many)
    assert len(ignored) == MOST_IGNORED
    assert all(name.startswith("field_") for name in ignored)


@table(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens: is missing; send the longest answer in tokens"),
        ({"max_tokens": "9"}, "max_tokens: must be a number, got '9'"),
        ({"model": None}, "model: is missing"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: is missing"),
        ({"thinking": {"type": "some"}}, "thinking.type: must be one of enabled, adaptive, disabled, got 'some'"),
        ({"messages": []}, "messages: must hold at least one message"),
        ({"messages": ["Hi"]}, "messages[0]: must be an object, got a string"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: is missing"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content: must hold at least one block"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "content: must be a string or an array of blocks, got a number",
        ),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema: is missing"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type: is 'web_search_20250305', a tool"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type: is 'any', but there are no tools"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1000}},
            "thinking.budget_tokens: is 1000, which uses up max_tokens=100",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "wether"}},
            "which is not declared (declared: 'weather'); did you mean 'weather'?",
        ),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type: must be 'json_schema', got 'xml'"),
    ],
)
def test_errors_name_the_field_as_this_api_does(fields: dict[str, Any], said: str) -> None:
    assert said in refusal(**fields)


@table(
    ("block", "said"),
    [
        ({"type": "document", "source": {"type": "file", "file_id": "f"}}, "source.type: must be 'base64', 'url'"),
        ({"type": "container_upload"}, "type: is 'container_upload'"),
        ({"type": "image", "source": {"type": "url", "url": "file:///x"}}, "source.url: must begin with https://"),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "x"}},
            "source.media_type: must be one of image/jpeg, image/png, image/gif, image/webp, got 'image/bmp'",
        ),
        ({"type": "tool_result", "tool_use_id": "", "content": "x"}, "tool_use_id: must not be empty"),
        ({"text": "x"}, "type: is missing"),
    ],
)
def test_an_unsupported_block_is_refused_at_its_path(block: dict[str, Any], said: str) -> None:
    told = refusal(messages=[{"role": "user", "content": [block]}])
    assert told.startswith("messages[0].content[0].")
    assert said in told


@pytest.mark.parametrize(
    ("allowed", "extra"),
    [((), None), (("top_k", "metadata"), {"anthropic": {"top_k": 5, "metadata": {"user_id": "ann"}}})],
)
def test_vendor_fields_are_passed_if_the_caller_may_send_them(allowed: tuple[str, ...], extra: Any) -> None:
    door = MessageCall(Directory({}, tuple, lambda provider: allowed))
    request = door.decode(msgspec.json.encode({**ASKED, "top_k": 5, "metadata": {"user_id": "ann"}}))
    assert request.params is not None
    assert request.params.extra == extra
