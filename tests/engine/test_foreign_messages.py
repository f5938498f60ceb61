"""Messages of other libraries, and an answer as the turn to append, are messages of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from openai.types.chat import ChatCompletionMessage

from routewright import CallableProvider, Catalogue, Model, Pricing, Router, ValidationFailed
from routewright._core.request.read import as_request
from routewright.wire import Chunk, Finish, Message, Thought, ToolDelta, UpstreamCall
from tests.tables import table

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}
LANG_CALL: Any = {"name": "look", "args": {"at": "sky"}, "id": "c1"}
TEXT: Any = {"type": "text", "text": "hi"}
IMAGE: Any = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


class Dumped:
    """An object of some SDK."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self) -> dict[str, Any]:
        return self.fields


@table(
    ("turn", "plain"),
    [
        (Dumped(role="user", content="hi", x=None), {"role": "user", "content": "hi"}),
        (
            ChatCompletionMessage(role="assistant", content="hi", annotations=[]),
            {"role": "assistant", "content": "hi"},
        ),
        (
            ChatCompletionMessage.model_validate({"role": "assistant", "tool_calls": [CALL]}),
            {"role": "assistant", "tool_calls": [CALL]},
        ),
        (
            ChatCompletionMessage(role="assistant", content="hi", annotations=[]).model_dump(),
            {"role": "assistant", "content": "hi"},
        ),
        (HumanMessage("hi", id="1"), {"role": "user", "content": "hi"}),
        (
            HumanMessage([TEXT, IMAGE]),
            {"role": "user", "content": [TEXT, IMAGE]},
        ),
        (SystemMessage("hi", name="a"), {"role": "system", "content": "hi", "name": "a"}),
        (AIMessage("hi", response_metadata={"a": 1}), {"role": "assistant", "content": "hi"}),
        (AIMessageChunk("hi"), {"role": "assistant", "content": "hi"}),
        (AIMessage("", tool_calls=[LANG_CALL]), {"role": "assistant", "tool_calls": [CALL]}),
        (
            AIMessage([TEXT, {"type": "tool_use", "id": "c1"}], tool_calls=[LANG_CALL]),
            {"role": "assistant", "content": [TEXT], "tool_calls": [CALL]},
        ),
        (ToolMessage("blue", tool_call_id="c1"), {"role": "tool", "content": "blue", "tool_call_id": "c1"}),
        (HumanMessage("hi").model_dump(), {"role": "user", "content": "hi"}),
    ],
)
def test_messages_of_other_libraries_are_messages(turn: Any, plain: dict[str, Any]) -> None:
    around: list[Any] = [{"role": "user", "content": "look"}]
    if plain["role"] == "tool":
        around.append({"role": "assistant", "tool_calls": [CALL]})
    after = [{"role": "tool", "content": "blue", "tool_call_id": "c1"}] if "tool_calls" in plain else []
    wanted = as_request([*around, plain, *after], {}).messages
    turns = [*around, turn, *after]
    assert as_request(turns, {}).messages == wanted
    assert as_request(tuple(turns), {}).messages == wanted
    assert as_request({"messages": turns}, {}).messages == wanted


def test_a_foreign_field_with_a_content_is_refused_by_name() -> None:
    refused = ChatCompletionMessage(role="assistant", content=None, refusal="No.")
    for turn in (refused, refused.model_dump()):
        with pytest.raises(ValidationFailed, match=r"^messages\[0\]\.refusal: is not a field; "):
            as_request([turn], {})
    with pytest.raises(ValidationFailed, match="is not"):
        as_request([object()], {})


MODEL = Model(id="mine/a", context_window=100_000, modalities=("text", "tool"), pricing_per_1m=Pricing(1, 1))


def router_of(*chunks: Chunk) -> tuple[Router, list[UpstreamCall]]:
    calls: list[UpstreamCall] = []

    async def answer(call: UpstreamCall) -> Any:
        calls.append(call)
        for chunk in chunks:
            yield chunk

    return Router(providers=[CallableProvider(answer, models=[MODEL])], catalogue=Catalogue(())), calls


async def test_an_answer_is_the_turn_to_append() -> None:
    router = Router.sandbox()
    answer = await router.route("hi", cache=True)
    assert answer.message == Message("assistant", answer.output)
    turns: list[Any] = [{"role": "user", "content": "hi"}, answer.message, {"role": "user", "content": "and then?"}]
    assert (await router.route(turns)).message.role == "assistant"
    assert answer.message.to_dict() == {"role": "assistant", "content": answer.output}
    with pytest.raises(ValidationFailed, match=r"^messages: Answer is not a message; append answer\.message$"):
        await router.route([*turns[:1], answer])  # type: ignore[list-item]
    hit = await router.route("hi", cache=True)
    assert (hit.routing.cache_hit, hit.message) == (True, answer.message)
    assert json.dumps(answer.message.to_dict())


async def test_calls_of_tools_are_part_of_the_turn() -> None:
    router, calls = router_of(Thought("hm", {"a": 1}), ToolDelta(0, '{"at":"sky"}', "c1", "look"), Finish("tool_calls"))
    tools = [{"name": "look"}]
    for answer in (
        await router.route("hi", tools=tools, idempotency_key="k"),
        await router.route("hi", tools=tools, idempotency_key="k"),
    ):
        turn = answer.message
        assert (turn.content, turn.tool_calls, turn.reasoning) == (None, answer.tool_calls, answer.reasoning)
        result = {"role": "tool", "content": "blue", "tool_call_id": "c1"}
        await router.route([{"role": "user", "content": "hi"}, turn, result], tools=tools)
        assert calls[-1].messages[1] == turn
    await router.aclose()
