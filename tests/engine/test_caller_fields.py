"""Callers with a key send vendors only fields that are known to be harmless; the owner can allow more."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from routewright import (
    AnthropicProvider,
    CallableProvider,
    Caller,
    GeminiProvider,
    Model,
    OpenAIProvider,
    Policy,
    Pricing,
    Router,
    ValidationFailed,
)
from routewright._core.request.rules import CALLER_EXTRA, COST_NOTHING, MAX_PROBLEMS
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.testing import ScriptedProvider
from routewright.wire import Params
from tests.tables import table

KEYED = Caller("default", key_id="key_1")
MODEL = Model(id="lab/one", quality=0.5, context_window=100_000, pricing_per_1m=Pricing(1.0, 1.0))


def provider_of(name: str, **options: Any) -> Any:
    match name:
        case "anthropic":
            return AnthropicProvider("k", environ={}, **options)
        case "google":
            return GeminiProvider("k", environ={}, **options)
        case "lab":
            return CallableProvider(str, models=[MODEL], **options)
        case "azure":
            options["base_url"] = "https://mine.openai.azure.com"
    model = Model(id=f"{name}/one", quality=0.5, context_window=100_000, pricing_per_1m=Pricing(1.0, 1.0))
    return OpenAIProvider("k", name=name, environ={}, models=[model], **options)


def refused(router: Router, extra: dict[str, Any], caller: Caller = KEYED) -> list[str]:
    """The paths of the fields that are refused."""
    try:
        router.decide("Hi", params={"extra": extra}, caller=caller)
    except ValidationFailed as error:
        return [problem.path for problem in error.problems]
    return []


@table(
    ("name", "allowed", "others"),
    [
        ("openai", "top_k logit_bias user store metadata prompt_cache_retention", "keep_alive prediction audio"),
        ("azure", "store metadata", "data_sources"),
        ("anthropic", "top_k metadata", "min_p user mcp_servers container"),
        ("vllm", "top_k min_p repetition_penalty user", "kv_transfer_params chat_template store typical_p priority"),
        ("llamacpp", "top_k repeat_penalty typical_p", "lora id_slot cache_prompt grammar"),
        ("ollama", "top_k", "keep_alive options"),
        ("mistral", "frequency_penalty", "safe_prompt metadata"),
        ("lab", "top_k", "anything"),
    ],
)
def test_each_vendor_has_a_list_of_harmless_fields(name: str, allowed: str, others: str) -> None:
    router = Router(providers=[provider_of(name)])
    for field in allowed.split():
        assert refused(router, {name: {field: 1}}) == [], field
    for field in others.split():
        assert refused(router, {name: {field: 1}}) == [f"params.extra.{name}.{field}"]
        assert refused(router, {name: {field: 1}}, Caller()) == [], "the owner may send anything"


@table(
    ("fields", "path"),
    [
        ({"generationConfig": {"topK": 5, "presencePenalty": 0.5}}, None),
        ({"generationConfig": {"topK": 5, "mediaResolution": "x"}}, "generationConfig.mediaResolution"),
        ({"generationConfig": {"topK": {"any": 1}}}, None),
        ({"generationConfig": 1}, "generationConfig"),
        ({"topK": 5}, "topK"),
        ({"generationConfig.topK": 5}, "['generationConfig.topK']"),
        ({"cachedContent": "x"}, "cachedContent"),
    ],
)
def test_a_name_with_a_dot_allows_that_key_of_that_object_alone(fields: dict[str, Any], path: str | None) -> None:
    found = refused(Router(providers=[provider_of("google")]), {"google": fields})
    assert found == ([] if path is None else [f"params.extra.google{'' if path.startswith('[') else '.'}{path}"])


@table("name", ["vllm", "lab", "anthropic"])
def test_the_owner_allows_more_for_one_provider(name: str) -> None:
    router = Router(providers=[provider_of(name, caller_extra=["guided_choice", "mirostat.tau"]), OpenAIProvider("k")])
    assert refused(router, {name: {"guided_choice": ["a"], "top_k": 1, "mirostat": {"tau": 1}}}) == []
    assert refused(router, {name: {"mirostat": {"eta": 1}}}) == [f"params.extra.{name}.mirostat.eta"]
    assert refused(router, {"openai": {"guided_choice": ["a"]}}) == ["params.extra.openai.guided_choice"]


@table("name", ["max_tokens", "n_predict", "n", "messages", "stream", "options.num_predict", "a.n.b"])
def test_the_owner_cannot_allow_what_the_router_sets(name: str) -> None:
    with pytest.raises(ValidationFailed, match=r"caller_extra: .* is set by the router"):
        provider_of("vllm", caller_extra=[name])


@table("wrong", ["top_k", 5, [5], None])
def test_anything_but_a_list_of_names_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationFailed, match="caller_extra: must be a list of names"):
        provider_of("lab", caller_extra=wrong)


@table(
    ("name", "said"),
    [
        ("", "'' is not a field"),
        ("a b", "'a b' is not a field"),
        ("a.", "'a.' is not a field"),
        ("vllm.x", "write 'x'"),
    ],
)
def test_a_name_that_no_field_can_have_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValidationFailed, match=f"caller_extra: .*{said}"):
        provider_of("vllm", caller_extra=[name])


def test_the_refusal_says_what_may_be_sent_and_how_the_owner_allows_more() -> None:
    with pytest.raises(ValidationFailed) as caught:
        Router(providers=[provider_of("anthropic")]).decide(
            "Hi", params={"extra": {"anthropic": {"container": "x"}}}, caller=KEYED
        )
    assert str(caught.value.problems[0]) == (
        "params.extra.anthropic.container: may not be sent by callers with a key; allowed: metadata, top_k; the "
        "owner of the service can allow more with caller_extra of 'anthropic'"
    )


def test_a_server_checks_fields_of_callers_without_a_key() -> None:
    router = Router(providers=[provider_of("vllm")])
    with pytest.raises(ValidationFailed):
        _ = router.prepare("Hi", params={"extra": {"vllm": {"x": 1}}}).decision


def test_a_policys_own_fields_are_not_the_callers() -> None:
    policy = Policy(name="house", params=Params(extra={"vllm": {"chat_template_kwargs": {"a": 1}}}))
    router = Router(providers=[provider_of("vllm")], policies=[policy])
    assert router.decide("Hi", policy_id="house", caller=KEYED).model == "vllm/one"


def test_vendor_fields_of_callers_have_a_size() -> None:
    biases = {str(number): 1 for number in range(10_000)}
    router = Router(providers=[provider_of("vllm")])
    assert refused(router, {"vllm": {"logit_bias": biases}}) == ["params.extra"]
    assert refused(router, {"vllm": {"logit_bias": biases}}, Caller()) == []
    assert refused(router, {"vllm": {"logit_bias": dict(islice(biases.items(), 1_000))}}) == []


def test_the_strictest_of_two_providers_with_one_name_counts() -> None:
    other = Model(id="lab/two", quality=0.4, pricing_per_1m=Pricing(1.0, 1.0))
    wide, strict = provider_of("lab", caller_extra=["x"]), ScriptedProvider([], models=[other])
    for providers in ([wide, strict], [strict, wide]):
        assert refused(Router(providers=providers), {"lab": {"x": 1}}) == ["params.extra.lab.x"]


def test_what_callers_may_send_costs_nothing() -> None:
    listed = CALLER_EXTRA.union(*(row.caller_extra for row in ENDPOINTS.values()))
    assert {name for name in listed if "." not in name} <= COST_NOTHING


# Caps and addresses that nobody may send.


@table(
    "name",
    "max_tokens n_predict n_cmpl max_length max_gen_len maxTokens maxTokenCount min_tokens min_new_tokens min_length "
    "ignore_eos num_return_sequences use_beam_search beam_width num_predict max_tokens_to_sample "
    "num_generations".split(),
)
def test_nobody_sets_the_length_of_an_answer_at_any_depth(name: str) -> None:
    router = Router(providers=[provider_of("vllm")])
    for fields, path in (
        ({name: 1}, name),
        ({"options": {name: 1}}, f"options.{name}"),
        ({"a": {"b": {"c": {name: 1}}}}, f"a.b.c.{name}"),
        ({"a": [1, {"b": [{name: 1}]}]}, f"a[1].b[0].{name}"),
    ):
        assert refused(router, {"vllm": fields}, Caller()) == [f"params.extra.vllm.{path}"]


def test_many_caps_in_a_deep_object_are_reported_without_effort() -> None:
    fields: dict[str, Any] = {f"k{number}": {"n": 1} for number in range(10_000)}
    for _ in range(40):
        fields = {"a" * 60: fields}
    assert len(refused(Router(providers=[provider_of("vllm")]), {"vllm": fields}, Caller())) == MAX_PROBLEMS


@table("data", ["https://10.0.0.7/x", "file:///etc/passwd", "data:audio/wav;base64,AAAA", "//10.0.0.7/x"])
def test_a_recording_is_base64_and_no_address(data: str) -> None:
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    with pytest.raises(ValidationFailed) as caught:
        Router.sandbox().decide([{"role": "user", "content": [part]}])
    (problem,) = caught.value.problems
    assert (problem.path, problem.problem) == ("messages[0].content[0].input_audio.data", "is not base64")
