"""``routewright policies`` in a store: drafts, versions, shares, and who owns a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from routewright import Router, SqliteStorage
from routewright.cli import main
from routewright.policies import PolicyFile

from .sample_store import at_noon

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

CHEAP = """
[[policies]]
name = "desk"
goal = "cost"
models = ["openai/gpt-4.1", "openai/gpt-4o"]
budget = { max_cost_usd = 0.02 }

[[policies]]
name = "nightly"
strategy = "cost-optimized"
"""
GOOD = CHEAP.replace('goal = "cost"', 'goal = "quality"').replace("0.02", "0.05")


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    at_noon(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")
    monkeypatch.setattr("routewright.cli.policies.getuser", lambda: "ada")
    Path("cheap.toml").write_text(CHEAP)
    Path("good.toml").write_text(GOOD)


def shown(capsys: Capture, *argv: str, code: int = 0) -> str:
    """What the command writes, to either stream."""
    capsys.readouterr()
    assert main(["policies", *argv]) == code
    return "".join(capsys.readouterr())


def body(capsys: Capture, *argv: str) -> Any:
    capsys.readouterr()
    assert main(["policies", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def publish(capsys: Capture) -> None:
    """Two versions of the desk on one day."""
    for file in ("cheap.toml", "good.toml"):
        shown(capsys, "draft", file, "desk")
        shown(capsys, "publish", "desk", "--note", file)


def test_a_draft_serves_nobody_until_it_is_published(capsys: Capture) -> None:
    said = shown(capsys, "draft", "cheap.toml")  # creates the store
    assert said == "drafted: desk, nightly; 'routewright policies diff NAME' shows what changes\n"
    desk, nightly = body(capsys, "ls")["policies"]
    assert (desk["name"], desk["version"], desk["drafted_by"]) == ("desk", None, "ada")
    assert nightly["name"] == "nightly"
    assert shown(capsys, "publish", "desk", "--by", "grace") == "desk@2026-11-22 serves, drafted by ada\n"
    desk = body(capsys, "ls")["policies"][0]
    assert (desk["version"], desk["drafted_at"], desk["changed_by"]) == ("desk@2026-11-22", None, "grace")


def test_the_draft_of_somebody_else_is_replaced_only_if_it_is_the_expected_one(capsys: Capture) -> None:
    shown(capsys, "draft", "cheap.toml", "desk", "--by", "bob")
    shown(capsys, "draft", "good.toml", "desk", "--by", "bob")  # one's own is free
    refusal = shown(capsys, "draft", "cheap.toml", code=2)
    at = "2026-11-22T12:00:00.000Z"
    assert f"--expect: this would replace the draft of bob, {at}; merge what" in refusal
    assert f"then pass --expect {at}" in refusal
    assert [record["name"] for record in body(capsys, "ls")["policies"]] == ["desk"], "all of a file or none"
    assert body(capsys, "show", "desk")["policy"]["goal"] == "quality"
    assert "desk" in shown(
        capsys, "draft", "cheap.toml", "desk", "--expect", body(capsys, "show", "desk")["drafted_at"]
    )
    assert body(capsys, "show", "desk")["drafted_by"] == "ada"


def test_a_draft_based_on_an_older_version_is_refused(capsys: Capture) -> None:
    publish(capsys)
    label = body(capsys, "show", "desk")["version"]
    refusal = shown(capsys, "draft", "cheap.toml", "desk", "--expect", "desk@2026-11-01", code=2)
    assert f"--expect: this would replace {label}; " in refusal
    shown(capsys, "draft", "cheap.toml", "desk", "--expect", label)
    assert "there is no policy" in shown(capsys, "draft", "cheap.toml", "nightly", "--expect", label, code=2)


def test_the_draft_of_a_name_that_a_file_owns_is_compared_with_the_files_version(capsys: Capture) -> None:
    shown(capsys, "draft", "good.toml", "desk")
    shown(capsys, "publish", "desk")
    shown(capsys, "retire", "desk", "--yes")
    router = Router.sandbox(storage=SqliteStorage("traces.db"), policies=PolicyFile("cheap.toml"))
    router.policies()
    router.blocking.close()
    lines = shown(capsys, "draft", "good.toml", "desk").splitlines()
    file = Path("cheap.toml").absolute()
    assert lines[1:] == [f"desk: the name is owned by file {file}, so this draft cannot be published"]
    diff = body(capsys, "diff", "desk")
    assert diff["against"].startswith("desk@")
    assert [entry["path"] for entry in diff["differences"]] == ["budget.maxCostUsd", "goal"]
    shown(capsys, "discard", "desk")
    assert '"goal": "cost"' in shown(capsys, "show", "desk")


def test_the_rules_that_show_writes_are_a_file_to_draft(capsys: Capture) -> None:
    publish(capsys)
    capsys.readouterr()
    assert main(["policies", "show", "desk", "--version", "desk@2026-11-22"]) == 0
    Path("copy.json").write_text(capsys.readouterr().out)
    shown(capsys, "draft", "copy.json")
    assert body(capsys, "diff", "desk", "--against", "desk@2026-11-22")["differences"] == []
    assert body(capsys, "diff", "desk")["against"] == "desk@2026-11-22.2"


def test_a_diff_shows_rules_and_weights(capsys: Capture) -> None:
    shown(capsys, "draft", "cheap.toml", "desk")
    shown(capsys, "publish", "desk")
    shown(capsys, "draft", "good.toml", "desk")
    lines = [line.split() for line in shown(capsys, "diff", "desk").splitlines() if line]
    assert lines[1:] == [
        ["path", "before", "after"],
        ["budget.maxCostUsd", "0.02", "0.05"],
        ["goal", '"cost"', '"quality"'],
        ["requests", "weights", "quality", "cost", "latency", "stability"],
        ["all", "before", "38", "47", "10", "5"],
        ["all", "after", "70", "15", "10", "5"],
    ]
    shown(capsys, "draft", "cheap.toml", "desk")
    assert "nothing changes" in shown(capsys, "diff", "desk")


def test_rollback_returns_to_the_version_before_or_to_a_label(capsys: Capture) -> None:
    publish(capsys)
    assert shown(capsys, "rollback", "desk") == "desk@2026-11-22 serves again\n"
    assert "desk@2026-11-22.2 serves again" in shown(capsys, "rollback", "desk", "--to", "desk@2026-11-22.2")


def test_a_share_runs_beside_the_version_in_force_until_it_is_completed_or_ended(capsys: Capture) -> None:
    shown(capsys, "draft", "cheap.toml", "desk")
    shown(capsys, "publish", "desk")
    for end, last in (("rollback", "desk@2026-11-22"), ("publish", "desk@2026-11-22.2")):
        shown(capsys, "draft", "good.toml", "desk")
        said = shown(capsys, "publish", "desk", "--share", "0.1", "--share-by", "metadata.user")
        assert said == "desk@2026-11-22.2 serves 10.0% of the traffic\n"
        assert body(capsys, "ls")["policies"][0]["share"] == {
            "version": "desk@2026-11-22.2", "fraction": 0.1, "by": "metadata.user",
        }  # fmt: skip
        assert body(capsys, "versions", "desk")["versions"][0]["state"] == "serves 10.0% by metadata.user"
        shown(capsys, end, "desk")
        desk = body(capsys, "ls")["policies"][0]
        assert (desk["version"], desk["share"]) == (last, None)


def test_a_draft_is_discarded_and_a_policy_retired_after_a_yes(capsys: Capture) -> None:
    publish(capsys)
    shown(capsys, "draft", "cheap.toml", "desk")
    assert shown(capsys, "discard", "desk") == "the draft of desk is removed\n"
    said = shown(capsys, "retire", "desk", code=2)
    assert "requests that name the policy desk, which storage owns, would be refused; repeat with --yes" in said
    assert shown(capsys, "retire", "desk", "--yes") == "desk is retired\n"
    assert body(capsys, "ls")["policies"][0]["version"] is None
    assert "has neither a draft nor a version in force" in shown(capsys, "show", "desk", code=2)


def test_a_draft_of_the_store_is_checked_as_a_file_is(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    shown(capsys, "draft", "cheap.toml")
    (check,) = body(capsys, "check", "desk", "--sandbox")["policies"]
    assert (check["policy"], check["servable"]) == ("desk", True)
    Path("odd.toml").write_text('[[policies]]\nname = "desk"\nshadow = "nightly"\n')
    shown(capsys, "draft", "odd.toml")
    assert "shadow" not in shown(capsys, "check", "desk", "--sandbox"), "it is a draft of the store"
    assert caplog.messages == []
    Path("odd.toml").write_text('[[policies]]\nname = "desk"\nmodels = ["openai/gpt-4.11"]\n')
    shown(capsys, "draft", "odd.toml")
    assert "did you mean 'openai/gpt-4.1" in shown(capsys, "check", "desk", code=2)
    assert "did you mean 'openai/gpt-4.1" in shown(capsys, "publish", "desk", code=2)


def test_an_unknown_name_is_refused_with_the_nearest(capsys: Capture) -> None:
    shown(capsys, "draft", "cheap.toml")
    for command in ("show", "diff", "publish", "rollback", "versions", "discard", "retire"):
        assert "there is no policy 'desc'; did you mean 'desk'?" in shown(capsys, command, "desc", code=2)


def test_a_mistake_is_named_by_its_option(capsys: Capture) -> None:
    shown(capsys, "draft", "cheap.toml")
    assert "--share: 'desk' has no other version in force" in shown(capsys, "publish", "desk", "--share", "0.1", code=2)
    said = shown(capsys, "draft", "cheap.toml", "nigtly", code=2)
    assert said == "routewright: NAME: 'nigtly' is not in cheap.toml; did you mean 'nightly'?\n"
    assert "--share: is 2; pass a number above 0" in shown(capsys, "publish", "desk", "--share", "2", code=2)
    shown(capsys, "discard", "desk")
    said = "NAME: 'desk' has no draft; 'routewright policies draft FILE' saves one"
    assert said in shown(capsys, "publish", "desk", code=2)
    assert said.removeprefix("NAME: ") in shown(capsys, "check", "desk", code=2)


def test_whoever_has_no_user_name_signs_with_none(capsys: Capture, monkeypatch: Patch) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("routewright.cli.policies.getuser", nobody)
    assert body(capsys, "draft", "cheap.toml", "desk")["policies"][0]["drafted_by"] == ""
    assert body(capsys, "draft", "cheap.toml", "nightly", "--by", "ci")["policies"][0]["drafted_by"] == "ci"
