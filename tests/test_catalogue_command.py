"""The command ``catalogue``: it shows what would change, writes what can be read again, and never loses a word."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Catalogue, Pricing
from routewright.backends.clock import SystemClock
from routewright.cli import main
from routewright.contrib.proposals import overlay_text
from routewright.wire import PriceChange

Capture = pytest.CaptureFixture[str]

toml_values = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.dates() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


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


def load(path: str = "models.toml") -> Catalogue:
    return Catalogue.load(path)


def pricing(catalogue: Catalogue, model_id: str = "openai/gpt-5.1") -> Pricing:
    (model,) = (model for model in catalogue.models if model.id == model_id)
    assert model.pricing_per_1m is not None
    return model.pricing_per_1m


# import


def test_an_import_shows_each_change_and_writes_it(capsys: Capture) -> None:
    assert run("import", save()) == 0
    out, err = capsys.readouterr()
    assert re.search(r"openai/gpt-5\.1  input +1\.25 -> 1\.10  \$/1M\n", out)
    assert re.search(r"\n +cached input +stays\n", out)
    assert "models: 1 changed, 0 new, 0 as they are, 0 contradictory, 0 unread\n" in out
    assert "written to models.toml" in err
    before = pricing(Catalogue())
    assert pricing(load()) == Pricing(1.1, 10.0, before.cached_input_usd, None, 0.625, 5.0)


def test_a_catalogue_file_is_as_old_as_its_facts() -> None:
    run("import", save())
    assert load().as_of == "2026-11-20"
    run("import", save(), "--output", "old.toml", "--as-of", "2026-10-01")
    assert load("old.toml").as_of == "2026-10-01"


def test_a_partial_import_keeps_the_date_of_the_catalogue() -> None:
    run("import", save(), "--provider", "openai")
    assert "as_of" not in tomllib.loads(Path("models.toml").read_text())


def test_a_list_that_changes_nothing_renews_the_date(capsys: Capture) -> None:
    run("import", save(), "--as-of", "2026-10-01")
    assert run("import", save()) == 0
    assert "1 as they are" in capsys.readouterr().out
    assert load().as_of == "2026-11-20"
    assert run("import", save()) == 0
    assert "nothing is written" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(capsys: Capture) -> None:
    assert run("import", save(), "--dry-run") == 0
    out, err = capsys.readouterr()
    assert "1.25 -> 1.10" in out
    assert "nothing is written" in err
    assert not Path("models.toml").exists()


def test_what_is_left_out_is_counted(capsys: Capture) -> None:
    run("import", save(e=row(mode="embedding"), x=row(input_cost_per_token=1, output_cost_per_token=1)))
    out = capsys.readouterr().out
    assert "x.input_cost_per_token: must be a number from 0 to 10000 per million tokens, got 1000000" in out
    assert "not asked for: 0 other models; no chat models: 1 embedding\n" in out


def test_a_price_change_by_a_power_of_ten_is_marked(capsys: Capture) -> None:
    Path("prices.json").write_text(
        json.dumps({"gpt-5.1": row(input_cost_per_token=1.25e-05, output_cost_per_token=1e-05)})
    )
    run("import", "prices.json", "--dry-run")
    assert "1.25 -> 12.50  $/1M  10 times\n" in capsys.readouterr().out


def test_contradictions_suggest_a_provider(capsys: Capture) -> None:
    prices = {"input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06}
    rows = {
        "gemini/gemini-2.5-pro": row(**prices) | {"litellm_provider": "gemini"},
        "gemini-2.5-pro": row(**prices, cache_read_input_token_cost=1e-07) | {"litellm_provider": "vertex_ai"},
    }
    run("import", save(**rows), "--dry-run")
    said = "differ in cached input, so none is taken; choose with --provider gemini or vertex_ai"
    assert said in capsys.readouterr().out


def test_dated_prices_are_written_as_changes() -> None:
    assert run("import", save(), "--starts", "2027-01-01") == 0
    (model,) = (model for model in load().models if model.id == "openai/gpt-5.1")
    assert model.pricing_per_1m == pricing(Catalogue())
    assert model.price_changes is not None
    assert [(each.starts, each.pricing_per_1m.input_usd) for each in model.price_changes] == [("2027-01-01", 1.1)]


def test_new_models_are_added_where_asked(capsys: Capture) -> None:
    new = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06, max_input_tokens=9000, supports_vision=True,
              deprecation_date="2027-05-01")  # fmt: skip
    assert run("import", save(**{"gpt-9": new, "other": new}), "--add", "openai/gpt-*") == 0
    assert "openai/gpt-9  new\n" in capsys.readouterr().out
    (model,) = load().models[len(Catalogue().models) :]
    assert (model.id, model.pricing_per_1m, model.context_window) == ("openai/gpt-9", Pricing(1.0, 2.0), 9000)
    assert (model.modalities, model.deprecated_at) == (("text", "image"), "2027-05-01")


def test_a_glob_that_matches_no_model_is_refused(capsys: Capture) -> None:
    new = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06)
    assert run("import", save(**{"gpt-9": new}), "--add", "opnai/gpt-9") == 2
    err = capsys.readouterr().err
    assert "--add: 'opnai/gpt-9' picks no model of the list" in err
    assert "did you mean 'openai/gpt-9'?" in err
    assert not Path("models.toml").exists()


def test_a_second_import_keeps_the_rest_of_the_file() -> None:
    mine = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06)
    run("import", save(**{"gpt-9": mine}), "--add", "*")
    run("import", save(**{"gpt-5.2": row(input_cost_per_token=1e-06, output_cost_per_token=1.4e-05)}))
    assert pricing(load()).input_usd == 1.1
    assert pricing(load(), "openai/gpt-5.2").input_usd == 1.0
    assert pricing(load(), "openai/gpt-9") == Pricing(1.0, 2.0)


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


def test_a_file_written_by_hand_is_overwritten_only_with_force(capsys: Capture) -> None:
    Path("models.toml").write_text(HAND_MADE)
    assert run("import", save()) == 2
    assert "models.toml: was written by hand: its comments and layout would be lost" in capsys.readouterr().err
    assert Path("models.toml").read_text() == HAND_MADE
    assert run("import", save(), "--force") == 0
    catalogue = load()
    assert (pricing(catalogue).input_usd, catalogue.aliases) == (1.1, {"fast": "openai/gpt-4.1"})
    models = {model.id: model for model in catalogue.models}
    assert (models["openai/gpt-5.1"].quality, models["openai/o3-pro"].disabled) == (0.45, True)


def test_a_json_catalogue_is_carried_over_as_toml() -> None:
    Path("own.json").write_text('{"models": [{"id": "v/a", "like": null, "prices": null}], "aliases": {"x": "v/a"}}')
    assert run("import", save(), "--catalogue", "own.json", "--output", "new.toml") == 0
    assert load("new.toml").aliases == {"x": "v/a"}


def test_an_own_catalogue_is_carried_over_to_a_new_file() -> None:
    Path("own.toml").write_text(HAND_MADE)
    assert run("import", save(), "--catalogue", "own.toml", "--output", "new.toml") == 0
    assert load("new.toml").aliases == {"fast": "openai/gpt-4.1"}
    assert Path("own.toml").read_text() == HAND_MADE


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--output", "models.json"], "--output: 'models.json' is no TOML file, which is written; give --output"),
        (["--output", "no/such/models.toml"], "--output: no/such/models.toml cannot be written: No such file"),
        (["--provider", "opnai"], "--provider: 'opnai' is not in the list; did you mean 'openai'?"),
        (["--starts", "soon"], "--starts: must be a date, got 'soon'; write YYYY-MM-DD"),
        (["--as-of", "2026-13-01"], "--as-of: must be a date"),
        (["--catalogue", "none.toml"], "none.toml: cannot be read"),
        (
            ["--catalogue", "own.toml", "--output", "there.toml"],
            "there.toml exists, and is not the file of --catalogue",
        ),
        (["--output", "wrong.toml"], "wrong.toml: modells: unknown key; did you mean 'models'?"),
    ],
)
def test_an_impossible_import_is_refused(argv: list[str], said: str, capsys: Capture) -> None:
    Path("own.toml").write_text(HAND_MADE)
    Path("there.toml").write_text("")
    Path("wrong.toml").write_text("modells = []")
    assert run("import", save(), *argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"a": {}}', '{"a": 1, "a": 2}', "\x00"])
def test_a_file_that_is_no_price_list_is_refused_by_name(content: str, capsys: Capture) -> None:
    Path("bad.json").write_text(content)
    assert run("import", "bad.json") == 2
    assert "routewright: bad.json" in capsys.readouterr().err
    assert not Path("models.toml").exists()


def test_import_as_json_is_complete(capsys: Capture) -> None:
    assert run("import", save(e=row(mode="embedding")), "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["changes"] == [{"model": "openai/gpt-5.1", "what": "input", "before": 1.25, "after": 1.1}]
    assert (body["shape"], body["written"], body["left_out"]) == ("litellm", "models.toml", {"embedding": 1})
    assert body["counts"] == {"changed": 1, "added": 0, "same": 0, "unknown": 0}


def test_an_overlay_that_does_not_load_is_not_written(capsys: Capture) -> None:
    Path("models.toml").write_text('[aliases]\n"openai/gpt-9" = "openai/gpt-4.1"\n')
    new = row(input_cost_per_token=1e-06, output_cost_per_token=2e-06)
    assert run("import", save(**{"gpt-9": new}), "--add", "*") == 2
    assert "aliases['openai/gpt-9']: is the id of a model" in capsys.readouterr().err
    assert Path("models.toml").read_text().startswith("[aliases]")
    assert not [path for path in Path().iterdir() if path.name.endswith(".new")]


@given(
    st.lists(st.dictionaries(st.text(max_size=8), toml_values, min_size=1), max_size=2),
    st.dictionaries(st.text(max_size=8), st.dictionaries(st.text(max_size=8), toml_values), max_size=2),
    st.dictionaries(st.text(max_size=8).filter(lambda key: key not in ("models", "prices", "aliases")), toml_values),
)
def test_an_overlay_reads_back_the_same(
    models: list[dict[str, Any]], prices: dict[str, dict[str, Any]], rest: dict[str, Any]
) -> None:
    content = {**rest, **({"models": models} if models else {}), **({"prices": prices} if prices else {})}
    assert tomllib.loads(overlay_text(content)) == content


# deprecations


def test_deprecations_list_the_soonest_first(capsys: Capture) -> None:
    assert run("deprecations", "--within", "30") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ends", "days", "left", "model", "nearest", "replacement"]
    assert "2026-11-30         10  anthropic/claude-sonnet-4-5          anthropic/claude-sonnet-4-6" in lines
    assert lines[1].startswith("2026-07-24      ended  deepseek/deepseek-chat")
    assert not any(line.startswith("2027") for line in lines)


def test_deprecations_say_what_policies_lose(capsys: Capture) -> None:
    Path("policies.toml").write_text("[[policies]]\nname = 'old'\nmodels = ['openai/o3']\n")
    assert run("deprecations", "--policies", "policies.toml") == 0
    assert "old     openai/o3     2026-12-11  none  2026-12-11" in capsys.readouterr().out
    assert run("deprecations", "--policies", "policies.toml", "--within", "0") == 0
    assert "every policy keeps its first choice" in capsys.readouterr().err


def test_deprecations_as_json(capsys: Capture) -> None:
    Path("policies.toml").write_text("[[policies]]\nname = 'old'\nmodels = ['openai/o3']\n")
    run("deprecations", "--policies", "policies.toml", "--json")
    body = json.loads(capsys.readouterr().out)
    assert body["policies"][0]["empty_from"] == "2026-12-11"
    assert {"model": "openai/o3", "ends": "2026-12-11", "days_left": 21, "replacement": "openai/gpt-5.1"} in body[
        "models"
    ]


def test_a_negative_number_of_days_is_refused(capsys: Capture) -> None:
    assert run("deprecations", "--within", "-1") == 2
    assert "--within: must be at least 0, got -1" in capsys.readouterr().err


# show


def test_show_tells_prices_tiers_and_changes(capsys: Capture) -> None:
    run("import", save(), "--starts", "2027-01-01")
    capsys.readouterr()
    assert run("show", "openai/gpt-5.1", "--catalogue", "models.toml") == 0
    out = capsys.readouterr().out
    assert "ends      2027-04-01\n" in out
    assert "prices, today's:\n  input          1.25  $/1M\n" in out
    assert "prices from 2027-01-01:\n  input          1.10  $/1M\n" in out
    assert run("show", "openai/gpt-5.4") == 0
    assert "cached input above 272k   0.50  $/1M\n" in capsys.readouterr().out


def test_show_as_json_is_the_model(capsys: Capture) -> None:
    run("show", "openai/gpt-4o", "--json")
    assert json.loads(capsys.readouterr().out)["pricing_per_1m"]["input_usd"] == 2.5


def test_an_unknown_model_names_the_nearest(capsys: Capture) -> None:
    assert run("show", "openai/gpt-4oo") == 2
    assert (
        "routewright: MODEL: unknown model 'openai/gpt-4oo'; did you mean 'openai/gpt-4o'?" in capsys.readouterr().err
    )


def test_catalogue_without_a_subcommand_lists_them(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "required: COMMAND" in capsys.readouterr().err


# the file's new keys


def test_a_file_may_hold_every_price_dated_changes_and_its_date() -> None:
    Path("all.toml").write_text(
        "as_of = 2026-11-01\n[[models]]\nid = 'v/a'\n"
        "prices = { input_usd = 1, output_usd = 2, batch_input_usd = 0.5, batch_output_usd = 1, reasoning_usd = 3 }\n"
        "price_changes = [{ starts = 2027-01-01, input_usd = 2, output_usd = 2 }]\n"
    )
    catalogue = load("all.toml")
    model = catalogue.models[-1]
    assert catalogue.as_of == date(2026, 11, 1).isoformat()
    assert model.pricing_per_1m == Pricing(1.0, 2.0, None, None, 0.5, 1.0, reasoning_usd=3.0)
    assert model.price_changes == (PriceChange("2027-01-01", Pricing(2.0, 2.0)),)
