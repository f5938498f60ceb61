"""The command ``catalogue``: it shows what would change, writes what can be read again, and never loses a word."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from routewright import Catalogue, Pricing
from routewright.backends.clock import SystemClock
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.cli import main
from tests.tables import table

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    monkeypatch.setattr(SystemClock, "time", lambda self: noon)
    monkeypatch.chdir(tmp_path)


def row(**given: Any) -> dict[str, Any]:
    return {"litellm_provider": "openai", "mode": "chat", **given}


def save(**rows: Any) -> str:
    """A price list: GPT-5.1 for 1.10 and 10 dollars, and what else is said."""
    known = {"gpt-5.1": row(input_cost_per_token=1.1e-06, output_cost_per_token=1e-05)}
    Path("prices.json").write_text(json.dumps({**known, **rows}), "utf-8")
    return "prices.json"


def run(*argv: str) -> int:
    return main(["catalogue", *argv])


def load(path: str = "models.json") -> Catalogue:
    return Catalogue.load(path)


def pricing(catalogue: Catalogue, model_id: str = "openai/gpt-5.1") -> Pricing:
    (model,) = (model for model in catalogue.models if model.id == model_id)
    assert model.pricing_per_1m is not None
    return model.pricing_per_1m


# import


def test_an_import_names_the_changed_models_and_writes_them(capsys: Capture) -> None:
    assert run("import", save()) == 0
    out, err = capsys.readouterr()
    assert out == "openai/gpt-5.1  changed  input $1.25 -> $1.1\n"
    assert "written to models.json: use it as --catalogue models.json" in err
    before = pricing(Catalogue())
    assert pricing(load()) == Pricing(1.1, 10.0, before.cached_input_usd, None, 0.625, 5.0)


def test_a_list_that_changes_nothing_renews_the_date(capsys: Capture) -> None:
    Path("models.json").write_text(
        '{"as_of": "2026-10-01", "prices": {"openai/gpt-5.1": {"input_usd": 1.1, "output_usd": 10}}}'
    )
    assert run("import", save()) == 0
    assert capsys.readouterr().out == ""
    assert (load().as_of, pricing(load()).input_usd) == ("2026-11-20", 1.1)
    assert run("import", save()) == 0
    assert "nothing is written" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(capsys: Capture) -> None:
    assert run("import", save(), "--dry-run") == 0
    out, err = capsys.readouterr()
    assert "openai/gpt-5.1  changed" in out
    assert "nothing is written" in err
    assert not Path("models.json").exists()


@pytest.mark.parametrize(("cost", "said"), [
    (6.25e-06, "input $1.25 -> $6.25 x5"), (1.25e-05, "input $1.25 -> $12.5 x10"), (6e-06, "input $1.25 -> $6"),
    (1.25e-07, "input $1.25 -> $0.125 x0.1"),
])  # fmt: skip
def test_prices_that_change_by_a_factor_of_five_are_marked(cost: float, said: str, capsys: Capture) -> None:
    prices = row(input_cost_per_token=cost, output_cost_per_token=1e-05)
    assert run("import", save(**{"gpt-5.1": prices}), "--dry-run") == 0
    assert capsys.readouterr().out == f"openai/gpt-5.1  changed  {said}\n"


def test_new_models_are_added_where_asked(capsys: Capture) -> None:
    new = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06, max_input_tokens=9000, supports_vision=True,
              deprecation_date="2027-05-01")  # fmt: skip
    assert run("import", save(**{"gpt-9": new, "other": new}), "--add", "openai/gpt-*") == 0
    said = "openai/gpt-9  new  input none -> $1, output none -> $2, ends 2027-05-01\n"
    assert said in capsys.readouterr().out
    (model,) = load().models[len(Catalogue().models) :]
    assert (model.id, model.pricing_per_1m, model.context_window) == ("openai/gpt-9", Pricing(1.0, 2.0), 9000)
    assert (model.modalities, model.deprecated_at) == (("text", "image"), "2027-05-01")


def test_a_glob_that_matches_no_model_is_refused(capsys: Capture) -> None:
    new = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06)
    assert run("import", save(**{"gpt-9": new}), "--add", "opnai/gpt-9") == 2
    err = capsys.readouterr().err
    assert "--add: 'opnai/gpt-9' matches no model of the list" in err
    assert "did you mean 'openai/gpt-9'?" in err
    assert not Path("models.json").exists()


HAND_MADE = """\
# ours
disabled = ["openai/o3-pro"]

[[models]]
id = "openai/gpt-5.1"
quality = 0.45
prices = { input_usd = 2.0, output_usd = 10.0 }

[aliases]
fast = "openai/gpt-4.1"
"""


def test_an_own_catalogue_is_carried_over_to_a_new_file() -> None:
    text = "as_of = 2026-10-01\n" + HAND_MADE
    Path("own.toml").write_text(text)
    assert run("import", save(), "--catalogue", "own.toml", "--output", "new.json", "--provider", "openai") == 0
    assert (load("new.json").aliases, load("new.json").as_of) == ({"fast": "openai/gpt-4.1"}, "2026-10-01")
    assert Path("own.toml").read_text() == text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--output", "models.toml"], "--output: 'models.toml' is not a .json file; give --output"),
        (["--provider", "opnai"], "--provider: 'opnai' is not in the list; did you mean 'openai'?"),
        (["--output", "no/such/models.json"], "--output: no/such/models.json cannot be written: No such file"),
        (
            ["--catalogue", "own.toml", "--output", "there.json"],
            "there.json exists, and is not the file of --catalogue",
        ),
        (["--output", "wrong.json"], "wrong.json: modells: unknown key; did you mean 'models'?"),
    ],
)
def test_an_impossible_import_is_refused(argv: list[str], said: str, capsys: Capture) -> None:
    Path("own.toml").write_text(HAND_MADE)
    Path("there.json").write_text("{}")
    Path("wrong.json").write_text('{"modells": []}')
    assert run("import", save(), *argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1, "a": 2}'])
def test_a_file_that_is_no_price_list_is_refused_by_name(content: str, capsys: Capture) -> None:
    Path("bad.json").write_text(content)
    assert run("import", "bad.json") == 2
    assert "routewright: bad.json" in capsys.readouterr().err
    assert not Path("models.json").exists()


def test_import_as_json_is_complete(capsys: Capture) -> None:
    assert run("import", save(x=row(input_cost_per_token="")), "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["changed"], body["new"], body["written"]) == (["openai/gpt-5.1"], [], "models.json")
    step = {"model": "openai/gpt-5.1", "price": "input", "before_usd": 1.25, "after_usd": 1.1, "mark": ""}
    assert body["prices"] == [step]
    assert [problem["path"] for problem in body["problems"]] == ["x.input_cost_per_token"]


def test_an_overlay_that_does_not_load_is_not_written(capsys: Capture) -> None:
    Path("models.json").write_text('{"aliases": {"openai/gpt-9": "openai/gpt-4.1"}}')
    new = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06)
    assert run("import", save(**{"gpt-9": new}), "--add", "*") == 2
    assert "models.json: aliases['openai/gpt-9']: is the id of a model" in capsys.readouterr().err
    assert Path("models.json").read_text().startswith('{"aliases"')
    assert not [path for path in Path().iterdir() if path.name.endswith(".new")]


@pytest.mark.skipif(os.name == "nt", reason="files have other rights there")
def test_a_file_that_is_replaced_keeps_its_rights_and_its_link() -> None:
    Path("behind").mkdir()
    Path("models.json").symlink_to("behind/own.json")
    for mode in (0o600, 0o640):
        Path("behind/own.json").write_text("{}")
        Path("behind/own.json").chmod(mode)
        assert run("import", save()) == 0
        assert Path("models.json").is_symlink()
        assert stat.S_IMODE(Path("behind/own.json").stat().st_mode) == mode
    assert os.listdir("behind") == ["own.json"]


def test_a_write_that_fails_leaves_no_draft_and_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    Path("models.json").write_text("{}")
    monkeypatch.setattr(os, "replace", full)
    assert run("import", save()) == 2
    assert sorted(os.listdir()) == ["models.json", "prices.json"]
    assert Path("models.json").read_text() == "{}"


# the file's new keys


# models NAME


@pytest.fixture
def _without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ENDPOINTS.values():
        for name in (*endpoint.key_variables, endpoint.url_variable or "_"):
            monkeypatch.delenv(name, raising=False)


def shown(capsys: Capture, *argv: str) -> str:
    assert main(["models", *argv]) == 0
    return capsys.readouterr().out


def card_of(capsys: Capture, *argv: str) -> Any:
    return json.loads(shown(capsys, *argv, "--json"))


@pytest.mark.usefixtures("_without_keys")
@table(("name", "model"), [
    ("openai/gpt-5.4", "openai/gpt-5.4"), ("gpt-5.4", "openai/gpt-5.4"), ("GPT-5.4", "openai/gpt-5.4"),
    ("Claude Sonnet 4.6", "anthropic/claude-sonnet-4-6"), ("claude-opus-4-5-20251101", "anthropic/claude-opus-4-5"),
    ("kimi-k3", "moonshotai/kimi-k3"),
])  # fmt: skip
def test_a_model_is_shown_by_id_and_by_a_name_without_its_vendor(name: str, model: str, capsys: Capture) -> None:
    assert card_of(capsys, name)["id"] == model


@pytest.mark.usefixtures("_without_keys")
def test_a_model_is_shown_whole(tmp_path: Path, capsys: Capture) -> None:
    overlay: dict[str, Any] = {
        "aliases": {"fast": "acme/one"},
        "models": [{
            "id": "acme/one", "context_window": 9000, "modalities": ["text", "tool"], "unsupported": ["seed", "flex"],
            "prices": {"input_usd": 1, "output_usd": 2}, "deprecated_at": "2999-06-01",
            "price_changes": [
                {"starts": "2026-01-01", "input_usd": 7, "output_usd": 7},
                {"starts": "2999-01-01", "input_usd": 9, "output_usd": 9},
            ],
        }],
    }  # fmt: skip
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(overlay), "utf-8")
    out = shown(capsys, "fast", "--catalogue", str(file))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "id acme/one", "aliases fast", "context window 9,000", "modalities text, tool", "ends 2999-06-01",
        f"price sources {file}", "2999-01-01 calls $9 $9", "image not accepted by the model",
        "flex not supported by acme for this model, so left out",
    ):  # fmt: skip
        assert line in lines
    card = card_of(capsys, "one", "--catalogue", str(file))
    assert [(row["from"], row["for"], row["input_usd"]) for row in card["prices"]] == [
        ("now", "calls", 7.0), ("2999-01-01", "calls", 9.0),
    ]  # fmt: skip
    assert card["aliases"] == ["fast"]


@pytest.mark.usefixtures("_without_keys")
def test_every_kind_of_price_has_a_row(tmp_path: Path, capsys: Capture) -> None:
    prices = {
        "input_usd": 1, "output_usd": 2, "reasoning_usd": 3, "batch_input_usd": 0.5, "batch_output_usd": 1,
        "tiers": [{"above_tokens": 200_000, "input_usd": 2, "output_usd": 3}],
        "service_tiers": [{"tier": "priority", "input_usd": 4, "output_usd": 8}],
    }  # fmt: skip
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"models": [{"id": "acme/one", "prices": prices}]}), "utf-8")
    rows = {row["for"]: row for row in card_of(capsys, "one", "--catalogue", str(file))["prices"]}
    assert {kind: row["output_usd"] for kind, row in rows.items()} == {
        "calls": 2.0, "batch": 1.0, "input above 200,000": 3.0, "priority": 8.0,
    }  # fmt: skip
    assert rows["calls"]["reasoning_usd"] == 3.0


@pytest.mark.usefixtures("_without_keys")
@table(("model", "protocol", "variable"), [
    ("openai/gpt-5.4", "Responses with tools, else chat completions", "OPENAI_API_KEY"),
    ("anthropic/claude-opus-5", "Messages", "ANTHROPIC_API_KEY"),
    ("google/gemini-3.8-flash", "generateContent", "GOOGLE_API_KEY"),
    ("amazon-bedrock/amazon.nova-pro-v1:0", "", "a provider of your own, or LiteLLMProvider"),
])  # fmt: skip
def test_the_protocol_and_the_variable_to_set_are_shown(
    model: str, protocol: str, variable: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = card_of(capsys, model)
    assert (card["protocol"], card["to_set"]) == (protocol, variable)
    if protocol:
        monkeypatch.setenv(variable, "sk-canary-0123456789")
        out = shown(capsys, model)
        assert "canary" not in out
        assert "to set" not in out


@pytest.mark.usefixtures("_without_keys")
@table(("argv", "said"), [
    (["gpt-5.4x"], "NAME: unknown model 'gpt-5.4x'; did you mean 'gpt-5.4'?"),
    (["GPT-OSS-120B"], "'GPT-OSS-120B' is the name of several models; give one of 'cerebras/gpt-oss-120b', 'groq"),
    (["zzzzzz"], "NAME: unknown model 'zzzzzz'; 'routewright models --all' lists the known ids"),
])  # fmt: skip
def test_a_name_that_is_no_model_is_refused(argv: list[str], said: str, capsys: Capture) -> None:
    assert main(["models", *argv]) == 2
    assert said in capsys.readouterr().err
