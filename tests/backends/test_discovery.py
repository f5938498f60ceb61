"""Local servers report their models, with context windows and abilities, at no cost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest

from routewright import Model, OpenAIProvider, Pricing, Router
from routewright.cli import main
from routewright.errors import NoProviders, ProviderFault
from routewright.protocols import DiscoveringProvider
from tests.backends.proxy_server import ProxyServer
from tests.model_servers import LLAMACPP, LMSTUDIO, SHOWN, VLLM, LocalServer, ollama

pytestmark = pytest.mark.anyio
FREE = Pricing(0.0, 0.0)


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_HOST", "_BASE_URL"))]:
        monkeypatch.delenv(name)


def found(router: Router) -> dict[str, tuple[Any, ...]]:
    return {
        model.id: (model.context_window, model.modalities, model.reasoning)
        for model in router.models()
        if model.availability.status == "available"
    }


async def models_of(name: str, answers: dict[str, Any]) -> tuple[list[Model], LocalServer]:
    with LocalServer(answers) as server:
        provider = OpenAIProvider(name=name, base_url=server.url, environ={})
        await provider.discover()
        await provider.aclose()
        return [*provider.models()], server


def facts(models: list[Model]) -> list[tuple[str, str, int | None, tuple[str, ...] | None, bool | None]]:
    assert all(model.pricing_per_1m == FREE and model.structured_output for model in models)
    return [(each.id, each.provider_model_id, each.context_window, each.modalities, each.reasoning) for each in models]


async def test_ollama_reports_windows_and_capabilities_without_its_embedders() -> None:
    models, server = await models_of("ollama", ollama())
    assert facts(models) == [
        ("ollama/gemma4:31b", "gemma4:31b", 262_144, ("text", "image"), False),
        ("ollama/gpt-oss:20b", "gpt-oss:20b", 16_384, ("text", "tool"), True),  # num_ctx is what it gets
        ("ollama/llama3.2", "llama3.2:latest", 131_072, ("text", "tool"), False),
    ]
    assert server.keys == {None}


async def test_ollama_is_asked_once_for_each_model() -> None:
    with LocalServer(ollama("llama3.2:latest")) as server:
        provider = OpenAIProvider(name="ollama", base_url=server.url, environ={})
        await provider.discover()
        await provider.discover()
        assert (server.asked("/api/tags"), server.asked("/api/show")) == (2, 1)
        server.paths = ollama("llama3.2:latest", "gemma4:31b")
        await provider.discover()
        assert [model.id for model in provider.models()] == ["ollama/gemma4:31b", "ollama/llama3.2"]
        server.paths = ollama("gemma4:31b")
        await provider.discover()
        assert [model.id for model in provider.models()] == ["ollama/gemma4:31b"]
        assert server.asked("/api/show") == 2
        await provider.aclose()


async def test_a_model_loaded_by_ollama_has_its_loaded_window() -> None:
    loaded = [
        {"name": "llama3.2:latest", "context_length": 4_096},
        {"name": "gpt-oss:20b", "context_length": 131_072},
        {"name": "gemma4:31b"},  # an older Ollama does not say
    ]
    with LocalServer(ollama() | {"/api/ps": {"models": loaded}}) as server:
        provider = OpenAIProvider(name="ollama", base_url=server.url, environ={})
        await provider.discover()
        windows = {model.id: model.context_window for model in provider.models()}
        assert windows == {"ollama/gemma4:31b": 262_144, "ollama/gpt-oss:20b": 16_384, "ollama/llama3.2": 4_096}
        server.paths["/api/ps"] = {"models": []}
        await provider.discover()
        assert {model.id: model.context_window for model in provider.models()}["ollama/llama3.2"] == 131_072
        assert server.asked("/api/show") == 4  # also of the one that embeds
        await provider.aclose()


async def test_only_the_model_that_ollama_cannot_show_is_left_out() -> None:
    answers = ollama() | {"/api/show": lambda body: None if "gpt" in body["model"] else SHOWN[body["model"]]}
    models, _ = await models_of("ollama", answers)
    assert [model.id for model in models] == ["ollama/gemma4:31b", "ollama/llama3.2"]


LONG = "m" * 300
LISTS: dict[str, tuple[str, str]] = {"vllm": ("/v1/models", "id"), "llamacpp": ("/v1/models", "id")}
LISTS |= {"lmstudio": ("/api/v0/models", "id"), "ollama": ("/api/tags", "name")}
BAD: dict[str, Any] = {
    "O a line break": "bad\nforged",
    "O an escape": "bad\x1b[2J",
    "O a direction": "bad\u202ename",
    "O an end of line": "bad\u2028name",
    "O nothing": "",
    "O a space": " ",
    "O too long": LONG,
    "O a number": 7,
    "O null": None,
    "O a list": ["bad"],
    "O no object": ...,
    "O twice": "good",
}


@pytest.mark.parametrize("host", LISTS)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_one_bad_model_is_left_out_and_named(
    host: str, bad: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, field = LISTS[host]
    entries = [{field: "good"}, "bad" if bad is ... else {field: bad}, {field: "fine"}]
    key = "models" if host == "ollama" else "data"
    details = {"model_info": {"x.context_length": 10**30}, "capabilities": ["completion"]}
    with LocalServer({path: {key: entries}, "/api/show": lambda body: details, "/api/ps": {"models": []}}) as server:
        provider = OpenAIProvider(name=host, base_url=server.url, environ={})
        for _ in range(2):
            await provider.discover()
        await provider.aclose()
    assert [model.provider_model_id for model in provider.models()] == ["fine", "good"]
    assert [model.context_window for model in provider.models()] == [None, None]
    (record,) = [record for record in caplog.records if record.name.endswith("discovery")]
    shown = (
        "'7'" if bad == 7 else "['bad']" if bad == ["bad"] else "'None'" if bad is None else "bad" if bad is ... else ""
    )
    assert (record.levelname, shown in record.message, record.message.isprintable()) == ("WARNING", True, True)
    assert len(record.message) < 200


async def test_vllm_reports_windows_even_of_adapters() -> None:
    models, _ = await models_of("vllm", VLLM)
    assert facts(models) == [
        ("vllm/Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-9B", 32_768, ("text", "tool"), None),
        ("vllm/sql", "sql", 32_768, ("text", "tool"), None),
    ]


async def test_llamacpp_reports_the_window_that_it_was_started_with() -> None:
    models, _ = await models_of("llamacpp", LLAMACPP)
    name = "/models/Qwen3.5-9B-Q4_K_M.gguf"
    assert facts(models) == [("llamacpp/Qwen3.5-9B-Q4_K_M", name, 8_192, ("text", "image", "tool"), None)]


async def test_llamacpp_without_props_or_a_tool_template_has_no_tools() -> None:
    models, _ = await models_of("llamacpp", {"/v1/models": LLAMACPP["/v1/models"]})
    assert (models[0].context_window, models[0].modalities) == (131_072, ("text",))
    deaf = LLAMACPP["/props"] | {"chat_template_caps": {"supports_tools": False}, "modalities": {}}
    models, _ = await models_of("llamacpp", LLAMACPP | {"/props": deaf})
    assert models[0].modalities == ("text",)


async def test_llamacpp_with_several_models_uses_the_list_only() -> None:
    data = [{"id": "org/one GGUF:Q4_K_M", "meta": None}, {"id": "two", "meta": {"n_ctx": 512, "n_ctx_train": 4096}}]
    models, server = await models_of("llamacpp", LLAMACPP | {"/v1/models": {"data": data}})
    assert [(model.id, model.context_window) for model in models] == [
        ("llamacpp/org/one-GGUF:Q4_K_M", None),
        ("llamacpp/two", 512),
    ]
    assert server.asked("/props") == 0


async def test_lmstudio_reports_the_loaded_window() -> None:
    models, _ = await models_of("lmstudio", LMSTUDIO)
    assert facts(models) == [
        ("lmstudio/meta-llama-3.1-8b-instruct", "meta-llama-3.1-8b-instruct", 4_096, ("text", "tool"), None),
        ("lmstudio/qwen2-vl-7b-instruct", "qwen2-vl-7b-instruct", 32_768, ("text", "image", "tool"), None),
    ]


async def test_key_and_headers_are_sent_with_discovery_requests() -> None:
    with LocalServer(VLLM) as server:
        provider = OpenAIProvider("a-key", name="vllm", base_url=server.url, environ={})
        await provider.discover()
        await provider.aclose()
        assert server.keys == {"Bearer a-key"}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "cannot list its models (status 404 at /api/tags): start it with 'ollama serve', or set OLLAMA_H"),
        ({"/api/tags": {"models": [{"size": 3}]}}, "it is another kind of server"),
        ({"/api/tags": {"data": []}}, "it is another kind of server"),
        ({"/api/tags": []}, "it is another kind of server"),
        ({"/api/tags": {"models": None}}, "has no models: get one with 'ollama pull NAME'"),
    ],
)
async def test_a_failed_discovery_names_the_address_and_a_hint(answers: dict[str, Any], said: str) -> None:
    with LocalServer(answers) as server:
        provider = OpenAIProvider(name="ollama", base_url=server.url, environ={})
        with pytest.raises(ProviderFault) as caught:
            await provider.discover()
        assert caught.value.message.startswith(f"ollama at {server.url} ")
        assert said in caught.value.message
        assert server.place not in caught.value.public
        await provider.aclose()


def test_given_models_are_not_discovered() -> None:
    given = OpenAIProvider(name="ollama", environ={}, models=[Model(id="ollama/mine", pricing_per_1m=FREE)])
    assert isinstance(given, DiscoveringProvider)
    assert [each.discovers for each in (given, OpenAIProvider("k"), OpenAIProvider(name="vllm", environ={}))] == [
        False,
        False,
        True,
    ]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    kinds = {"OLLAMA_HOST": ollama(), "VLLM_BASE_URL": VLLM}
    kinds |= {"LLAMACPP_BASE_URL": LLAMACPP, "LMSTUDIO_BASE_URL": LMSTUDIO}
    servers = {name: LocalServer(answers) for name, answers in kinds.items()}
    for name, server in servers.items():
        server.__enter__()
        monkeypatch.setenv(name, server.place)
    yield {name: server.place for name, server in servers.items()}
    for server in servers.values():
        server.__exit__(None, None, None)


@pytest.mark.usefixtures("everything")
async def test_all_servers_are_found_by_their_variables_and_called() -> None:
    async with Router() as router:
        assert len(found(router)) == 8
        for model in found(router):
            answer = await router.route("hi", models=[model], budget={"maxCostUsd": 0.000001})
            assert answer.output.startswith("I am ")
            assert answer.routing.cost_usd == 0


@pytest.mark.usefixtures("everything")
def test_a_model_in_the_catalogue_has_its_quality_but_not_its_speed() -> None:
    router = Router()
    by_id = {model.id: model for model in router.models()}
    small = by_id["groq/openai/gpt-oss-20b"]
    assert by_id["ollama/gpt-oss:20b"].quality == small.quality is not None
    assert by_id["ollama/gpt-oss:20b"].tokens_per_s is None
    hosted = by_id["deepinfra/Qwen/Qwen3.5-9B"].quality
    assert by_id["llamacpp/Qwen3.5-9B-Q4_K_M"].quality == by_id["vllm/Qwen/Qwen3.5-9B"].quality == hosted is not None
    assert by_id["ollama/llama3.2"].quality is None
    router.blocking.close()


async def test_a_slow_server_does_not_block_the_loop() -> None:
    asked, gate = threading.Event(), threading.Event()

    def tags(_: Any) -> Any:
        asked.set()
        gate.wait()
        return ollama("llama3.2:latest")["/api/tags"]

    with LocalServer(ollama() | {"/api/tags": tags}) as server:
        router = Router(providers=[OpenAIProvider(name="ollama", base_url=server.url, environ={})])
        assert found(router) == {}  # a loop that is blocked would not get to open the gate
        stream = router.stream("hi")
        await anyio.to_thread.run_sync(asked.wait)
        gate.set()
        assert "".join([text async for text in stream.text()]) == "I am llama3.2:latest"
        assert [*found(router)] == ["ollama/llama3.2"]
        await router.aclose()


def test_nothing_is_requested_at_import_or_by_the_constructor() -> None:
    with LocalServer(ollama()) as server:
        Router(providers=[OpenAIProvider(name="ollama", base_url=server.url, environ={})])
        assert server.requests == []


def test_an_unreachable_server_is_named_until_it_starts(free_port: int) -> None:
    provider = OpenAIProvider(name="ollama", environ={"OLLAMA_HOST": f"127.0.0.1:{free_port}"})
    router = Router(providers=[provider])
    with pytest.raises(NoProviders, match=rf"ollama at http://127\.0\.0\.1:{free_port}/v1 cannot list .*refused"):
        router.decide("hi")
    with LocalServer(ollama(), port=free_port):
        anyio.run(provider.discover)
        router = Router(providers=[provider])
        assert router.decide("hi").model.startswith("ollama/")
        router.blocking.close()


@pytest.fixture
def free_port() -> int:
    with LocalServer({}) as server:
        return server.port


class Ran(NamedTuple):
    status: int
    stdout: str
    stderr: str


Command = Callable[..., Ran]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs the command with only these variables."""

    def run(*arguments: str, **environ: str) -> Ran:
        for name in [*os.environ]:
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return Ran(main(arguments), *capfd.readouterr())

    return run


def test_the_command_routes_and_lists_by_a_variable_alone(command: Command) -> None:
    with LocalServer(ollama("gpt-oss:20b", "llama3.2:latest")) as server:
        routed = command("route", "hi", "-q", "--max-cost", "0.001", OLLAMA_HOST=server.place)
        assert (routed.status, routed.stdout) in [(0, "I am gpt-oss:20b\n"), (0, "I am llama3.2:latest\n")]
        listed = command("models", OLLAMA_HOST=server.place)
        assert listed.status == 0
        assert "ollama/gpt-oss:20b" in listed.stdout
        assert "openai/" not in listed.stdout


def test_a_server_behind_a_proxy_gets_the_hint_no_proxy(free_port: int, command: Command) -> None:
    with ProxyServer("user:password") as proxy:
        environ = {"OLLAMA_HOST": f"127.0.0.1:{free_port}", "HTTP_PROXY": proxy.url}
        routed = command("route", "hi", **environ)
    assert "it answered 407): set NO_PROXY=127.0.0.1 if it needs no proxy" in routed.stderr
    assert "ollama serve" not in routed.stderr
