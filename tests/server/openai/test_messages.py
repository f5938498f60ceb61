"""Messages and tools of chat completions: how they are translated, and which field a refusal names."""

from __future__ import annotations

from typing import Any

from routewright import wire
from tests.tables import table

from .body_reader import CALL, fault, made, request
from .clients import CHAT, HI, TOOL

# Messages.


def test_parts_and_roles_are_kept() -> None:
    found = request(
        messages=[
            {"role": "developer", "content": "Be brief.", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "What?"}, _image("https://x/y.png")]},
            {"role": "assistant", "tool_calls": [CALL], "content": None, "refusal": None, "function_call": None},
            {"role": "tool", "content": [{"type": "text", "text": "rain"}], "tool_call_id": "c1"},
        ]
    )
    assert [message.role for message in found.messages] == ["developer", "user", "assistant", "tool"]
    parts = found.messages[1].content
    assert isinstance(parts, list)
    assert isinstance(parts[0], wire.TextPart)
    assert isinstance(parts[1], wire.ImagePart)
    assert found.messages[2].tool_calls is not None
    assert found.messages[0].name == "boss"


def test_the_text_of_a_refusal_is_the_content() -> None:
    told = [
        {"role": "assistant", "refusal": "I will not."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
    ]
    first, second = request(messages=told).messages
    assert first.content == "I will not."
    assert second.content == [wire.TextPart("I will not.")]


def test_an_empty_list_of_tool_calls_means_none() -> None:
    assert request(messages=[{"role": "assistant", "content": "Yes.", "tool_calls": []}]).messages[0].tool_calls is None


@table(
    ("message", "place", "said"),
    [
        ({"role": "function", "name": "f", "content": "1"}, ".role", "tool_call_id"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, ".function_call", "tool_calls"),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            ".content[0].input_audio.data",
            "missing",
        ),
        (
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
            ".content[0].file.file_id",
            "file_data",
        ),
        ({"role": "user", "content": [{"type": "video"}]}, ".content[0].type", "text, image_url"),
        ({"role": "user", "content": [{"type": "refusal"}]}, ".content[0].refusal", "a string"),
        ({"role": "user", "content": None}, ".content", "missing"),
        ("Hi", "", "an object"),
    ],
)
def test_a_wrong_message_is_refused_at_its_path(message: object, place: str, said: str) -> None:
    problem = fault(messages=[*HI, message])
    assert problem.path == f"messages[1]{place}"
    assert said in str(problem)


# Tools.


def test_allowed_tools_leaves_only_those_tools() -> None:
    other = {"type": "function", "function": {"name": "news"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}
    found = request(tools=[TOOL, other], tool_choice=choice)
    assert found.tools is not None
    assert [tool.function_spec.name for tool in found.tools] == ["news"]
    assert found.tool_choice == "required"


def test_tool_choice_may_name_one_tool() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    assert request(tools=[TOOL], tool_choice=choice).tool_choice == wire.NamedToolChoice(wire.FunctionName("weather"))


@table(
    ("fields", "path", "said"),
    [
        ({"tools": [{"type": "customs", "custom": {"name": "x"}}]}, "tools[0].type", "'function'"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice.custom.name", "missing"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "not declared"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "no"}}]},
                },
            },
            "tool_choice.allowed_tools.tools[0].function.name",
            "declared: 'weather'",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "'tools'"),
        ({"function_call": "auto"}, "function_call", "'tool_choice'"),
    ],
)
def test_wrong_tools_are_refused_at_their_path(fields: dict[str, Any], path: str, said: str) -> None:
    problem = fault(**fields)
    assert problem.path.startswith(path)
    assert said in str(problem)


# What the classes of LangChain's ``ChatOpenAI`` send, and what agents send back that dump the SDK's own messages.


def test_audio_and_documents_are_passed_on() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    document = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}
    marked = {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    found = request(messages=[{"role": "user", "content": [sound, {**document, "file_id": None}, marked]}])
    assert found.messages[0].content == [
        wire.AudioPart(wire.InputAudio("UklGRg==", "wav")),
        wire.FilePart(wire.FileData("data:application/pdf;base64,JVBERi0=", "a.pdf")),
        wire.TextPart("What is it?", wire.CacheControl("ephemeral", "1h")),
    ]


def test_packed_reasoning_is_for_the_provider_that_made_it() -> None:
    thought = wire.Reasoning("google", [{"signature": "s"}], "Hm.")
    details = [{"type": "reasoning.encrypted", "data": thought.pack()}]
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "reasoning_details": details}
    found, asked = made({**CHAT, "messages": [said]})
    assert found.messages[0].reasoning == wire.Reasoning("google", [{"signature": "s"}])
    assert asked.ignored == set()


@table(
    ("model", "fields", "found", "ignored"),
    [
        (
            "deepseek/chat",
            {"reasoning_content": "Hm."},
            wire.Reasoning("deepseek", [{"reasoning_content": "Hm."}], "Hm."),
            "",
        ),
        ("auto", {"reasoning_content": "Hm."}, None, "reasoning_content"),
        ("auto", {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}, None, "reasoning_details"),
        ("auto", {"reasoning_details": []}, None, ""),
    ],
)
def test_plain_reasoning_is_for_the_named_host_or_ignored(
    model: str, fields: dict[str, Any], found: wire.Reasoning | None, ignored: str
) -> None:
    request, asked = made({"model": model, "messages": [{"role": "assistant", "content": "Yes.", **fields}]})
    assert request.messages[0].reasoning == found
    assert asked.ignored == ({ignored} if ignored else set())


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
