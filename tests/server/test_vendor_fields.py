"""Fields that the vendors' SDKs can send: each is honoured, ignored by name, or refused at its path."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types.beta import BetaContentBlockParam, BetaToolUnionParam
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from docs._doors import OF_COMPLETIONS, OF_MESSAGES
from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses import ResponseInputItemParam, ToolParam

from routewright.server.anthropic import _NOTES
from routewright.server.openai import ChatCall
from tests.tables import table

from .asgi_client import Client, ask, scope_of
from .test_field_names import APP, BODY, HI

OPENAI_AT, ANTHROPIC_AT = "/openai/v1/chat/completions", "/anthropic/v1/messages"
RESPONSES_AT = "/openai/v1/responses"
OF_SDK = {"betas"}
"""What the SDK sends as a header."""

pytestmark = pytest.mark.anyio


def kinds(union: Any, field: str = "type") -> list[str]:
    """The words by which members of a union are told apart."""
    members = get_args(union)
    hints = [get_type_hints(member) for member in members if field in getattr(member, "__annotations__", ())]
    return sorted({word for hint in hints for word in get_args(hint[field]) if isinstance(word, str)})


async def sent(at: str, **fields: Any) -> Client:
    return await ask(APP, scope_of(path=at), {**BODY, **fields})


def ignored(answer: Client) -> list[str]:
    return answer.headers.get("x-routewright-ignored", "").split(", ")


@table(
    ("at", "name"),
    [
        *(
            (OPENAI_AT, name)
            for name in sorted(
                {*CompletionCreateParamsBase.__annotations__}
                - OF_COMPLETIONS
                - ChatCall.passthrough
                - {*ChatCall.refusals}
            )
        ),
        *(
            (ANTHROPIC_AT, name)
            for name in sorted(MessageCreateParamsBase.__annotations__.keys() - OF_MESSAGES - OF_SDK)
        ),
    ],
)
async def test_an_unsupported_field_is_listed_as_ignored(at: str, name: str) -> None:
    answer = await sent(at, **{name: "x"})
    assert (answer.status, ignored(answer)) == (200, [name])


@table("role", ["user", "assistant"])
@table("kind", kinds(BetaContentBlockParam))
async def test_every_block_of_anthropics_is_accepted_or_refused_at_its_path(role: str, kind: str) -> None:
    answer = await sent(ANTHROPIC_AT, messages=[HI, {"role": role, "content": [{"type": kind}]}])
    if answer.status == 200:
        is_note = kind.endswith("_tool_result") or kind in _NOTES
        assert ignored(answer) == ([""] if is_note else [kind]), "becomes text, or is named"
        return
    assert answer.status == 400
    assert answer.json["error"]["details"]["problems"][0]["path"].startswith("messages[1].content[0].")


@table("kind", sorted({*kinds(BetaContentBlockParam)} - _NOTES))
async def test_an_unsupported_block_in_a_tool_result_is_refused_in_anthropics_terms(kind: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": kind}]}
    answer = await sent(ANTHROPIC_AT, messages=[{"role": "user", "content": [result]}])
    problem = answer.json["error"]["details"]["problems"][0]
    assert (answer.status, problem["path"].startswith("messages[0].content[0].content[0].")) == (400, True)
    assert "'tool'" not in problem["problem"], "there is no such role"


@table("kind", kinds(BetaToolUnionParam))
async def test_a_tool_that_anthropic_runs_is_refused(kind: str) -> None:
    answer = await sent(ANTHROPIC_AT, tools=[{"type": kind, "name": "x"}])
    if kind.startswith("tool_search_tool_"):  # models get all tools at once
        assert (answer.status, kind in ignored(answer)) == (200, True)
        return
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(f"tools[0].type: is '{kind}', a tool that only Anthropic's")


@pytest.mark.parametrize("role", kinds(ChatCompletionMessageParam, "role"))
async def test_every_role_of_openais_is_accepted_or_refused_at_its_path(role: str) -> None:
    answer = await sent(OPENAI_AT, messages=[HI, {"role": role, "content": "Hi", "tool_call_id": "a", "name": "a"}])
    assert answer.status == 200 or answer.json["error"]["param"].startswith("messages[1].")


@pytest.mark.parametrize("kind", kinds(ChatCompletionContentPartParam))
async def test_every_part_of_openais_is_accepted_or_refused_at_its_path(kind: str) -> None:
    part = {"type": kind, "text": "Hi", "image_url": {"url": "https://x/y.png"}, "prompt_cache_breakpoint": {}}
    answer = await sent(OPENAI_AT, messages=[{"role": "user", "content": [part]}])
    if answer.status == 200:
        assert "prompt_cache_breakpoint" in ignored(answer)
    else:
        assert answer.json["error"]["param"].startswith("messages[0].content[0]")


@pytest.mark.parametrize("kind", kinds(ChatCompletionToolUnionParam))
async def test_every_tool_of_openais_chats_is_accepted(kind: str) -> None:
    answer = await sent(OPENAI_AT, tools=[{"type": kind, kind: {"name": "x"}}])
    assert answer.status == 200


@table("kind", kinds(ToolParam))
async def test_every_tool_of_openais_responses_is_accepted_or_refused_at_its_path(kind: str) -> None:
    tool = {"type": kind, "name": "x", "tools": [{"type": "function", "name": "y"}]}
    answer = await ask(APP, scope_of(path=RESPONSES_AT), {"model": "gpt-4.1", "input": "Hi", "tools": [tool]})
    is_at_client = kind in ("function", "custom", "namespace", "tool_search")
    assert (answer.status, is_at_client) in ((200, True), (400, False))
    assert is_at_client or answer.json["error"]["param"] == "tools[0].type"


@table("kind", kinds(ResponseInputItemParam))
async def test_every_item_of_openais_responses_is_accepted_or_refused_at_its_path(kind: str) -> None:
    item = {"type": kind, "role": "user", "content": "x", "name": "f", "input": "x", "call_id": "c"}
    user = {"role": "user", "content": "Hi"}
    answer = await ask(APP, scope_of(path=RESPONSES_AT), {"model": "gpt-4.1", "input": [user, item]})
    assert answer.status == 200 or answer.json["error"]["param"].startswith("input[1]")
    assert (answer.status == 400) == (kind.startswith(("compaction", "item_reference")))
