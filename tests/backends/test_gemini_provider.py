"""The Gemini provider against a real server: requests, answers and errors."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import GeminiProvider, Router
from routewright._core.sse import SseEvent
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.faults import fault_in_answer, fault_of_answer
from routewright.backends.providers.features import generation_of
from routewright.backends.providers.gemini import UNSIGNED, GeneratedContent, content_body, read_usage
from routewright.catalogue import Catalogue
from routewright.testing import FakeClock
from routewright.wire import (
    Delta,
    Finish,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    ImagePart,
    ImageUrl,
    Message,
    Model,
    NamedToolChoice,
    Params,
    TextPart,
    Thought,
    Tool,
    ToolCall,
    ToolDelta,
    UpstreamCall,
    Usage,
)

from . import asking
from .asking import bytes_of, chunks_of, fault_after, fault_of, kind_of, outcome, read_streamed, written
from .conversations import calls, conversations, names, objects
from .gemini_server import USAGE, GeminiServer, called, checked, error, events, generated, problems_of, whole
from .openai_server import Answer, of_json
from .vendors import GEMINI, KEY, Vendor

pytestmark = pytest.mark.anyio
MODEL = Model(id="google/gemini-3.5-flash")
OLDER = Model(id="google/gemini-2.5-flash")
RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}
QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests"}],
}


@pytest.fixture
def vendor() -> Vendor:
    return GEMINI


call = partial(asking.call, model=MODEL)


def body_of(*messages: Message | str, **rest: Any) -> dict[str, Any]:
    """The body of a call, checked with the official types."""
    written = msgspec.json.encode(content_body(call(*messages, **rest)))
    assert problems_of(written) == []
    decoded: dict[str, Any] = json.loads(written)
    return decoded


def contents_of(*messages: Message | str, **rest: Any) -> Any:
    return body_of(*messages, **rest)["contents"]


def asks(name: str, arguments: str = "{}", id: str = "c1") -> ToolCall:
    return ToolCall(id, FunctionCall(name, arguments))


# --- what is sent


@pytest.mark.parametrize("stream", [False, True])
async def test_request_matches_the_official_types(server: GeminiServer, provider: GeminiProvider, stream: bool) -> None:
    spoken = [
        Message("developer", "be brief"),
        Message("user", [TextPart("what is this?"), ImagePart(ImageUrl("https://x.example/a.PNG?b=c.gif", "low"))]),
        Message("system", [TextPart("and kind"), TextPart("now")]),
        Message("assistant", "", [asks("look", '{"at": 1.0}'), asks("smell", "", "c2")]),
        Message("tool", '{"seen": "a parrot"}', tool_call_id="c1"),
        Message("tool", "nothing", tool_call_id="c2"),
        Message("user", [ImagePart(ImageUrl("data:image/png;base64,AAAA", "auto"))]),
    ]
    tools = [
        Tool(function=FunctionSpec("look", "Look.", {"type": "object", "properties": {"at": {"type": ["number"]}}})),
        Tool(name="smell"),
    ]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "$defs": {}}}}
    params = Params(0.5, 0.9, stop=["a", "b"], seed=42.0, response_format=form)
    sent = call(
        *spoken, stream=stream, params=params, tools=tools, tool_choice="look", max_output_tokens=100,
        model=Model(id="google/big", provider_model_id="gemini-3.5-flash/x"),
    )  # fmt: skip
    server.answers = [events(generated("ok", finish="STOP")) if stream else whole("ok")]
    await chunks_of(provider, sent)
    (request,) = server.requests
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    assert request.path == f"/v1beta/models/gemini-3.5-flash%2Fx:{method}"
    assert request.headers["x-goog-api-key"] == KEY
    assert request.headers["content-type"] == "application/json"
    assert KEY not in request.path
    assert request.body == {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "what is this?"},
                    {
                        "fileData": {"fileUri": "https://x.example/a.PNG?b=c.gif", "mimeType": "image/png"},
                        "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"},
                    },
                ],
            },
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"id": "c1", "name": "look", "args": {"at": 1.0}},
                        "thoughtSignature": "skip_thought_signature_validator",
                    },
                    {"functionCall": {"id": "c2", "name": "smell", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "look", "response": {"seen": "a parrot"}}},
                    {"functionResponse": {"id": "c2", "name": "smell", "response": {"output": "nothing"}}},
                    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                ],
            },
        ],
        "systemInstruction": {"parts": [{"text": "be brief"}, {"text": "and kind"}, {"text": "now"}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "look",
                        "description": "Look.",
                        "parametersJsonSchema": {"type": "object", "properties": {"at": {"type": ["number"]}}},
                    },
                    {"name": "smell"},
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "maxOutputTokens": 100,
            "stopSequences": ["a", "b"],
            "seed": 42,
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object", "$defs": {}},
        },
    }
    assert isinstance(request.body["generationConfig"]["seed"], int)


def test_a_bare_call_sends_only_its_message() -> None:
    assert body_of("hi", params=Params(response_format={"type": "text"}, stop=[])) == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}]
    }


@pytest.mark.parametrize(
    ("base", "root"),
    [
        ("https://x.example", "https://x.example/v1beta"),
        ("https://x.example/proxy", "https://x.example/proxy/v1beta"),
        ("https://x.example/v1alpha", "https://x.example/v1alpha"),
        ("https://x.example/google/v1", "https://x.example/google/v1"),
    ],
)
def test_the_version_is_v1beta_unless_the_address_has_one(base: str, root: str) -> None:
    request = GeminiProvider(KEY, base_url=base).request(call())
    assert request.url == f"{root}/models/gemini-3.5-flash:generateContent"


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        (None, None),
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("f", {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        (NamedToolChoice(FunctionName("f")), {"mode": "ANY", "allowedFunctionNames": ["f"]}),
    ],
)
def test_tool_choice_is_a_mode(choice: Any, mode: Any) -> None:
    said = body_of("hi", tools=[Tool(name="f")], tool_choice=choice)
    assert said.get("toolConfig") == (mode and {"functionCallingConfig": mode})
    assert "toolConfig" not in body_of("hi", tool_choice=choice)


@pytest.mark.parametrize("choice", [None, "auto"])
def test_strict_tools_have_their_calls_validated(choice: str | None) -> None:
    said = body_of("hi", tools=[Tool(name="f"), Tool(name="g", strict=True)], tool_choice=choice)
    assert said["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}


def test_a_json_object_is_requested_by_media_type() -> None:
    said = body_of("hi", params=Params(response_format={"type": "json_object"}))
    assert said["generationConfig"] == {"responseMimeType": "application/json"}


def test_consecutive_turns_of_one_role_are_joined() -> None:
    said = contents_of("a", "b", Message("assistant", "c"), Message("system", "s"), Message("assistant", "d"), "e")
    assert [(turn["role"], [part["text"] for part in turn["parts"]]) for turn in said] == [
        ("user", ["a", "b"]),
        ("model", ["c", "d"]),
        ("user", ["e"]),
    ]


def test_empty_text_is_left_out_beside_a_tool_call_only() -> None:
    assert contents_of("", model=OLDER) == [{"role": "user", "parts": [{"text": ""}]}]
    (_, turn) = contents_of("a", Message("assistant", "", [asks("f")]), model=OLDER)
    assert turn["parts"] == [{"functionCall": {"id": "c1", "name": "f", "args": {}}}]


@pytest.mark.parametrize(
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
    said = contents_of(
        "a",
        Message("assistant", "so", [asks("f", id="1"), asks("g", id="2")]),
        Message("assistant", None, [asks("h", id="3")]),
        Message("tool", "x", tool_call_id="1"),
        Message("tool", "y", tool_call_id="2"),
        Message("tool", "z", tool_call_id="3"),
        Message("assistant", None, [asks("f", id="4")]),
        Message("tool", "x", tool_call_id="4"),
        model=Model(id=f"google/{model}"),
    )
    bearing = [[part.get("thoughtSignature") for part in turn["parts"]] for turn in said if turn["role"] == "model"]
    word = UNSIGNED if signed else None
    assert bearing == [[None, word, None, None], [word]]
    assert base64.urlsafe_b64decode(UNSIGNED), "the field is bytes"


def test_a_result_has_the_function_name_of_the_last_call_with_its_id() -> None:
    said = contents_of(
        "a",
        Message("assistant", None, [asks("f", id="call_0")]),
        Message("tool", "1", tool_call_id="call_0"),
        Message("assistant", None, [asks("g", id="call_0")]),
        Message("tool", "2", tool_call_id="call_0"),
        Message("tool", "3", tool_call_id="other", name="h"),
    )
    results = [part["functionResponse"] for turn in said for part in turn["parts"] if "functionResponse" in part]
    assert [result["name"] for result in results] == ["f", "g", "h"]


@pytest.mark.parametrize(
    ("content", "response"),
    [
        ('{"a": 1e2, "b": 12345678901234567890123}', '{"a": 1e2, "b": 12345678901234567890123}'),
        ("{}", "{}"),
        ("[1]", '{"output":"[1]"}'),
        ("12", '{"output":"12"}'),
        ("", '{"output":""}'),
        ('{"a": ', '{"output":"{\\"a\\": "}'),
        ("[" * 100_000, None),
        ([TextPart('{"a"'), TextPart(": 1}")], '{"a": 1}'),
    ],
)
def test_a_result_is_sent_as_an_object_or_under_one_key(content: Any, response: str | None) -> None:
    sent = call("a", Message("assistant", None, [asks("f")]), Message("tool", content, tool_call_id="c1"))
    body = msgspec.json.encode(content_body(sent))
    if response is None:
        response = f'{{"output":"{content}"}}'
    assert f'"response":{response}}}'.encode() in body
    assert problems_of(body) == []


def test_images_in_results_are_sent_where_supported() -> None:
    content: Any = [TextPart("see"), ImagePart(ImageUrl("data:image/png;base64,AAAA", "high"))]
    said = contents_of("a", Message("assistant", None, [asks("f")]), Message("tool", content, tool_call_id="c1"))
    assert said[-1]["parts"] == [
        {
            "functionResponse": {
                "id": "c1",
                "name": "f",
                "response": {"output": "see"},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}],
            }
        }
    ]


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("data:image/PNG;base64,QUJD", {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}),
        ("DATA:image/png;charset=x;BASE64,QUJD", {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}),
        ("data:image/svg+xml,%41BC", {"inlineData": {"mimeType": "image/svg+xml", "data": "QUJD"}}),
        (
            "https://x.example/a.jpg#z",
            {"fileData": {"fileUri": "https://x.example/a.jpg#z", "mimeType": "image/jpeg"}},
        ),
        ("https://x.example/a?b.png", {"fileData": {"fileUri": "https://x.example/a?b.png"}}),
    ],
)
def test_an_image_is_its_data_or_its_address(url: str, part: dict[str, Any]) -> None:
    said = contents_of(Message("user", [ImagePart(ImageUrl(url))]), Message("assistant", [ImagePart(ImageUrl(url))]))
    assert said == [{"role": "user", "parts": [part]}, {"role": "model", "parts": [part]}]


@pytest.mark.parametrize(
    ("model", "detail", "level"),
    [
        (MODEL, "high", "MEDIA_RESOLUTION_HIGH"),
        (MODEL, "low", "MEDIA_RESOLUTION_LOW"),
        (MODEL, "auto", None),
        (MODEL, None, None),
        (OLDER, "high", None),
    ],
)
def test_detail_becomes_the_resolution_where_supported(model: Model, detail: Any, level: str | None) -> None:
    image = ImagePart(ImageUrl("data:image/png;base64,QUJD", detail))
    ((part,),) = [turn["parts"] for turn in contents_of(Message("user", [image]), model=model)]
    assert part.get("mediaResolution") == (level and {"level": level})


CANARY = "canary in the prompt"
IMAGE = ImagePart(ImageUrl(f"data:image/png,{CANARY}"))
UNSAYABLE: list[tuple[str, list[Message], dict[str, Any]]] = [
    ("a JSON object as arguments", [Message("assistant", None, [asks("f", f'["{CANARY}"]')])], {}),
    ("a JSON object as arguments", [Message("assistant", None, [asks("f", CANARY)])], {}),
    ("is not in the conversation", [Message("tool", CANARY, tool_call_id=CANARY)], {}),
    ("only text in system", [Message("user", "x"), Message("system", [IMAGE])], {}),
    ("a system message", [Message("system", CANARY)], {}),
    ("https://", [Message("user", [ImagePart(ImageUrl(f"http://x.example/{CANARY}"))])], {}),
    ("without data", [Message("user", [ImagePart(ImageUrl("data:image/png;base64,"))])], {}),
    ("without data", [Message("user", [ImagePart(ImageUrl("data:image/png"))])], {}),
    ("at most 5 stop sequences, got 6", [Message("user", "x")], {"params": Params(stop=[CANARY] * 6)}),
    (
        "as data: URLs",
        [
            Message("assistant", None, [asks("f")]),
            Message("tool", [ImagePart(ImageUrl(f"https://x.example/{CANARY}"))], tool_call_id="c1"),
        ],
        {},
    ),
    (
        "from Gemini 3 on",
        [
            Message("assistant", None, [asks("f")]),
            Message("tool", [IMAGE], tool_call_id="c1"),
        ],
        {"model": OLDER},
    ),
]


@pytest.mark.parametrize(("said", "messages", "rest"), UNSAYABLE)
async def test_what_cannot_be_expressed_is_a_request_fault_without_text_and_not_sent(
    server: GeminiServer, provider: GeminiProvider, said: str, messages: list[Message], rest: dict[str, Any]
) -> None:
    fault = await fault_of(provider, call(*messages, **rest))
    assert fault.kind == "request"
    assert said in fault.message
    assert CANARY not in f"{fault!r} {fault} {fault.args!r} {vars(fault)!r}"
    assert not fault.answered
    assert server.requests == []


def test_five_stop_sequences_are_sent() -> None:
    assert body_of("x", params=Params(stop=["a"] * 5))["generationConfig"]["stopSequences"] == ["a"] * 5
    assert body_of("x", params=Params(stop="a"))["generationConfig"]["stopSequences"] == ["a"]


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("gemini-2.5-pro", (2, 5)),
        ("gemini-3-flash-preview", (3, 0)),
        ("gemini-10.11-x", (10, 11)),
        ("gemini-flash-latest", (99, 0)),
        ("gemma-4-31b-it", (0, 0)),
    ],
)
def test_the_generation_is_read_from_the_models_name(name: str, generation: tuple[int, int]) -> None:
    assert generation_of(Model(id=f"google/{name}")) == generation


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("gemini-2.5-pro", set()),
        ("gemini-3.1-pro-preview", set()),
        ("gemini-3.5-flash", set()),
        ("gemini-3.5-flash-lite", {"temperature", "top_p"}),
        ("gemini-3.6-flash", {"temperature", "top_p"}),
        ("gemini-4-argon", {"temperature", "top_p"}),
        ("gemini-flash-latest", {"temperature", "top_p"}),
        ("gemini-2.0-flash", {"image_url", "file_url"}),
        ("gemma-4-31b-it", {"image_url", "file_url"}),
    ],
)
def test_ignored_parameters_are_constraints(name: str, lacking: set[str]) -> None:
    wishes = {"parallel_tool_calls", "verbosity", "cache_control"}
    assert set(GeminiProvider(KEY).unsupported(Model(id=f"google/{name}"))) == lacking | wishes | {"http_url"}


def test_a_model_without_sampling_parameters_is_sent_none() -> None:
    model = Model(id="google/gemini-4-argon", unsupported=("temperature", "top_p"))
    assert "generationConfig" not in body_of("x", params=Params(1.0, 1.0), model=model)


def test_requests_with_sampling_avoid_models_that_ignore_it() -> None:
    router = Router(providers=[GeminiProvider(KEY)])
    chain = router.decide("hi", params={"temperature": 0.2}).chain
    assert chain
    assert not {"google/gemini-3.8-flash", "google/gemini-4-argon"} & set(chain)


def test_the_catalogues_models_of_google_are_served() -> None:
    served = [model for model in Catalogue().models if model.provider == "google"]
    assert len(served) > 10
    for model in served:
        request = GeminiProvider(KEY).request(call(model=model))
        assert request.url.endswith(f"/models/{model.provider_model_id}:generateContent")


@given(calls(conversations(), *GEMINI.models))
def test_a_valid_conversation_is_never_refused(upstream: UpstreamCall) -> None:
    assert problems_of(msgspec.json.encode(content_body(upstream))) == []


# --- what comes back


@pytest.mark.parametrize("stream", [False, True])
async def test_function_calls_become_tool_calls_with_unique_ids(
    server: GeminiServer, provider: GeminiProvider, stream: bool
) -> None:
    parts = [called("f", {"a": [1, 2.5]}, "x1"), called("g"), called("g", {"b": None}), called("h", {}, "x1")]
    server.answers = [
        events(generated("so "), *map(generated, parts), generated(finish="STOP")) if stream else whole("so ", *parts)
    ]
    told = await chunks_of(provider, call(stream=stream))
    assert [chunk for chunk in told if not isinstance(chunk, Usage)] == [
        Delta("so "),
        ToolDelta(0, '{"a":[1,2.5]}', "x1", "f"),
        ToolDelta(1, "{}", "call_1", "g"),
        ToolDelta(2, '{"b":null}', "call_2", "g"),
        ToolDelta(3, "{}", "x1_3", "h"),
        Finish("tool_calls"),
    ]


async def test_thoughts_are_not_output_and_unknown_parts_are_signs_of_life(
    server: GeminiServer, provider: GeminiProvider
) -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    image = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    signed = {"text": "", "thoughtSignature": "AAAA"}
    server.answers = [
        events(
            generated({"text": "hm", "thought": True}),
            generated(code),
            generated(image),
            '{"candidates": [{"content": {"parts": [{"new": 1}]}}]}',
            generated("so", {"text": "hm", "thought": True}),
            generated(signed, finish="STOP"),
        )
    ]
    async with provider.open(call()) as chunks:
        came = [chunk async for chunk in chunks]
    assert came == [
        Thought("hm"), *[Delta("")] * 3, Delta("so"), Thought("hm"),
        Thought(item={"thoughtSignature": "AAAA", "at": 2}), Finish("stop"),
    ]  # fmt: skip


REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "ESCALATION": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
BROKEN = {
    "MALFORMED_FUNCTION_CALL": "malformed",
    "MALFORMED_RESPONSE": "malformed",
    "UNEXPECTED_TOOL_CALL": "malformed",
    "TOO_MANY_TOOL_CALLS": "malformed",
    "NO_IMAGE": "malformed",
    "LANGUAGE": "request",
    "MISSING_THOUGHT_SIGNATURE": "request",
    "PUP_LIMITED_DISABLED": "auth",
    "OTHER": "truncated",
    "IMAGE_OTHER": "truncated",
    "FINISH_REASON_UNSPECIFIED": "truncated",
}


def test_every_official_finish_reason_is_an_end_or_a_fault() -> None:
    from google.genai.types import FinishReason

    assert {reason.value for reason in FinishReason} == {*REASONS, *BROKEN}


@pytest.mark.parametrize(("said", "common"), REASONS.items())
async def test_finish_reasons_are_translated(
    server: GeminiServer, provider: GeminiProvider, said: str, common: str
) -> None:
    server.answers = [whole("half", finish=said), events(generated("half"), generated(finish=said))]
    assert await chunks_of(provider, call(stream=False)) == [Delta("half"), Usage(9, 3), Finish(common)]
    assert await chunks_of(provider, call()) == [Delta("half"), Finish(common)]


@pytest.mark.parametrize(("said", "kind"), BROKEN.items())
@pytest.mark.parametrize("stream", [False, True])
async def test_finish_reasons_without_an_answer_are_faults_after_the_usage(
    server: GeminiServer, provider: GeminiProvider, said: str, kind: str, stream: bool
) -> None:
    ended = generated(finish="STOP", usage=USAGE)
    ended["candidates"][0]["finishReason"] = said
    server.answers = [events(ended) if stream else of_json(ended)]
    came, fault = await fault_after(provider, call(stream=stream))
    assert came == [Usage(9, 3)]
    assert (fault.kind, fault.status, fault.answered) == (kind, 200, True)
    assert fault.message == f"google broke off with {said!r}"


@pytest.mark.parametrize(("said", "told"), [("A_NEW_REASON", "A_NEW_REASON"), (f"as you said: {CANARY}", "other")])
async def test_an_unknown_finish_reason_is_passed_on_and_shown_only_if_a_word(
    server: GeminiServer, provider: GeminiProvider, said: str, told: str
) -> None:
    document = generated("x", finish="STOP")
    document["candidates"][0]["finishReason"] = said
    for answer in (of_json(document), events(document)):
        server.answers = [answer]
        assert await chunks_of(provider, call(stream=False)) == [Delta("x"), Finish(told)]


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "SAFETY"])
async def test_empty_answer_is_allowed_if_the_reason_explains_it(
    server: GeminiServer, provider: GeminiProvider, reason: str
) -> None:
    server.answers = [whole(finish=reason, usage=None), events(generated(finish=reason))]
    for stream in (False, True):
        assert await chunks_of(provider, call(stream=stream)) == [Finish(REASONS[reason])]


async def test_the_last_finish_reason_counts(server: GeminiServer, provider: GeminiProvider) -> None:
    server.answers = [events(generated("a", finish="STOP"), generated("b", finish="MAX_TOKENS", usage=USAGE))]
    assert await chunks_of(provider, call()) == [Delta("a"), Delta("b"), Usage(9, 3), Finish("length")]


async def test_usage_is_given_only_when_it_changes(server: GeminiServer, provider: GeminiProvider) -> None:
    first, last = {"promptTokenCount": 9}, {"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}
    server.answers = [
        events(
            generated("a", usage=first),
            generated("b", usage=first),
            generated(usage=last),
            generated(finish="STOP", usage=last),
        )
    ]
    assert await chunks_of(provider, call()) == [
        Delta("a"),
        Usage(9, 0),
        Delta("b"),
        Usage(9, 7, reasoning=5),
        Finish("stop"),
    ]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"promptTokenCount": 100, "candidatesTokenCount": 20}, Usage(100, 20)),
        ({"promptTokenCount": 100}, Usage(100, 0)),
        (
            {"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 15, "totalTokenCount": 135},
            Usage(100, 35, reasoning=15),
        ),
        (
            {"promptTokenCount": 100, "candidatesTokenCount": 20, "cachedContentTokenCount": 60},
            Usage(100, 20, cached=60),
        ),
        ({"promptTokenCount": 100, "cachedContentTokenCount": 999}, Usage(100, 0, cached=100)),
        (
            {
                "promptTokenCount": 100, "cachedContentTokenCount": 40,
                "promptTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 30}, {"modality": "AUDIO", "tokenCount": 70}, "x",
                ],
                "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}],
            },
            Usage(100, 0, cached=40, audio=30),
        ),
        (
            {"promptTokenCount": 9, "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 70}]},
            Usage(9, 0, audio=9),
        ),
        ({"promptTokenCount": 9, "promptTokensDetails": {"modality": "AUDIO"}}, Usage(9, 0)),
        ({"promptTokenCount": 100, "thoughtsTokenCount": "x"}, None),
        ({"promptTokenCount": 100, "toolUsePromptTokenCount": -1}, None),
        ({"promptTokenCount": 100, "toolUsePromptTokenCount": 30, "candidatesTokenCount": 1}, Usage(130, 1)),
    ],
)  # fmt: skip
def test_usage_counts_thoughts_as_output_and_the_cache_as_input(said: dict[str, Any], read: Usage | None) -> None:
    assert read_usage(said) == read


async def test_a_plain_answer_without_a_reason_is_truncated(server: GeminiServer, provider: GeminiProvider) -> None:
    server.answers = [whole("x", finish=None, usage=None)]
    assert (await fault_of(provider, call(stream=False))).kind == "truncated"


async def test_only_the_first_candidate_is_read(server: GeminiServer, provider: GeminiProvider) -> None:
    document = generated("first", finish="STOP")
    document["candidates"].append({"index": 1, "content": {"parts": [{"text": "second"}]}, "finishReason": "OTHER"})
    server.answers = [of_json(checked(document))]
    assert await chunks_of(provider, call(stream=False)) == [Delta("first"), Finish("stop")]


def test_an_event_is_read_lazily() -> None:
    chunks = GeneratedContent("google").add(SseEvent(json.dumps(generated("a", "b"))))
    assert next(chunks) == Delta("a")
    assert msgspec.structs.asdict(next(chunks)) == {"text": "b"}


# --- one answer in two forms

texts = st.text(min_size=1, max_size=12)
parts = st.lists(
    texts
    | texts.map(lambda text: {"text": text, "thought": True})
    | st.builds(called, names, st.none() | objects, st.none() | names),
    max_size=6,
)
counts = st.fixed_dictionaries(
    {"promptTokenCount": st.integers(0, 99), "candidatesTokenCount": st.integers(0, 99)},
    optional={"thoughtsTokenCount": st.integers(0, 99), "cachedContentTokenCount": st.integers(0, 99)},
)


@given(parts, counts, st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "OTHER"]), st.integers(0, 3))
def test_plain_and_streamed_forms_of_an_answer_are_the_same(
    parts: list[Any], usage: dict[str, int], finish: str, grouped: int
) -> None:
    whole = generated(*parts, finish=finish, usage=usage)
    step = grouped + 1
    pieces = [generated(*parts[at : at + step], usage={"promptTokenCount": 1}) for at in range(0, len(parts), step)]
    streamed = bytes_of(events(*pieces, generated(finish=finish, usage=usage)))
    plain = outcome(GeneratedContent("google").read, json.dumps(whole).encode())
    assert outcome(read_streamed, GeneratedContent("google"), streamed) == plain


# --- what is not an answer

BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_blocked_prompt_is_a_refusal(server: GeminiServer, provider: GeminiProvider, stream: bool) -> None:
    server.answers = [events(checked(BLOCKED)) if stream else of_json(checked(BLOCKED))]
    came, fault = await fault_after(provider, call(stream=stream))
    assert came == [Usage(9, 0)]
    assert (fault.kind, fault.message) == ("refused", "google refused the prompt: prohibited_content")
    server.answers = [events({"promptFeedback": {"blockReason": "BLOCKED_REASON_UNSPECIFIED"}})]
    came, fault = await fault_after(provider, call())
    assert (came, fault.message) == ([], "google refused the prompt")


async def test_feedback_beside_a_candidate_is_no_refusal(server: GeminiServer, provider: GeminiProvider) -> None:
    feedbacks: list[dict[str, Any]] = [{"safetyRatings": []}, {"blockReason": "OTHER"}]
    for feedback in feedbacks:
        server.answers = [whole("x", promptFeedback=feedback)]
        assert (await chunks_of(provider, call(stream=False)))[0] == Delta("x")


@pytest.mark.parametrize(
    "document",
    [
        {"candidates": [{"finishReason": "STOP"}]},
        generated(finish="STOP"),
        generated("", finish="STOP"),
        generated({"text": "hm", "thought": True}, finish="STOP"),
        {"candidates": [{"content": {"parts": [{"functionCall": {"args": {}}}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": "{}"}}]}}]},
    ],
    ids=[
        "no content", "no parts", "empty text", "thoughts alone", "a call without a name",
        "arguments that are none",
    ],
)  # fmt: skip
def test_a_document_without_candidates_is_malformed(document: dict[str, Any]) -> None:
    assert kind_of(GeneratedContent("google").read, json.dumps(document).encode()) == "malformed"


def test_an_empty_stream_is_malformed() -> None:
    silent = bytes_of(events(generated(finish="STOP")))
    assert kind_of(read_streamed, GeneratedContent("google"), silent) == "malformed"


@pytest.mark.parametrize(
    ("told", "kind", "wait"),
    [
        ({"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}, "server", None),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [RETRY_INFO]}, "rate_limited", 34.074824224),
        ({"status": "INTERNAL"}, "server", None),
    ],
)
async def test_an_error_in_a_stream_comes_after_the_chunks_before_it(
    server: GeminiServer, provider: GeminiProvider, told: dict[str, Any], kind: str, wait: float | None
) -> None:
    server.answers = [events(generated("half"), {"error": told, "usageMetadata": USAGE})]
    came, fault = await fault_after(provider, call())
    assert came == [Delta("half"), Usage(9, 3)]
    assert (fault.kind, fault.retry_after, fault.answered) == (kind, wait, True)


def reason(name: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": name, "domain": "googleapis.com"}


OVERFLOW = "The input token count (1049590) exceeds the maximum number of tokens allowed (1048575)."
UNSIGNED_CALL = "Function call is missing a thought_signature in functionCall parts."
FREE_TIER = "Gemini API free tier is not available in your country. Please enable billing on your project."
STATUSES: list[tuple[Answer, str]] = [
    (error(400, "INVALID_ARGUMENT", "API Key expired.", [reason("API_KEY_INVALID")]), "auth"),
    (error(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 1 bytes."), "context_overflow"),
    (error(400, "INVALID_ARGUMENT", UNSIGNED_CALL), "request"),
    (error(400, "INVALID_ARGUMENT", "Requests ending with a model turn are not supported."), "request"),
    (error(400, "FAILED_PRECONDITION", FREE_TIER), "auth"),
    (error(401, "UNAUTHENTICATED"), "auth"),
    (error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."), "rate_limited"),
    (error(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota", [QUOTA]), "rate_limited"),
    (error(500, "INTERNAL", "An internal error has occurred."), "server"),
    (error(504, "DEADLINE_EXCEEDED"), "server"),
    (of_json([{"error": {"code": 400, "message": OVERFLOW}}], 400), "context_overflow"),
]


@pytest.mark.parametrize(("answer", "kind"), STATUSES)
def test_status_and_body_determine_the_kind_of_fault(answer: Answer, kind: str) -> None:
    fault = fault_of_answer("google", answer.status, {}, bytes_of(answer).decode())
    assert (fault.kind, fault.retry_after) == (kind, None)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, "google answered 429 resource_exhausted"),
        ({"code": 429, "status": "SOMETHING_ELSE"}, "google answered 429"),
        ({"code": 429, "details": [reason("API_KEY_INVALID")]}, "google answered 429 api_key_invalid"),
    ],
)
def test_googles_error_status_is_shown_without_the_repeated_code(told: Any, message: str) -> None:
    assert fault_of_answer("google", 429, {}, json.dumps({"error": told})).message == message


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("PERMISSION_DENIED", "auth"),
        ("UNAUTHENTICATED", "auth"),
        ("RESOURCE_EXHAUSTED", "rate_limited"),
        ("INTERNAL", "server"),
        ("UNAVAILABLE", "server"),
        ("DEADLINE_EXCEEDED", "server"),
        ("INVALID_ARGUMENT", "malformed"),
    ],
)
def test_googles_error_status_determines_the_kind_without_a_number(word: str, kind: str) -> None:
    assert fault_in_answer("google", json.dumps({"error": {"status": word}})).kind == kind


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("34s", 34.0),
        ("34.074824224s", 34.074824224),
        ("0s", 0.0),
        ("999999999s", 86_400.0),
        ("-1s", None),
        ("nans", None),
        ("infs", None),
        ("34", None),
        ("s", None),
        ("", None),
        (34, None),
        (None, None),
    ],
)
def test_the_retry_delay_is_read_from_the_details(delay: Any, seconds: float | None) -> None:
    body = json.dumps({"error": {"code": 429, "details": ["x", {}, QUOTA, RETRY_INFO | {"retryDelay": delay}]}})
    assert fault_of_answer("x", 429, {}, body).retry_after == seconds
    assert fault_in_answer("x", body).retry_after == seconds
    assert fault_of_answer("x", 429, {"retry-after": "7"}, body).retry_after == 7.0


# --- keys


async def test_a_key_at_its_limit_rests_for_the_retry_delay(server: GeminiServer) -> None:
    limits = [[RETRY_INFO | {"retryDelay": f"{seconds}s"}] for seconds in (50, 48, 49)]
    server.answers = [error(429, "RESOURCE_EXHAUSTED", "...", limit) for limit in limits]
    provider = GeminiProvider(["a", "b", "c"], base_url=server.url, clock=FakeClock(autojump=False))
    assert (await fault_of(provider)).retry_after == 48.0
    assert server.answers == []
    await provider.aclose()


async def test_a_reason_that_is_the_key_is_hidden(server: GeminiServer) -> None:
    key = "A_KEY_OF_GREAT_LENGTH"
    provider = GeminiProvider(key, base_url=server.url)
    for told in ({"promptFeedback": {"blockReason": key}}, {"candidates": [{"finishReason": key}]}):
        server.answers = [of_json(told)]
        assert key.lower() not in written(await fault_of(provider, call(stream=False))).lower()
    await provider.aclose()


def test_google_api_key_takes_precedence_over_gemini_api_key() -> None:
    (provider,) = providers_from_environment({"GEMINI_API_KEY": "one", "GOOGLE_API_KEY": "two"})
    assert [key.reveal() for key in provider._keys.keys] == ["two"]
