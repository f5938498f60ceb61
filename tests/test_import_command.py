"""``routewright import litellm``: what a proxy's configuration says is written as ours, or listed."""

from __future__ import annotations

import ast
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError

from routewright import Router
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.cli import main
from routewright.cli.litellm import Configuration

Capture = pytest.CaptureFixture[str]
COMPANY = """
model_list:
  - model_name: chat
    litellm_params: &europe
      model: azure/chat-eu
      api_base: os.environ/AZURE_EUROPE
      api_key: os.environ/AZURE_EUROPE_KEY
    model_info: {base_model: azure/gpt-4.1}
  - model_name: chat
    litellm_params:
      <<: *europe
      api_base: https://america.openai.azure.com/
    model_info: {base_model: azure/gpt-4.1}
  - model_name: smart
    litellm_params: {model: claude-sonnet-4-5-20250929, api_key: os.environ/CLAUDE_KEY, tags: [careful]}
  - model_name: local
    litellm_params:
      model: openai/support-8b
      api_base: http://10.0.0.7:8000/v1
      input_cost_per_token: 1e-7
      output_cost_per_token: 0.0000002
    model_info: {max_input_tokens: 32000}
  - model_name: cloud
    litellm_params: {model: mistral/mistral-small-2603, api_key: os.environ/MISTRAL_KEY}
  - model_name: gemini/*
    litellm_params: {model: gemini/*}
router_settings:
  model_group_alias: {default: chat}
  fallbacks: [{chat: [smart]}, {smart: [cloud]}]
litellm_settings:
  default_fallbacks: [local]
"""
VARIABLES = {
    "AZURE_EUROPE": "https://europe.openai.azure.com",
    "AZURE_EUROPE_KEY": "k",
    "CLAUDE_KEY": "k",
    "MISTRAL_KEY": "k",
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
        "smart": ("anthropic/claude-sonnet-4-5-20250929", "mistral/mistral-small-2603", "custom/support-8b"),
        "cloud": ("mistral/mistral-small-2603", "custom/support-8b"),
    }
    assert router.decide("Hi", policy_id="default").chain == router.decide("Hi", policy_id="chat").chain
    assert router.decide("Hi", models=["google/gemini-2.5-pro"]).model == "google/gemini-2.5-pro"
    assert (
        router.decide("Hi", models=["smart"], budget={"maxCostUsd": 0.1}).model
        == "anthropic/claude-sonnet-4-5-20250929"
    )
    router.blocking.close()


SECRETS = """
model_list:
  - model_name: chat
    litellm_params: {model: openai/gpt-4.1, api_key: 8675309, api_base: "https://me:hunter-two@host/v1?k=hunter-two"}
  - model_name: chat
    litellm_params: {model: openai/gpt-4.1, api_key: sk-hunter-three, extra_headers: {X-Key: hunter-four}}
  - model_name: chat
    litellm_params: {model: openai/x, api_base: "https://host/v1;k=hunter/sk-hunter", auth: hunter, api_key: [hunter]}
  - model_name: chat
    litellm_params: {model: bedrock/x, aws_access_key_id: hunter-five, vertex_credentials: {k: hunter-seven}}
general_settings: {master_key: sk-hunter-eight, database_url: "postgresql://u:hunter-nine@h/d"}
environment_variables: {OPENAI_API_KEY: hunter-ten}
"""


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("text", [SECRETS, SECRETS + "  unclosed: 'sk-hunter", SECRETS + "  x: !!float hunter"])
def test_a_secret_is_never_copied_or_shown(text: str, options: tuple[str, ...], capsys: Capture) -> None:
    importing(text, *options)
    shown = "".join((*capsys.readouterr(), *(path.read_text() for path in Path("gateway").glob("*"))))
    assert "hunter" not in shown
    assert "8675309" not in shown


def test_a_provider_s_secrets_get_its_variables(capsys: Capture) -> None:
    assert importing(SECRETS) == 0
    program = Path("gateway/gateway.py").read_text()
    assert "api_key=os.environ['GATEWAY_CUSTOM_API_KEY'], base_url=os.environ['GATEWAY_CUSTOM_BASE_URL']" in program
    note = "model_list[1].api_key: may hold a secret, so it is not copied; put it into GATEWAY_OPENAI_API_KEY\n"
    assert note in capsys.readouterr().out


LEFT_OUT = "has no counterpart; write it as vendor/model, or add a LiteLLMProvider as docs/how-to/providers.md says"


@pytest.mark.parametrize(
    ("params", "note"),
    [
        ({"rpm": 60}, ".rpm: has no counterpart; nothing needs to be done: a model that answers 429 is set aside"),
        ({"temperature": 0}, ".temperature: has no counterpart; write it into 'params'"),
        ({"odd": 1}, ".odd: has no counterpart; it is left out"),
        ({"model": "openai/text-embedding-3-small"}, ": 'openai/text-embedding-3-small' is not a chat model"),
        ({"model": "bedrock/amazon.nova-pro-v1:0"}, f": 'bedrock/amazon.nova-pro-v1:0' {LEFT_OUT}"),
        ({"custom_llm_provider": "vertex_ai"}, f": 'openai/gpt-4.1' {LEFT_OUT}"),
        ({"litellm_credential_name": "one"}, ": 'openai/gpt-4.1' has no address; write the model's name"),
        ({"model": "openai/*", "api_base": "http://host/v1"}, ": 'openai/*' has no address"),
    ],
)
def test_what_a_deployment_loses_is_listed(params: dict[str, Any], note: str) -> None:
    note = f"model_list[0]{note}"
    assert [line[: len(note)] for line in notes_of({"model_list": [deployment(**params)]})] == [note]


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"guardrails": []}, "guardrails: has no counterpart; write 'guardrails' into"),
        (
            {"router_settings": {"fallbacks": [{"chat": ["gone"]}]}},
            "router_settings: 'gone' is no group of chat models",
        ),
        ({"router_settings": {"model_group_alias": {"a": {"model": "chat"}}}}, "router_settings: "),
        ({"litellm_settings": {"callbacks": ["x"]}}, "litellm_settings.callbacks: has no counterpart; export calls"),
    ],
)
def test_settings_without_a_counterpart_are_listed(settings: dict[str, Any], note: str) -> None:
    assert [line[: len(note)] for line in notes_of({"model_list": [deployment()], **settings})] == [note]


def test_what_happens_anyway_is_not_listed() -> None:
    settings = {"litellm_settings": {"drop_params": True, "set_verbose": False}}
    assert notes_of({"model_list": [deployment() | {"model_info": {"id": "1"}}], **settings}) == []


@pytest.mark.parametrize(
    "broken", [{}, "x", {"model_name": "x", "litellm_params": "y"}, deployment(model="a b") | {"x": 1}]
)
def test_an_entry_that_is_no_deployment_is_listed_and_fails_the_command(broken: Any, capsys: Capture) -> None:
    assert importing(json.dumps({"model_list": [deployment(), broken]})) == 1
    assert "model_list[1]: is no deployment: " in capsys.readouterr().out
    assert "models=[Model(id='openai/gpt-4.1')]" in Path("gateway/gateway.py").read_text()


@pytest.mark.parametrize(
    ("params", "call"),
    [
        ({"model": "gemini-2.5-pro"}, "GeminiProvider(name='google'"),
        ({"model": "gpt-4.1-2025-04-14"}, "OpenAIProvider(name='openai'"),
        ({"api_base": "https://api.openai.com.evil.example/v1"}, "OpenAIProvider(name='custom'"),
        ({"api_base": "https://evil.example/api.openai.com/v1"}, "OpenAIProvider(name='custom'"),
    ],
)
def test_a_model_goes_to_the_vendor_that_it_went_to(params: dict[str, str], call: str) -> None:
    texts = Configuration({"model_list": [deployment(**params)]}).texts("config.yaml")
    assert call in texts["gateway.py"]


@pytest.mark.parametrize("group", ["auto", "policy:x"])
def test_a_group_named_like_ours_is_noted(group: str) -> None:
    note = f"model_list[0]: '{group}' has a meaning here; send 'policy:{group}' for the group"
    configuration = Configuration({"model_list": [deployment() | {"model_name": group}]})
    assert [str(note) for note in configuration.notes] == [note]
    assert json.loads(configuration.texts("config.yaml")["models.json"])["aliases"] == {}


def test_another_price_is_that_of_another_provider() -> None:
    dear = {"input_cost_per_token": 1e-6, "output_cost_per_token": "2e-6"}
    entries = [deployment(), deployment(**dear), deployment(**dear)]
    models = json.loads(Configuration({"model_list": entries}).texts("config.yaml")["models.json"])["models"]
    assert [(model["id"], model["prices"]) for model in models] == [
        ("openai-2/gpt-4.1", {"input_usd": 1.0, "output_usd": 2.0})
    ]


def test_names_and_values_are_data_in_the_program() -> None:
    odd = """x'\n\"\"\"{y}\rimport os"""
    entry = deployment(api_key=f"os.environ/{odd}", model="openai/'{x}")
    program = Configuration({"model_list": [entry]}).texts(odd)["gateway.py"]
    assert "import os\nfrom pathlib" in program
    assert [type(node) for node in ast.parse(program).body[:2]] == [ast.Import, ast.ImportFrom]
    assert 'Model(id="openai/\'{x}")' in program


def test_the_instructions_of_the_program_work(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert importing(COMPANY) == 0
    monkeypatch.chdir("gateway")
    commands = [line.removeprefix("#   routewright ") for line in Path("gateway.py").read_text().splitlines()]
    for command in [line for line in commands if line.startswith(("accounts", "keys"))]:
        assert main(command.split()) == 0
    assert "sk_live_" in capsys.readouterr().out


BOMB = "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9)) + "model_list: *a8"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "model_list: []",
            "is not a configuration of LiteLLM's proxy: Expected `array` of length >= 1 - at `$.model_list`",
        ),
        ("", "Expected `object`, got `null`"),
        ("model_list: [&x {a: *x}]", "Circular reference detected"),
        (BOMB, "it has more than 1048576 characters with its aliases expanded"),
        (
            "model_list: [&x {model_name: m, litellm_params: {model: openai/x, max_input_tokens: -5}}]",
            "models.json: models[0].context_window: must be a whole number from 1",
        ),
        ("model_list:\n  - {model_name: x\n", "config.yaml:3: is not YAML; correct it"),
        ("model_list: !!python/object:os.system []", "config.yaml:1: is not YAML"),
    ],
)
def test_a_file_of_another_shape_is_one_clear_error(text: str, error: str, capsys: Capture) -> None:
    assert importing(text) == 2
    assert error in capsys.readouterr().err
    assert not Path("gateway").exists()
    assert importing(COMPANY) == 0


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
    "model api_key api_base timeout tags rpm custom_llm_provider input_cost_per_token output_cost_per_token".split()
)
SETTINGS = (
    "fallbacks default_fallbacks content_policy_fallbacks model_group_alias routing_strategy timeout cache".split()
)


@given(
    st.lists(st.dictionaries(st.sampled_from(PARAMS), VALUES), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(SETTINGS), VALUES),
)
def test_no_shape_is_an_internal_error_and_all_files_are_data(deployments: list[Any], settings: dict[str, Any]) -> None:
    entries = [{"model_name": "chat", "litellm_params": {"model": "openai/x", **params}} for params in deployments]
    try:
        texts = Configuration({"model_list": entries, "router_settings": settings}).texts("config.yaml")
    except ValidationError:
        return
    assert json.loads(texts["policies.json"]).keys() == {"$schema", "policies"}
    compile(texts["gateway.py"], "gateway.py", "exec")
    assert yaml.safe_load(texts["models.json"]) == json.loads(texts["models.json"])
