"""Where a provider sends its calls, and with which key: hosts by name, regions, Azure, and what a variable says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright import AnthropicProvider, Policy, Router
from routewright.backends.providers.endpoint import Endpoint, address_of, complete_url
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.hosts import Host
from routewright.backends.providers.http import HttpProvider
from routewright.backends.providers.openai import OpenAIProvider
from routewright.errors import ContentRefused, NoCandidates, ValidationFailed
from routewright.wire import Availability, Model
from tests.upstream import of_json

from .openai_server import OpenAIServer, delta, events, whole
from .provider_calls import call, written
from .vendors import BAD_ADDRESSES, KEY, PASSWORD

RESOURCE = "https://my-resource.openai.azure.com"
AZURE = "AZURE_OPENAI_ENDPOINT"
REGIONS = [
    ("openai", "eu", "https://eu.api.openai.com/v1"),
    ("alibaba", "us", "https://dashscope-us.aliyuncs.com/compatible-mode/v1"),
    ("moonshotai", "cn", "https://api.moonshot.cn/v1"),
    ("zai", "cn", "https://open.bigmodel.cn/api/paas/v4"),
    ("minimax", "cn", "https://api.minimaxi.com/v1"),
    ("openrouter", "eu", "https://eu.openrouter.ai/api/v1"),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "zai", "region": "mars"}, "region: zai has no region 'mars'; take one of 'intl', 'cn'"),
    ({"name": "groq", "region": "eu"}, "region: groq has no region 'eu'; leave it out, or pass base_url=..."),
    ({"region": 7}, "region: openai has no region 7; take one of 'us', 'eu', 'au', 'in', 'jp', 'ae'"),
    ({"region": "eu", "base_url": "https://x.example"},
     "region: 'eu' has its own address; pass region or base_url, not both"),
    ({"name": "anthropic"}, "name: anthropic has its own protocol; use AnthropicProvider"),
    ({"name": "google"}, "name: google has its own protocol; use GeminiProvider"),
    ({"name": "mine", "base_url": "https://llm.example.com/v1/chat/completions/"},
     "base_url: https://llm.example.com/v1/chat/completions/ is the address of a single call; "
     "write https://llm.example.com/v1"),
    ({"name": "azure"}, "base_url: azure has no default address; set AZURE_OPENAI_ENDPOINT, or pass base_url=..."),
    ({"host": "4921"}, "host: must be a Host, got str; pass the name of a known one as name=..., or base_url=..."),
]  # fmt: skip


def test_what_a_host_does_not_have_is_refused() -> None:
    for argument, why in REFUSED:
        with pytest.raises(ValidationFailed) as caught:
            OpenAIProvider(KEY, environ={}, **argument)
        assert str(caught.value) == why
    with pytest.raises(ValidationFailed, match="no host is known as 'mistrall'; did you mean 'mistral'"):
        OpenAIProvider(KEY, name="mistrall")
    with pytest.raises(ValidationFailed, match=r"^base_url: '' is not an address"):
        OpenAIProvider(KEY, host=Host(name="x", base_url=""))


def test_a_region_has_its_own_address() -> None:
    for name, region, url in REGIONS:
        environ = {"OPENAI_BASE_URL": "https://proxy.example/v1"}
        provider = OpenAIProvider(KEY, name=name, region=region, environ=environ)
        assert provider.request(call()).url == f"{url}/chat/completions"
        assert provider.region == region


def test_models_of_a_region_satisfy_policies_with_that_region() -> None:
    policies = [Policy(name="eu", regions=["eu"]), Policy(name="us", regions=["us"])]
    router = Router(providers=[OpenAIProvider(KEY, region="eu"), OpenAIProvider(KEY, name="groq")], policies=policies)
    where = {model.id: model.availability.regions for model in router.models()}
    assert where["openai/gpt-4.1"] == ("eu",)
    assert where["groq/openai/gpt-oss-20b"] == ()
    assert router.decide("hi", policy_id="eu").model.startswith("openai/")
    with pytest.raises(NoCandidates):
        router.decide("hi", policy_id="us")


def test_the_region_of_a_provider_overrides_the_declared_one() -> None:
    model = Model(id="openai/gpt-4.1", availability=Availability(regions=("us", "eu")))
    router = Router(providers=[OpenAIProvider(KEY, region="eu", models=[model])])
    assert [each.availability.regions for each in router.models() if each.id == model.id] == [("eu",)]


# --- Azure


def test_azures_address_is_completed_from_any_form() -> None:
    for form in (RESOURCE, f"{RESOURCE}/", f" {RESOURCE}/openai", f"{RESOURCE}/openai/v1/"):
        environ = {AZURE: form, "AZURE_OPENAI_API_KEY": KEY}
        by_argument = OpenAIProvider(KEY, name="azure", base_url=form.strip())
        by_variable = OpenAIProvider(name="azure", environ=environ)
        for provider in (by_argument, by_variable, *providers_from_environment(environ)):
            assert isinstance(provider, OpenAIProvider)
            assert provider.request(call()).url == f"{RESOURCE}/openai/v1/chat/completions"
    elsewhere = OpenAIProvider(KEY, name="azure", base_url="https://gateway.example/open/azure")
    assert elsewhere.request(call()).url == "https://gateway.example/open/azure/chat/completions"
    for path in ("/?api-version=2024-10-21", "/openai/deployments/mine/chat/completions?api-version=1"):
        with pytest.raises(ValidationFailed, match=r"base_url: .*; pass https://RESOURCE\.openai\.azure\.com, with"):
            OpenAIProvider(KEY, name="azure", base_url=f"{RESOURCE}{path}")
    for lone in ({"AZURE_OPENAI_API_KEY": KEY}, {AZURE: RESOURCE}):
        assert providers_from_environment(lone) == [], "it needs both"


def test_azure_has_its_own_key_header_and_the_deployment_as_the_model() -> None:
    request = OpenAIProvider(KEY, name="azure", base_url=RESOURCE).request(call(model="azure/my-deployment"))
    assert request.reveal()["api-key"] == KEY
    assert "authorization" not in request.reveal()
    assert KEY not in repr(request.headers)
    assert json.loads(request.body)["model"] == "my-deployment"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_azures_content_filter_is_a_refusal() -> None:
    prompt = {
        "error": {
            "message": "The response was filtered due to the prompt triggering Azure's content management policy.",
            "type": None, "param": "prompt", "code": "content_filter", "status": 400,
            "innererror": {
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": {"violence": {"filtered": True, "severity": "high"}},
            },
        }
    }  # fmt: skip
    results = {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
    model = Model(id="azure/my-deployment", like="openai/gpt-4.1")
    with OpenAIServer() as server:
        azure = OpenAIProvider(KEY, name="azure", base_url=server.url.removesuffix("/v1"), models=[model])
        for answer in (
            of_json(prompt, 400),
            events(results, delta("half"), delta(finish="content_filter")),
            whole({"role": "assistant", "content": None}, finish="content_filter"),
        ):
            server.answers = [answer]
            with pytest.raises(ContentRefused):
                await Router(providers=[azure]).route("hi")
        assert [request.path for request in server.requests] == ["/openai/v1/chat/completions"] * 3
        assert server.problems == []
        await azure.aclose()


# --- keys and variables


def test_key_is_read_from_the_variable_of_the_host() -> None:
    (key,) = OpenAIProvider(name="mistral", environ={"MISTRAL_API_KEY": KEY})._keys.keys
    assert key.reveal() == KEY
    with pytest.raises(ValidationFailed, match="mistral needs a key; set MISTRAL_API_KEY, or pass api_key="):
        OpenAIProvider(name="mistral", environ={"MISTRAL_API_KEY": " "})
    with pytest.raises(ValidationFailed, match="DEEPINFRA_API_KEY or DEEPINFRA_TOKEN"):
        OpenAIProvider(name="deepinfra", environ={})
    (google,) = providers_from_environment({"GEMINI_API_KEY": "one", "GOOGLE_API_KEY": "two"})
    assert isinstance(google, HttpProvider)
    assert [key.reveal() for key in google._keys.keys] == ["two"], "it takes precedence"
    local = OpenAIProvider(name="vllm", environ={})
    assert "authorization" not in local.request(call()).reveal()


def test_another_host_gets_no_key_of_anthropics() -> None:
    environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://proxy.example"}
    provider = AnthropicProvider(name="mine", base_url="https://llm.example.com", environ=environ)
    request = provider.request(call(model=Model(id="mine/glm-5")))
    assert (request.url, "x-api-key" in request.reveal()) == ("https://llm.example.com/v1/messages", False)
    with pytest.raises(ValidationFailed, match=r"^name: no host is known as 'mine'; pass base_url="):
        AnthropicProvider(KEY, name="mine")


def test_environment_creates_a_provider_for_each_configured_host() -> None:
    environ = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": "https://proxy.example/v1",
        "GROQ_API_KEY": KEY,
        "XAI_API_KEY": "",
        "OLLAMA_HOST": "0.0.0.0",
        "VLLM_API_KEY": KEY,
    }
    assert [repr(provider) for provider in providers_from_environment(environ)] == [
        "OpenAIProvider(name='openai', base_url='https://proxy.example/v1')",
        "OpenAIProvider(name='groq', base_url='https://api.groq.com/openai/v1')",
        "OpenAIProvider(name='ollama', base_url='http://127.0.0.1:11434/v1')",
    ]


def test_address_of_a_local_server_is_completed() -> None:
    for short, url in {
        "gpu-box": "http://gpu-box:11434/v1",
        "gpu-box:9999": "http://gpu-box:9999/v1",
        "http://gpu-box:9999/": "http://gpu-box:9999/v1",
        "https://llm.example.com": "https://llm.example.com/v1",
        "https://llm.example.com/api/v2/": "https://llm.example.com/api/v2",
        "[::1]:5": "http://[::1]:5/v1",
        "0.0.0.0:5": "http://127.0.0.1:5/v1",
    }.items():
        assert complete_url(short, "http://127.0.0.1:11434/v1") == url
        provider = OpenAIProvider(name="ollama", base_url=short, environ={"OLLAMA_HOST": "http://other"})
        assert repr(provider) == f"OpenAIProvider(name='ollama', base_url={url!r})"
    for url in ("https://llm.example.com/?", "https://llm.example.com/v1/#"):  # nothing is appended behind these
        assert address_of(Endpoint(name="mine", base_url="", url_path="/v1/openai"), url, {}) == url


def test_an_invalid_address_names_its_variable_without_credentials() -> None:
    for address in (f"http://{PASSWORD}@x/v1", *BAD_ADDRESSES):
        with pytest.raises(ValidationFailed, match=r"^OLLAMA_HOST: ") as caught:
            OpenAIProvider(name="ollama", environ={"OLLAMA_HOST": address})
        assert PASSWORD not in written(caught.value)
