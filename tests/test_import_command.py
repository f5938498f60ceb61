"""``routewright import litellm``: what a proxy's configuration says is written as ours, or listed."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from routewright import Catalogue, Router
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.cli import main
from routewright.cli.litellm import Configuration
from routewright.policies import read_policies

Capture = pytest.CaptureFixture[str]
COMPANY = """
model_list:
  - model_name: chat
    litellm_params: &europe
      model: azure/chat-eu
      api_base: os.environ/AZURE_EUROPE
      api_key: os.environ/AZURE_EUROPE_KEY
      api_version: "2024-06-01"
    model_info: {base_model: azure/gpt-4.1}
  - model_name: chat
    litellm_params:
      <<: *europe
      api_base: https://america.openai.azure.com/
    model_info: {base_model: azure/gpt-4.1}
  - model_name: smart
    litellm_params: {model: claude-sonnet-4-5-20250929, api_key: os.environ/CLAUDE_KEY, timeout: 90, tags: [careful]}
  - model_name: local
    litellm_params:
      model: openai/support-8b
      api_base: http://10.0.0.7:8000/v1
      input_cost_per_token: 1e-7
      output_cost_per_token: 0.0000002
    model_info: {max_input_tokens: 32000}
  - model_name: cloud
    litellm_params: {model: bedrock/amazon.nova-pro-v1:0, aws_region_name: eu-central-1}
  - model_name: gemini/*
    litellm_params: {model: gemini/*}
router_settings:
  routing_strategy: cost-based-routing
  num_retries: 2
  model_group_alias: {default: chat, hidden: {model: smart, hidden: true}}
  fallbacks: [{chat: [smart]}]
  context_window_fallbacks: [{smart: [cloud]}]
litellm_settings:
  request_timeout: 120
  default_fallbacks: [local]
  content_policy_fallbacks: [{chat: [local]}]
"""
VARIABLES = {
    "AZURE_EUROPE": "https://europe.openai.azure.com",
    "AZURE_EUROPE_KEY": "k",
    "CLAUDE_KEY": "k",
    "GEMINI_API_KEY": "k",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for vendor in ENDPOINTS.values():
        for variable in (*vendor.key_variables, vendor.url_variable or ""):
            monkeypatch.delenv(variable, raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def importing(text: str, *options: str) -> int:
    Path("config.yaml").write_text(text)
    return main(["import", "litellm", "config.yaml", *options])


def notes_of(content: Any) -> list[str]:
    return [str(note) for note in Configuration(content).notes]


def deployment(**params: Any) -> dict[str, Any]:
    return {"model_name": "chat", "litellm_params": {"model": "openai/gpt-4.1", **params}}


def gateway() -> Router:
    """The Router of the program that was written."""
    spec = spec_from_file_location("gateway", Path("gateway", "gateway.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    router: Router = module.router
    return router


def test_a_program_is_written_that_routes_as_the_proxy_did(capsys: Capture) -> None:
    assert importing(COMPANY) == 0
    out, err = capsys.readouterr()
    assert out == "models.json: custom/support-8b: is unknown to the catalogue; write its quality and prices there\n"
    assert err == "written to gateway: models.json, policies.json, gateway.py\n"
    router = gateway()
    decisions = {name: router.decide("Hi", policy_id=name) for name in ("chat", "smart", "cloud")}
    assert {name: (decision.model, *decision.chain) for name, decision in decisions.items()} == {
        "chat": ("azure/chat-eu", "azure-2/chat-eu", "anthropic/claude-sonnet-4-5-20250929", "custom/support-8b"),
        "smart": ("anthropic/claude-sonnet-4-5-20250929", "amazon-bedrock/amazon.nova-pro-v1:0", "custom/support-8b"),
        "cloud": ("amazon-bedrock/amazon.nova-pro-v1:0", "custom/support-8b"),
    }
    assert router.decide("Hi", policy_id="default").chain == router.decide("Hi", policy_id="chat").chain
    assert router.decide("Hi", policy_id="hidden").model == "anthropic/claude-sonnet-4-5-20250929"
    assert router.decide("Hi", models=["google/gemini-2.5-pro"]).model == "google/gemini-2.5-pro"
    assert (
        router.decide("Hi", models=["smart"], budget={"maxCostUsd": 0.1}).model
        == "anthropic/claude-sonnet-4-5-20250929"
    )
    router.blocking.close()


def test_the_files_hold_what_the_configuration_says() -> None:
    assert importing(COMPANY) == 0
    models = {model.id: model for model in Catalogue.load("gateway/models.json").models}
    assert models["azure/chat-eu"].pricing_per_1m == models["openai/gpt-4.1"].pricing_per_1m
    assert models["anthropic/claude-sonnet-4-5-20250929"].tags == ("careful",)
    assert models["custom/support-8b"].context_window == 32_000
    assert models["custom/support-8b"].pricing_per_1m.input_usd == 0.1  # type: ignore[union-attr]
    policies = {policy.name: policy for policy in read_policies("gateway/policies.json")}
    assert policies["chat"].strategy == "cost-optimized"
    assert policies["chat"].fallback.on_refusal == "fallback"  # type: ignore[union-attr]
    assert policies["smart"].fallback.on_refusal == "fail"  # type: ignore[union-attr]
    program = Path("gateway/gateway.py").read_text()
    assert (
        "OpenAIProvider(name='azure', api_key=os.environ['AZURE_EUROPE_KEY'], base_url=os.environ['AZURE_EUROPE']"
        in program
    )
    assert (
        "LiteLLMProvider(name='amazon-bedrock', vendor='bedrock', options={'aws_region_name': 'eu-central-1'}"
        in program
    )
    assert "timeout=90" in program
    assert "    timeout=120,\n    max_retries=2,\n" in program
    router = Router.sandbox(catalogue=Catalogue([*models.values()]), policies=[*policies.values()])
    assert router.blocking.route("Hi", policy_id="chat").routing.selected_model == "azure/chat-eu"


SECRETS = """
model_list:
  - model_name: chat
    litellm_params: {model: openai/gpt-4.1, api_key: sk-hunter-one, api_base: "https://me:hunter-two@host/v1?k=hunter-two"}
  - model_name: chat
    litellm_params: {model: openai/gpt-4.1, api_key: sk-hunter-three, extra_headers: {X-Key: hunter-four}}
  - model_name: chat
    litellm_params:
      model: bedrock/x
      aws_access_key_id: hunter-five
      aws_secret_access_key: hunter-six
      vertex_credentials: {k: hunter-seven}
general_settings: {master_key: sk-hunter-eight, database_url: "postgresql://u:hunter-nine@h/d"}
environment_variables: {OPENAI_API_KEY: hunter-ten}
"""


@pytest.mark.parametrize("options", [(), ("--out", "-"), ("--json",)])
@pytest.mark.parametrize("text", [SECRETS, SECRETS + "  unclosed: 'sk-hunter"])
def test_a_secret_is_never_copied_or_shown(text: str, options: tuple[str, ...], capsys: Capture) -> None:
    importing(text, *options)
    written = [path.read_text() for path in Path("gateway").glob("*")]
    assert "hunter" not in "".join((*capsys.readouterr(), *written))


def test_each_secret_gets_a_variable_of_its_own(capsys: Capture) -> None:
    assert importing(SECRETS, "--out", "-") == 0
    out = capsys.readouterr().out
    assert "api_key=os.environ['LITELLM_API_KEY_1'], base_url=os.environ['LITELLM_API_BASE_2']" in out
    assert (
        "model_list[1].litellm_params.api_key: holds a secret, which was not copied; put it into LITELLM_API_KEY_3"
        in out
    )
    assert not Path("gateway").exists()


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ({"model_list": [deployment(rpm=60)]}, "model_list[0].litellm_params.rpm: has no counterpart; limit accounts"),
        ({"model_list": [deployment(weight=2)]}, "model_list[0].litellm_params.weight: has no counterpart; list the"),
        (
            {"model_list": [deployment(temperature=0)]},
            "model_list[0].litellm_params.temperature: has no counterpart; wri",
        ),
        ({"model_list": [deployment(odd=1)]}, "model_list[0].litellm_params.odd: has no counterpart; it is left out"),
        ({"model_list": [deployment(timeout={"a": 1})]}, "model_list[0].litellm_params.timeout: has no counterpart"),
        ({"model_list": [deployment() | {"odd": 1}]}, "model_list[0].odd: has no counterpart; it is left out"),
        (
            {"model_list": [deployment() | {"model_info": {"odd": 1}}]},
            "model_list[0].model_info.odd: has no counterpart",
        ),
        ({"model_list": ["odd"]}, "model_list[0]: is no deployment; write model_name and litellm_params.model"),
        (
            {"model_list": [deployment(model="openai/text-embedding-3-small")]},
            "model_list[0]: 'openai/text-embedding-3",
        ),
        (
            {"model_list": [deployment() | {"model_info": {"mode": "image_generation"}}]},
            "model_list[0]: 'openai/gpt-4.1'",
        ),
        ({"model_list": [deployment(model="os.environ/MODEL")]}, "model_list[0]: 'os.environ/MODEL' is not the name"),
        ({"model_list": [deployment()], "guardrails": []}, "guardrails: has no counterpart; write 'guardrails' into"),
        ({"model_list": [deployment()], "router_settings": {"redis_host": "h"}}, "router_settings.redis_host: has no"),
        (
            {"model_list": [deployment()], "router_settings": {"routing_strategy": "least-busy"}},
            "router_settings.routing",
        ),
        (
            {"model_list": [deployment()], "router_settings": {"fallbacks": [{"chat": ["gone"]}]}},
            "router_settings.fallba",
        ),
        (
            {"model_list": [deployment()], "router_settings": {"model_group_alias": {"a": "b"}}},
            "router_settings.model_gr",
        ),
        (
            {"model_list": [deployment()], "litellm_settings": {"callbacks": ["x"]}},
            "litellm_settings.callbacks: has no",
        ),
        (
            {"model_list": [deployment()], "litellm_settings": ["odd"]},
            "litellm_settings: has no counterpart; it is left",
        ),
    ],
)
def test_what_has_no_counterpart_is_listed_by_its_path(content: Any, note: str) -> None:
    assert [line[: len(note)] for line in notes_of(content)] == [note]


def test_what_happens_anyway_is_not_listed() -> None:
    settings = {"litellm_settings": {"drop_params": True, "set_verbose": False}}
    assert notes_of({"model_list": [deployment(api_version="1") | {"model_info": {"id": "1"}}], **settings}) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "model_list: []",
            "config.yaml: has no 'model_list' with deployments; name the config.yaml of LiteLLM's proxy",
        ),
        ("- model_list", "config.yaml: has no 'model_list'"),
        ("", "config.yaml: has no 'model_list'"),
        ("model_list: gpt-4", "config.yaml: has no 'model_list'"),
        ("model_list:\n  - {model_name: x\n", "config.yaml:3: is not YAML; correct it"),
        ("model_list: *nobody", "config.yaml:1: is not YAML"),
        ("model_list: !!python/object:os.system []", "config.yaml:1: is not YAML"),
    ],
)
def test_a_file_of_another_shape_is_one_clear_error(text: str, error: str, capsys: Capture) -> None:
    assert importing(text) == 2
    assert error in capsys.readouterr().err
    assert not Path("gateway").exists()


def test_no_file_is_replaced(capsys: Capture) -> None:
    Path("gateway").mkdir()
    assert importing(COMPANY) == 2
    assert "--out: gateway exists; name a new folder" in capsys.readouterr().err
    assert [*Path("gateway").iterdir()] == []


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert importing(COMPANY) == 2
    assert "needs the extra 'cli'" in capsys.readouterr().err


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from(["chat", "gone", "os.environ/X", "", "*", "a@b"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["chat", "model", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)
PARAMS = (
    "model api_key api_base timeout max_retries tags rpm custom_llm_provider input_cost_per_token "
    "output_cost_per_token aws_region"
).split()
SETTINGS = (
    "fallbacks default_fallbacks content_policy_fallbacks model_group_alias routing_strategy timeout cache".split()
)


@given(
    st.lists(st.dictionaries(st.sampled_from(PARAMS), VALUES), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(SETTINGS), VALUES),
)
def test_no_shape_is_an_internal_error_and_all_files_are_data(deployments: list[Any], settings: dict[str, Any]) -> None:
    entries = [{"model_name": "chat", "litellm_params": {"model": "openai/x", **params}} for params in deployments]
    texts = Configuration({"model_list": entries, "router_settings": settings}).texts("config.yaml")
    assert json.loads(texts["policies.json"]).keys() == {"policies"}
    compile(texts["gateway.py"], "gateway.py", "exec")
    assert yaml.safe_load(texts["models.json"]) == json.loads(texts["models.json"])
