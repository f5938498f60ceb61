"""URLs of images and files go to providers whose vendor fetches them, and to those that the owner allows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright import (
    AnthropicProvider,
    CallableProvider,
    Caller,
    GeminiProvider,
    Model,
    NoCandidates,
    OpenAIProvider,
    Pricing,
    Router,
    ValidationFailed,
)
from routewright._core.request.rules import URLS
from routewright.backends.providers.callable import HostedProvider
from routewright.backends.providers.features import unsupported_at
from routewright.backends.providers.hosts import ENDPOINTS, HOSTS
from routewright.backends.providers.http import HttpProvider
from routewright.backends.providers.sandbox import SandboxProvider
from routewright.wire import Feature
from tests.tables import table

OWNER, KEYED = Caller(), Caller("default", key_id="key_1")
IMAGE, FILE = "https://example.com/x.png", "https://example.com/x.pdf"
SEES = Model(
    id="lab/sees",
    quality=0.5,
    context_window=100_000,
    modalities=("text", "image", "file"),
    pricing_per_1m=Pricing(0.0, 0.0),
)
DATA = "data:image/png;base64,iVBORw0KGgo="


def test_only_vendors_with_machines_of_their_own_fetch() -> None:
    assert {name for name, row in ENDPOINTS.items() if row.fetches_urls} == {
        "openai", "azure", "mistral", "groq", "xai", "togetherai", "deepinfra", "perplexity", "alibaba", "zai",
        "minimax", "cohere", "stepfun", "xiaomi", "openrouter", "anthropic", "google",
    }  # fmt: skip
    assert all(row.needs_key for row in ENDPOINTS.values() if row.fetches_urls)
    assert {name for name, host in HOSTS.items() if "http_url" in host.takes} == {"vllm", "llamacpp"}


@table(
    ("name", "url", "is_own"),
    [
        ("openai", "https://api.openai.com/v1", True),
        ("openai", "https://API.OpenAI.com:443/v1", True),
        ("openai", "https://eu.api.openai.com/v1", True),
        ("openai", "https://api.openai.com.example.com/v1", False),
        ("openai", "https://evil-api.openai.com.example/v1", False),
        ("openai", "http://127.0.0.1:8000/v1", False),
        ("azure", "https://mine.openai.azure.com/openai/v1", True),
        ("azure", "https://mine.services.ai.azure.com/openai/v1", True),
        ("azure", "https://mine.cognitiveservices.azure.com/openai/v1", True),
        ("azure", "https://openai.azure.com.example.com/openai/v1", False),
        ("azure", "https://mineopenai.azure.com/openai/v1", False),
        ("anthropic", "https://api.anthropic.com", True),
        ("anthropic", "https://proxy.example.com", False),
        ("google", "https://generativelanguage.googleapis.com/v1beta", True),
        ("alibaba", "https://dashscope.aliyuncs.com/compatible-mode/v1", True),
        ("vllm", "http://127.0.0.1:8000/v1", True),
    ],
)
def test_the_row_speaks_for_the_vendors_own_addresses(name: str, url: str, is_own: bool) -> None:
    assert ENDPOINTS[name].is_own(url) is is_own


@table(
    ("make", "fetches"),
    [
        (lambda: OpenAIProvider("k", environ={}), "callers"),
        (lambda: OpenAIProvider("k", region="eu", environ={}), "callers"),
        (lambda: OpenAIProvider("k", base_url="http://gpu:8000/v1", environ={}), False),
        (lambda: OpenAIProvider("k", environ={"OPENAI_BASE_URL": "http://gpu:8000/v1"}), False),
        (lambda: OpenAIProvider("k", name="azure", base_url="https://a.openai.azure.com", environ={}), "callers"),
        (lambda: OpenAIProvider("k", name="azure", base_url="https://gateway.example.com", environ={}), False),
        (lambda: OpenAIProvider("k", name="second", host=HOSTS["openai"], environ={}), "callers"),
        (lambda: OpenAIProvider("k", name="deepseek", environ={}), False),
        (lambda: OpenAIProvider(name="vllm", environ={}), False),
        (lambda: OpenAIProvider(name="vllm", environ={}, fetches_urls=True), True),
        (lambda: OpenAIProvider(name="llamacpp", environ={}, fetches_urls="callers"), "callers"),
        (lambda: OpenAIProvider(name="mine", base_url="https://llm.example.com/v1", environ={}), False),
        (lambda: OpenAIProvider("k", environ={}, fetches_urls=False), False),
        (lambda: AnthropicProvider("k", environ={}), "callers"),
        (lambda: AnthropicProvider("k", base_url="https://llm.example.com", environ={}), False),
        (lambda: AnthropicProvider("k", name="mine", base_url="https://llm.example.com", environ={}), False),
        (lambda: GeminiProvider("k", environ={}), "callers"),
        (lambda: GeminiProvider("k", environ={"GOOGLE_GEMINI_BASE_URL": "http://gpu:8000"}), False),
        (lambda: CallableProvider(str, models=[SEES]), False),
        (lambda: CallableProvider(str, models=[SEES], fetches_urls=True), True),
        (lambda: HostedProvider("openai"), "callers"),
        (lambda: HostedProvider("vllm"), False),
        (lambda: HostedProvider("mine"), False),
        (lambda: HostedProvider("mine", fetches_urls="callers"), "callers"),
        (lambda: SandboxProvider([SEES]), "callers"),
    ],
)
def test_what_a_provider_fetches_by_default_and_by_argument(make: Any, fetches: object) -> None:
    provider = make()
    assert provider.fetches_urls == fetches


@table("wrong", ["yes", 1, "True", "caller", [], b"callers"])
def test_another_value_is_refused_with_the_values_that_count(wrong: Any) -> None:
    for make in (
        lambda: OpenAIProvider("k", environ={}, fetches_urls=wrong),
        lambda: CallableProvider(str, models=[SEES], fetches_urls=wrong),
        lambda: HostedProvider("mine", fetches_urls=wrong),
    ):
        with pytest.raises(ValidationFailed, match="fetches_urls: must be True, False or 'callers'"):
            make()


def test_an_own_providers_other_value_is_refused_with_its_name() -> None:
    provider = CallableProvider(str, models=[SEES])
    provider.fetches_urls = "all"  # type: ignore[assignment]
    with pytest.raises(
        ValidationFailed, match="providers: fetches_urls of 'lab' is 'all'; make it True, False or 'cal"
    ):
        Router(providers=[provider]).models()


class Bare:
    """A provider without the attribute."""

    name = "lab"

    def __init__(self) -> None:
        self._inner = CallableProvider(str, models=[SEES])

    def models(self) -> Any:
        return self._inner.models()

    def open(self, call: Any) -> Any:
        return self._inner.open(call)

    async def aclose(self) -> None:
        pass


def asked(*urls: str) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "file", "file": {"file_data": url}}
        if url.endswith(".pdf")
        else {"type": "image_url", "image_url": {"url": url}}
        for url in urls
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def test_a_provider_that_may_not_fetch_for_callers_gets_none_of_their_files_either() -> None:
    class NoImages(CallableProvider):
        def unsupported(self, model: Model) -> tuple[Feature, ...]:
            return ("image_url",)

    provider = NoImages(str, models=[SEES], fetches_urls=True)
    with pytest.raises(NoCandidates):
        Router(providers=[provider]).decide(asked(FILE), models=[SEES.id], caller=KEYED)


MAKE, SEND = "or make the provider with fetches_urls=", "send images as data: URLs"
OWNER_MAY = 'or have the owner of the service set fetches_urls to "callers", to admit lab/sees'


@table(
    ("fetches", "caller", "urls", "said"),
    [
        (False, OWNER, [IMAGE], f"{SEND}, {MAKE}True if its API takes URLs, to admit lab/sees"),
        (False, OWNER, [FILE], f"send files as data: URLs, {MAKE}True if its API takes URLs, to admit lab/sees"),
        (False, OWNER, [IMAGE, FILE],
         f"send images and files as data: URLs, {MAKE}True if its API takes URLs, to admit lab/sees"),
        (False, KEYED, [IMAGE], f"{SEND}, {OWNER_MAY}"),
        (True, KEYED, [FILE], f"send files as data: URLs, {OWNER_MAY}"),
        (True, KEYED, [IMAGE, FILE], f"send images and files as data: URLs, {OWNER_MAY}"),
        (True, OWNER, [IMAGE, FILE, "http://nas/x.png"], None),
        ("callers", KEYED, [IMAGE, FILE], None),
        (False, KEYED, [DATA], None),
    ],
)  # fmt: skip
def test_a_provider_that_may_not_fetch_is_refused_for_its_modality(
    fetches: Any, caller: Caller, urls: list[str], said: str | None
) -> None:
    router = Router(providers=[CallableProvider(str, models=[SEES], fetches_urls=fetches)])
    if said is None:
        assert router.decide(asked(*urls), models=[SEES.id], caller=caller).model == SEES.id
        return
    with pytest.raises(NoCandidates) as caught:
        router.decide(asked(*urls), models=[SEES.id], caller=caller)
    assert caught.value.detail["rejected_candidates"][0]["reason"] == "modality"
    assert caught.value.detail["suggestion"] == said


def test_a_provider_that_does_not_say_is_sent_no_url() -> None:
    router = Router(providers=[Bare()])
    assert router.decide(asked(DATA)).model == SEES.id
    with pytest.raises(NoCandidates):
        router.decide(asked(IMAGE))


def test_a_request_with_a_url_goes_to_the_model_whose_vendor_fetches() -> None:
    local = CallableProvider(str, models=[SEES])
    vendor = OpenAIProvider("k", environ={})
    router = Router(providers=[local, vendor])
    assert router.decide(asked(DATA)).model == SEES.id, "it costs nothing"
    decision = router.decide(asked(IMAGE), caller=KEYED)
    assert decision.model.startswith("openai/")
    assert (SEES.id, "modality") in [(each.model, each.reason) for each in decision.rejected]


def test_a_host_that_takes_no_urls_stays_refused_if_it_may_fetch() -> None:
    model = replace(SEES, id="ollama/sees")
    provider = OpenAIProvider(name="ollama", environ={}, models=[model], fetches_urls="callers")
    with pytest.raises(NoCandidates) as caught:
        Router(providers=[provider]).decide(asked(IMAGE), caller=KEYED, models=[model.id])
    assert caught.value.detail["suggestion"] == f"{SEND} to admit ollama/sees"


@table("vendor", [OpenAIProvider, AnthropicProvider, GeminiProvider])
def test_plain_http_is_refused_where_no_model_takes_it(vendor: type[HttpProvider]) -> None:
    router = Router(providers=[vendor("k", environ={})])  # type: ignore[call-arg, arg-type]
    with pytest.raises(ValidationFailed) as caught:
        router.decide(asked("HTTP://example.com/x.png"))
    (problem,) = caught.value.problems
    assert problem.path == "messages[0].content[0].image_url.url"
    assert problem.problem == "begins with http://, which no model here can fetch"


def test_plain_http_goes_to_the_server_that_may_fetch_it() -> None:
    model = replace(SEES, id="vllm/sees", quality=0.1, pricing_per_1m=Pricing(9.0, 9.0))
    local = OpenAIProvider(name="vllm", environ={}, models=[model], fetches_urls=True)
    router = Router(providers=[OpenAIProvider("k", environ={}), local])
    decision = router.decide(asked("http://nas/x.png"))
    assert (decision.model, decision.chain) == ("vllm/sees", [])


def test_the_sandbox_refuses_what_the_vendor_would_not_fetch() -> None:
    sees = Model(id="deepseek/sees", modalities=("text", "image"))
    assert {*URLS} <= {*unsupported_at("deepseek", sees)}
    assert not {"image_url", "caller_url"} & {*unsupported_at("openai", Model(id="openai/sees"))}
    router = Router.sandbox()
    assert router.decide(asked(IMAGE), models=["openai/gpt-4.1"], caller=KEYED).model == "openai/gpt-4.1"
