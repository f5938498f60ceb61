"""``routewright policies check``: what routing under each policy of a file comes to, before it is live."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from routewright.cli import main

Capture = pytest.CaptureFixture[str]

FILE = """
[[policies]]
name = "two"
models = ["openai/gpt-4.1", "google/gemini-3.1-flash-lite"]

[[policies]]
name = "one"
models = ["provider:mistral"]
"""


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "MISTRAL_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "policies.toml"
    found.write_text(FILE)
    return found


def check(path: Path, *argv: str) -> int:
    return main(["policies", "check", str(path), *argv])


def test_check_shows_models_costs_and_dependence_on_a_provider(path: Path, capsys: Capture) -> None:
    assert check(path) == 0
    out, err = capsys.readouterr()
    two, one = out.splitlines()[1:3]
    assert "no provider is configured: checked against the whole catalogue" in err
    assert two.split()[:2] == ["two", "google/gemini-3.1-flash-lite"]
    assert two.endswith("without google: openai/gpt-4.1")
    assert one.endswith("breaks without mistral")


def test_an_unservable_policy_fails_with_the_reason(path: Path, capsys: Capture) -> None:
    path.write_text(FILE + '\n[[policies]]\nname = "poor"\nbudget = { max_tokens = 1 }\n')
    assert check(path) == 3
    out, _ = capsys.readouterr()
    assert re.search(r"\npoor +nobody ", out)
    assert "poor: no model fits: 169 considered" in out


def test_check_takes_a_request(path: Path, capsys: Capture) -> None:
    assert check(path, "word " * 40_000, "--max-output-tokens", "200") == 0
    assert check(path, "what?", "--json", "--image", "https://a/b.png") == 0
    capsys.readouterr()
    body = path.with_name("request.json")
    body.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], "models": ["openai/gpt-4.1"]}))
    assert check(path, "--request", str(body)) == 3
    out, _ = capsys.readouterr()
    assert "one: no model fits: 1 requested, rejected: all, since policy 'one' allows none" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[[policies]]\nname = "x"\n\nmodels = [\n  "openai/gpt-4.1",\n  "provider:mistrall",\n]\n',
            ": policies['x'].models[1]: 'provider:mistrall' matches no model; did you mean 'provider:mistral'?",
        ),
        ("[[policies]\n", ":1: is not TOML"),
    ],
)
def test_a_mistake_is_named_by_file_and_key(path: Path, text: str, said: str, capsys: Capture) -> None:
    path.write_text(text)
    assert check(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{path}{said}" in err


@pytest.mark.parametrize("text", ["timeoutMs = 1", "[policies.budget]\nmaxCostUsd = 1", "timeout_ms = 'a'"])
def test_keys_of_a_file_are_named_as_they_are_in_it(path: Path, text: str, capsys: Capture) -> None:
    path.write_text(f"[[policies]]\nname = 'p'\n{text}\n")
    assert check(path) == 2
    assert "--" not in capsys.readouterr().err


def test_classes_are_matched_by_metadata(path: Path, capsys: Capture) -> None:
    path.write_text(f'{FILE}\n[[policies.classes]]\nmatch.metadata = {{ team = "tax" }}\ngoal = "quality"\n')
    assert check(path) == 0
    asked = ["--policies", str(path), "--policy", "one", "--metadata", "team=tax", "Hello"]
    assert main(["decide", "--sandbox", *asked]) == 0
    assert "\nthe policy's class: team=tax\n" in capsys.readouterr().out
    store = f"--store={path.with_name('traces.db')}"
    assert main(["route", "--sandbox", store, *asked]) == main(["traces", "show", store]) == 0
    assert re.search("^class +team=tax$", capsys.readouterr().out, re.MULTILINE)


def test_the_shadow_of_a_call_is_shown_with_its_trace(path: Path, capsys: Capture) -> None:
    path.write_text(FILE.replace('"two"', '"two"\nshadow = "one"') + '\n[[policies]]\nname = "alone"\nshadow = "one"')
    store = f"--store={path.with_name('traces.db')}"
    for policy, differs in (("two", "differs"), ("one", None), ("alone", "")):
        assert main(["route", "--sandbox", store, "--policies", str(path), "--policy", policy, "Hello"]) == 0
        assert main(["traces", "show", store]) == 0
        line = re.search("^shadow +one@.*: (mistral/.*)$", capsys.readouterr().out, re.MULTILINE)
        assert (line is None) == (policy == "one")
        if differs and line:
            assert line[1].endswith(", differs")


def test_with_strict_an_unknown_shadow_fails(path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUTEWRIGHT_STORE", raising=False)
    path.write_text('[[policies]]\nname = "p"\nshadow = "trial"\n')
    assert check(path) == 0
    assert "\nunknown shadow 'trial'; if it is a draft, add --store\n" in capsys.readouterr().out
    assert check(path, "--strict") == 3
    trial = path.with_name("trial.toml")
    trial.write_text('[[policies]]\nname = "trial"\n')
    store = f"--store={path.with_name('store.db')}"
    assert main(["policies", "draft", str(trial), store]) == 0
    assert check(path, "--strict", store) == 0


def test_an_unservable_class_fails_for_any_prompt(path: Path, capsys: Capture) -> None:
    path.write_text(FILE + '\n[[policies.classes]]\nmatch.metadata = { team = "law" }\nmin_quality = 0.999\n')
    assert check(path, "Where is my parcel?") == 3
    out, _ = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()[1:4]] == ["two", "one", "one, team=law"]
    assert "one, team=law: no model fits" in out
