"""What the options of a model object and of one call come to."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Fallback, Message, NoCandidates, Params, Router, Tool, ValidationFailed
from routewright.integrations.options import check_options, facts_of, is_overflow, merge_options, part_of
from routewright.wire import AudioPart, FileData, FilePart, FunctionSpec, ImagePart, ImageUrl, InputAudio, TextPart

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("model", "routing"),
    [
        ("auto", {}),
        ("auto:quality", {"goal": "quality"}),
        ("policy:house", {"policy_id": "house"}),
        ("openai/gpt-4.1", {"models": ["openai/gpt-4.1"]}),
    ],
)
def test_a_name_stands_for_its_field_of_the_request(model: str, routing: dict[str, Any]) -> None:
    assert merge_options(model, []) == routing


@pytest.mark.parametrize("fallback", [{"models": ["b/y", "a/x"]}, Fallback(models=["b/y", "a/x"])])
def test_a_named_model_is_followed_by_its_fallbacks(fallback: Any) -> None:
    merged = merge_options("a/x", [], {"fallback": fallback})
    assert merged == {"fallback": fallback, "models": ["a/x", "b/y"], "prefer": "a/x"}


def test_a_call_overrides_the_model_object_and_joins_metadata_and_params() -> None:
    own = {"goal": "cost", "metadata": {"team": "a", "env": "x"}, "params": {"seed": 1}}
    call = {"goal": "quality", "metadata": {"team": "b"}, "params": {"top_p": 0.5}}
    assert merge_options("auto", [], own, {"metadata": None}, call) == {
        "goal": "quality",
        "metadata": {"team": "b"},
        "params": {"seed": 1, "top_p": 0.5},
    }
    assert merge_options("auto", [], own, call)["metadata"] == {"team": "b", "env": "x"}


HI = [Message("user", "hi")]
SAME = {"idempotency_key": "run-7", "params": {"seed": 1, "top_p": 0.5}}


def key_of(messages: Any, options: dict[str, Any]) -> Any:
    return merge_options("auto", messages, options)["idempotency_key"]


def test_a_call_that_repeats_messages_and_options_has_the_same_idempotency_key() -> None:
    assert key_of(HI, SAME) == key_of([Message("user", "hi")], {**SAME, "params": {"top_p": 0.5, "seed": 1}})


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (HI, {"idempotency_key": "run-8"}),
        (HI, {"tools": [Tool(function=FunctionSpec("add"))]}),
        ([Message("user", "ho")], {}),
        ([{"role": "user", "content": "ho"}], {}),
        ([Message("user", "\ud800")], {}),
        (HI, {"idempotency_key": "☀" * 40}),
    ],
)
def test_calls_that_differ_have_idempotency_keys_that_differ(messages: Any, options: dict[str, Any]) -> None:
    assert key_of(messages, SAME | options) != key_of(HI, SAME)
    assert len(key_of(messages, SAME | options)) == 64


@pytest.mark.parametrize("key", ["", 5])
async def test_the_router_refuses_a_wrong_idempotency_key(key: Any) -> None:
    with pytest.raises(ValidationFailed, match="idempotency_key: "):
        await Router.sandbox().route("hi", **merge_options("auto", [], {"idempotency_key": key}))


def test_a_call_overrides_what_the_model_stands_for() -> None:
    assert merge_options("auto:quality", [], {"goal": "cost"}) == {"goal": "cost"}
    assert merge_options("a/x", [], {"models": ["b/y"], "fallback": {"models": ["c/z"]}})["models"] == ["b/y"]


def test_params_of_two_kinds_do_not_join() -> None:
    assert merge_options("auto", [], {"params": Params(seed=1)}, {"params": {"top_p": 0.5}})["params"] == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("auto:best", {}, "model: names the unknown goal 'best'; take auto, or auto:cost, auto:quality"),
        ("auto:cost", {"goal": "quality"}, "model: is 'auto:cost', but goal differs; set only one; with goal the"),
        ("policy:a", {"policy_id": "b"}, "model: is 'policy:a', but policy_id differs"),
        ("a/x", {"models": ["b/y"]}, "model: is 'a/x', but models differs"),
        ("auto", {"metdata": {}}, "metdata: is not an option; did you mean 'metadata'?"),
    ],
)  # fmt: skip
def test_a_model_object_refuses_options_that_are_wrong(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_options(Router.sandbox(), model, options)
    assert str(refused.value).startswith(message)


def test_a_model_object_takes_a_router_and_a_call_a_dict_of_options() -> None:
    with pytest.raises(ValidationFailed, match="router: is not a Router, got BlockingRouter"):
        check_options(Router.sandbox().blocking, "auto", {})
    with pytest.raises(ValidationFailed, match="routewright: is 'fast'; pass a dict"):
        merge_options("auto", [], "fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "data", "url", "part"),
    [
        ("image/png", b"PNG", None, ImagePart(ImageUrl("data:image/png;base64,UE5H"))),
        ("image/png", "UE5H", None, ImagePart(ImageUrl("data:image/png;base64,UE5H"))),
        ("image/png", None, "https://e.org/a", ImagePart(ImageUrl("https://e.org/a"))),
        ("application/pdf", b"PDF", None, FilePart(FileData("data:application/pdf;base64,UERG", "a"))),
        ("audio/mpeg", b"MP3", None, AudioPart(InputAudio("TVAz", "mp3"))),
        ("Audio/X-WAV; rate=8000", b"WAV", None, AudioPart(InputAudio("V0FW", "wav"))),
        ("text/csv", b"a,b", None, TextPart("a,b")),
        ("text/csv", "YSxi", None, TextPart("a,b")),
    ],
)
def test_files_become_parts(kind: str, data: Any, url: str | None, part: Any) -> None:
    assert part_of(kind, data, url, "a") == part


@pytest.mark.parametrize(("kind", "url"), [("video/mp4", None), ("audio/mpeg", "https://e.org/a"), (None, None)])
def test_a_file_that_cannot_be_sent_is_refused_by_its_type(kind: str | None, url: str | None) -> None:
    message = f"a file of type '{kind or 'unknown'}' cannot be sent; send images and PDFs, or the bytes of WAV"
    with pytest.raises(ValidationFailed, match=message):
        part_of(kind, b"", url)


async def test_facts_of_an_answer_and_of_its_replay() -> None:
    router = Router.sandbox()
    first, again = [await router.route("hi", models=["openai/gpt-4.1"], idempotency_key="a") for _ in range(2)]
    facts = facts_of(first)
    assert facts_of(again) == facts | {"replayed": True}
    assert facts == {
        "trace_id": first.trace_id,
        "selected_model": "openai/gpt-4.1",
        "fallback_model": None,
        "finish_reason": "stop",
        "cost_usd": first.routing.cost_usd,
        "latency_ms": first.routing.latency_ms,
        "cache_hit": False,
        "replayed": False,
        "policy_version": first.routing.policy_version,
    }


@pytest.mark.parametrize(
    ("rejections", "attempts", "overflows"),
    [
        (["context", "disabled"], [], True),
        (["context", "budget_cost"], [], False),
        (["disabled"], [], False),
        ([], ["context_overflow"] * 2, True),
        ([], ["context_overflow", "server"], False),
        ([], [], False),
    ],
)
def test_an_overflow_has_no_other_reason(rejections: list[str], attempts: list[str], overflows: bool) -> None:
    rows = [{"reason": reason} for reason in rejections]
    detail = {"rejected_candidates": rows, "attempts": [{"error": error} for error in attempts]}
    assert is_overflow(NoCandidates("none", detail=detail)) is overflows
