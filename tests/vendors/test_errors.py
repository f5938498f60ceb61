"""Errors of vendors: what they are taken for, and who gets to read their words."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import (
    CallableProvider,
    Caller,
    Delta,
    Message,
    Model,
    Params,
    Pricing,
    ProviderFault,
    Router,
    RouterError,
    RouterTimeoutError,
    Settings,
    Tool,
    UpstreamCall,
)
from routewright._core.attempts.faults import SIGNS, kind_of_status
from routewright.backends.providers.answer import decode_body
from routewright.backends.providers.endpoint import Redactor
from routewright.backends.providers.faults import fault_in_answer, fault_of_answer
from routewright.backends.providers.http import HttpProvider
from routewright.errors import UpstreamFailed
from routewright.server import create_app
from routewright.settings import ExecutionLimits
from routewright.wire.account import Secret
from routewright.wire.printable import one_line, printable
from tests.backends import responses_server as responses
from tests.backends.provider_calls import chunks_of
from tests.backends.test_provider_faults import ERRORS
from tests.backends.vendors import KEY, VENDORS, Vendor
from tests.server.asgi_client import ask, scope_of
from tests.tables import table
from tests.upstream import Answer as Sent
from tests.upstream import Upstream, of_json

OWNER = Caller()
KEYED = Caller("default", key_id="key_1")
VENDOR = pytest.mark.parametrize("vendor", VENDORS, ids=[f"O {vendor.name} {vendor.path}" for vendor in VENDORS])


@table("row", [pytest.param(row, id=f"I {row['source']}: {row['name']}") for row in ERRORS if "source" in row])
def test_an_error_is_read_by_what_it_is_about(row: dict[str, Any]) -> None:
    body = json.dumps(row["body"])
    if row["status"] == 200:
        assert fault_in_answer("x", body).kind == row["kind"]
    else:
        assert fault_of_answer("x", row["status"], {}, body).kind == row["kind"]


WORDS = ["input ", "prompt tokens ", "(", "[", "tools[0", "'", "model ", "messages length ", "request too large for "]
WORDS += ["contextwindowexceeded ", "number of tokens ", "unexpected ", "输入", "\\", "max_", "a"]


def test_reading_any_message_takes_linear_time() -> None:
    """The longest message of one word after the other: a thousandth of a second for a pattern at most."""
    for word in WORDS:
        took = []
        for _ in range(3):
            began = perf_counter()
            kind_of_status(400, word[:64], (word * 2048)[:2048], (word * 200)[:200])
            took.append(perf_counter() - began)
        assert min(took) < 0.001 * len(SIGNS), word


# --- O: who reads a vendor's words

SECRET = "a purple elephant"
"""What the caller said, and a vendor repeats."""
TOOLS = [Tool(name=name, parameters={"type": "object", "properties": {}}) for name in ("look", "check_moderation")]
SAID = f"Invalid schema at tools[1]: \x1b[31m{SECRET}\x07\u202e\u2028not here, key {KEY} {'x' * 900}"


def refusals(vendor: Vendor) -> Upstream:
    error = {"message": SAID, "type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT"}
    return Upstream(lambda request: of_json({"type": "error", "error": error}, 400))


def router_at(upstream: Upstream, vendor: Vendor) -> tuple[Router, str]:
    model = Model(
        id=f"{vendor.name}/m", pricing_per_1m=Pricing(1.0, 4.0), modalities=("text", "tool"), context_window=9999
    )
    provider = vendor.make(KEY, base_url=upstream.root, models=[model])
    settings = Settings(execution=ExecutionLimits(backoff_s=0.0))
    return Router(providers=[provider], settings=settings), model.id


def failure_of(router: Router, caller: Caller = OWNER) -> RouterError:
    with pytest.raises(UpstreamFailed) as caught:
        router.blocking.route(SECRET, tools=TOOLS, caller=caller)
    return caught.value


@VENDOR
def test_the_owner_reads_what_the_vendor_wrote(vendor: Vendor) -> None:
    with refusals(vendor) as upstream:
        router, model = router_at(upstream, vendor)
        error = failure_of(router)
        (attempt,) = error.detail["attempts"]
        wrote = attempt["provider_message"]
        assert wrote.startswith(f"Invalid schema at tools[1]: [31m{SECRET} not here, key ***")
        assert (len(wrote), wrote.isprintable(), KEY in wrote) == (500, True, False)
        assert isinstance(error.__cause__, ProviderFault)
        assert str(error.__cause__).endswith(f"; the provider wrote: {wrote}")
        assert error.__cause__.__traceback__ is None
        assert error.message.endswith("; check the tool 'check_moderation'")
        assert attempt["model"] == model
        trace = router.blocking.trace(str(error.trace_id))
        for shown in (error.message, str(error.body), str(trace.to_dict()), str(error.outside)):
            assert SECRET not in shown
        copied = pickle.loads(pickle.dumps(error))
        assert copied.detail == error.detail
        router.blocking.close()


@VENDOR
def test_a_caller_with_a_key_does_not_read_it(vendor: Vendor, caplog: pytest.LogCaptureFixture) -> None:
    with refusals(vendor) as upstream:
        router, _ = router_at(upstream, vendor)
        error = failure_of(router, KEYED)
        shown = f"{error} {error.detail} {error.body} {error.__cause__!r} {error.outside} {caplog.text}"
        assert SECRET not in shown
        assert "provider_message" not in shown
        assert "check the tool 'check_moderation'" in error.message
        router.blocking.close()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@VENDOR
async def test_nobody_reads_it_over_http(vendor: Vendor, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "routewright")
    tools = [{"type": "function", "name": tool.name} for tool in TOOLS]
    with refusals(vendor) as upstream:
        for caller in (Caller(), KEYED):
            router, model = router_at(upstream, vendor)
            body = {"messages": [{"role": "user", "content": SECRET}], "tools": tools, "stream": stream}
            for path in ("/v1/route", "/openai/v1/chat/completions"):
                asked = body if path == "/v1/route" else body | {"model": model, "tools": None}
                asked = {name: value for name, value in asked.items() if value is not None}
                app = create_app(router, authenticate=lambda scope, caller=caller: caller)  # type: ignore[misc]
                answer = await ask(app, scope_of(path=path), asked)
                assert answer.status == 502
                assert b"elephant" not in answer.body
                assert b"provider_message" not in answer.body
            assert SECRET not in caplog.text
            await router.aclose()


def test_a_stream_that_fails_says_it_too() -> None:
    vendor = VENDORS[0]
    sent = f'data: {{"error": {{"message": "{SECRET} is bad", "code": 400}}}}\n\n'.encode()
    with Upstream(lambda request: Sent([sent], 200, {"content-type": "text/event-stream"}, chunked=True)) as upstream:
        router, _ = router_at(upstream, vendor)
        error = failure_of(router)
        assert error.detail["attempts"][-1]["provider_message"] == f"{SECRET} is bad"
        router.blocking.close()


TOOL_ERRORS = [
    ("O OpenAI", {"message": "string too long", "param": "tools[1].function.description"}, "check_moderation"),
    ("O OpenAI, by name", {"message": "Invalid schema for function 'look': In context=()"}, "look"),
    ("O Anthropic", {"message": "tools.0.custom.input_schema: JSON schema is invalid"}, "look"),
    ("O Google", {"message": "GenerateContentRequest.tools[0].function_declarations[1].parameters: no"}, "check_mod"),
    ("O an index that is none", {"message": "tools[7].function.name: bad"}, ""),
    ("O an unknown name", {"message": "Invalid schema for function 'other'"}, ""),
    ("O no tool", {"message": "temperature: must be below 2"}, ""),
]


@pytest.mark.parametrize(("error", "name"), [pytest.param(*row[1:], id=row[0]) for row in TOOL_ERRORS])
def test_the_hint_names_the_tool_that_a_vendor_means(error: dict[str, str], name: str) -> None:
    with Upstream(lambda request: of_json({"error": error}, 400)) as upstream:
        router, _ = router_at(upstream, VENDORS[0])
        message = failure_of(router).message
        router.blocking.close()
    assert (f"; check the tool '{name}" in message) == bool(name)
    assert ("check the tool" in message) == bool(name)


# --- a key that an upstream echoes

HEADER = "tenant-Canary0123456789"


def provider_of(vendor: Vendor) -> HttpProvider:
    return vendor.make(KEY, headers={"x-api-token": f"Bearer {HEADER}", "x-title": "a purple elephant"})


def call_of(vendor: Vendor) -> UpstreamCall:
    return UpstreamCall(Model(id=f"{vendor.name}/m"), [Message("user", "hi")], Params(), None, None, None, 9e9)


def echoes(vendor: Vendor, word: str) -> Iterator[bytes]:
    """Answers that hold a word in every text that is read of them."""
    parts = [{"text": f"I am {word}."}, {"functionCall": {"name": word, "args": {word: 1}}}]
    answers: dict[str, list[Any]] = {
        "openai": [
            {
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": word,
                        "message": {
                            "content": f"I am {word}.",
                            "reasoning_content": word,
                            "tool_calls": [{"id": word, "function": {"name": word, "arguments": f'{{"a": "{word}"}}'}}],
                        },
                    }
                ],
                "service_tier": word,
            }
        ],
        "anthropic": [
            {
                "content": [
                    {"type": "thinking", "thinking": word, "signature": word},
                    {"type": "text", "text": f"I am {word}."},
                    {"type": "tool_use", "id": word, "name": word, "input": {word: word}},
                ],
                "stop_reason": word,
                "usage": {"input_tokens": 1, "output_tokens": 2, "service_tier": word},
            }
        ],
        "google": [{"candidates": [{"content": {"parts": parts}, "finishReason": word}]}],
    }
    called = responses.called(word, {word: 1}, word)
    answers["/responses"] = [responses.whole(f"I am {word}.", called, service_tier=word, model=word)]
    for answer in answers[vendor.path if vendor.path in answers else vendor.name]:
        yield json.dumps(answer).encode()


FORMS = {
    "plain": lambda body: body,
    "with escaped slashes": lambda body: body.replace(b"/", b"\\/"),
    "escaped": lambda body: body.replace(b"sk-C", b"\\u0073\\u006b\\u002d\\u0043"),
}


@pytest.mark.parametrize("form", FORMS)
@VENDOR
def test_an_echoed_key_is_redacted_wherever_it_stands(vendor: Vendor, form: str) -> None:
    provider = provider_of(vendor)
    call = call_of(vendor)
    for word in (KEY, HEADER):
        for answer in echoes(vendor, word):
            reader = provider._reader(call, {})
            reader.redact = provider._redact.answer
            chunks = [*decode_body(reader, FORMS[form](answer))]
            request = provider.request(call)
            assert chunks == provider.read(request, 200, {"content-type": "application/json"}, FORMS[form](answer))
            shown = repr(chunks)
            assert "I am ***" in shown
            assert not any(part in shown for part in (word, "Canary", "0123456789"))


@pytest.mark.anyio
@VENDOR
async def test_a_streamed_key_is_redacted(vendor: Vendor) -> None:
    ending = [*vendor.ending, *vendor.mark]
    sent = vendor.stream(*vendor.opening, vendor.text(f"I am {KEY}, of a purple elephant."), *ending)
    with vendor.serve() as upstream:
        upstream.answers = [sent]
        provider = vendor.make(KEY, base_url=upstream.root, headers={"x-title": "a purple elephant"})
        chunks = await chunks_of(provider, call_of(vendor))
        await provider.aclose()
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, Delta))
    assert text == f"I am {'*' * len(KEY)}, of a purple elephant."


def test_a_short_key_of_a_local_server_stays_in_its_answers() -> None:
    redact = Redactor([Secret("ollama")])
    assert redact.answer("ollama runs models") == "ollama runs models"
    assert redact("ollama says no") == "****** says no"


@given(st.text(max_size=60), st.text(max_size=60))
def test_an_answer_without_a_key_is_not_touched(before: str, after: str) -> None:
    redact = Redactor([Secret(KEY)]).answer
    text = json.dumps(before + after)
    assert redact(text) is text or KEY.lower() in text.lower()
    assert KEY not in redact(f"{before}{KEY}{after}")


def test_looking_for_keys_costs_next_to_nothing() -> None:
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "some words"}}], "id": "c" * 200})
    vendor = VENDORS[0]
    redact = Redactor([Secret(KEY)]).answer

    def took(work: Any) -> float:
        best = 9.0
        for _ in range(5):
            began = perf_counter()
            for _ in range(2_000):
                work()
            best = min(best, perf_counter() - began)
        return best

    reader = vendor.reader()

    def read() -> None:
        reader.take(event)
        reader.chunks.clear()

    assert took(lambda: redact(event)) < 0.5 * took(read)


# --- words on a terminal


@given(st.text())
def test_printable_text_moves_and_forges_nothing(text: str) -> None:
    kept = printable(text)
    assert not any((ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) < 0xA0 for c in kept)
    assert not {*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029"} & {*kept}
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert printable(line) == line


def test_a_fault_of_a_host_is_told_on_one_line() -> None:
    def fails(call: UpstreamCall) -> str:
        raise ProviderFault("server", "down\n\x1b[2Jevery attempt worked\u2028\u202e")

    provider = CallableProvider(fails, models=[Model(id="mine/m", pricing_per_1m=Pricing(1.0, 4.0))], name="mine")
    with pytest.raises(UpstreamFailed) as caught:
        Router(providers=[provider]).blocking.route("hi", fallback={"models": [], "maxRetries": 0})
    assert "down [2Jevery attempt worked" in caught.value.message
    assert caught.value.message.isprintable()


def test_the_timeout_of_the_specification_is_a_name_of_the_top() -> None:
    assert issubclass(RouterTimeoutError, TimeoutError)
    assert RouterTimeoutError.code == "RouterTimeoutError"
