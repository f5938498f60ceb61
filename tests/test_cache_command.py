"""``routewright cache``: what is kept, and what is to go."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from routewright import Router
from routewright.cli import main
from routewright.storage import open_cache
from routewright.wire import Caller
from tests.database_servers import RedisServer

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
SKY = "Why is the sky blue?"


@pytest.fixture(autouse=True)
def _the_cache_is_named(monkeypatch: Patch, noon: None) -> None:
    for name in list(os.environ):
        if name.startswith("ROUTEWRIGHT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ROUTEWRIGHT_CACHE", "cache.db")


@pytest.fixture
def kept(monkeypatch: Patch) -> list[str]:
    """A cache with answers to three questions, and one of another account. Gives the traces of the calls."""
    monkeypatch.setattr("routewright._engine.cache.CACHE_S", 30.0)  # a slow disk keeps none from it
    ids = []
    sandbox = Router.sandbox(cache=open_cache("sqlite:///cache.db"))
    with sandbox.blocking as router:
        asked: list[tuple[str, dict[str, Any]]] = [
            (SKY, {"metadata": {"team": "search", "run": 5}}),
            ("How tall is Mont Blanc?", {"cache": {"namespace": "facts"}}),
            ("Who wrote Faust?", {"metadata": {"run": "5"}}),
        ]
        for question, options in asked:
            given = {"models": ["openai/gpt-4o-mini"], "cache": True, **options}
            ids.append(router.route(question, **given).trace_id)
        sandbox.as_caller(Caller("acme")).blocking.route(SKY, models=["openai/gpt-4o-mini"], cache=True)
    return ids


def shown(capsys: Capture, *argv: str, code: int = 0) -> str:
    """What the command writes, to either stream."""
    capsys.readouterr()
    assert main(["cache", *argv]) == code
    out, err = capsys.readouterr()
    return f"{out}{err}"


def told(capsys: Capture, *argv: str) -> Any:
    capsys.readouterr()
    assert main(["cache", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# stats


def test_stats_count_one_account(kept: list[str], capsys: Capture) -> None:
    found = told(capsys, "stats")
    assert (found["account"], found["entries"], found["partitions"]) == ("default", 3, 2)
    assert found["size_bytes"] > 0
    assert found["saves_usd"] > 0
    assert found["oldest_at"].startswith("2026-11-22T12:00:00")
    assert told(capsys, "stats", "--account", "acme")["entries"] == 1
    lines = shown(capsys, "stats").splitlines()
    assert [line.split()[0] for line in lines] == ["entries", "size", "partitions", "oldest", "saves"]


def test_the_cache_is_named_by_an_option_before_the_environment(kept: list[str], capsys: Capture) -> None:
    Path("cache.db").rename("other.db")
    assert "there is no cache cache.db" in shown(capsys, "stats", code=2)
    for named in ("other.db", "sqlite:///other.db", f"sqlite:///{Path('other.db').absolute()}"):
        assert told(capsys, "stats", "--cache", named)["entries"] == 3


def test_a_missing_cache_is_not_created(capsys: Capture, monkeypatch: Patch) -> None:
    for command in (["stats"], ["invalidate", "--everything", "--yes"]):
        assert "there is no cache cache.db; 'routewright serve --cache cache.db'" in shown(capsys, *command, code=2)
    assert not Path("cache.db").exists()
    monkeypatch.delenv("ROUTEWRIGHT_CACHE")
    said = "routewright: --cache: is missing; give --cache cache.db, or set ROUTEWRIGHT_CACHE\n"
    assert shown(capsys, "stats", code=2) == said
    assert "--cache: is memory:, which ends with the command" in shown(capsys, "stats", "--cache", "memory:", code=2)
    assert "--cache: is 'ftp://x'" in shown(capsys, "stats", "--cache", "ftp://x", code=2)


def test_a_cache_on_a_server_is_counted_and_emptied(capsys: Capture, redis: RedisServer, postgres: str) -> None:
    for url in (redis.url, postgres):
        with Router.sandbox(cache=open_cache(url)).blocking as router:
            router.route(SKY, cache=True)
        assert told(capsys, "stats", "--cache", url)["entries"] == 1
        assert told(capsys, "invalidate", "--everything", "--yes", "--cache", url) == {"removed": 1}
        assert told(capsys, "stats", "--cache", url)["entries"] == 0


# invalidate


def test_answers_are_invalidated_by_each_selector(kept: list[str], capsys: Capture) -> None:
    content = Path("cache.db").read_bytes()
    for options, removed in [
        (["--trace", kept[0]], 1),
        (["--namespace", "facts"], 1),
        (["--metadata", "team=search"], 1),
        (["--metadata", "run=5"], 1),
        (["--metadata", "run=5", "--trace", kept[2]], 0),
        (["--metadata", 'run="5"', "--trace", kept[2]], 1),
        (["--older-than", "1h"], 0),
        (["--everything"], 3),
        (["--everything", "--environment", "production"], 0),
        (["--everything", "--environment", "sandbox"], 3),
        (["--everything", "--account", "acme"], 1),
    ]:
        Path("cache.db").write_bytes(content)
        assert told(capsys, "invalidate", *options, "--yes") == {"removed": removed}, options
    assert shown(capsys, "invalidate", "--namespace", "facts", "-y") == "1 answer removed\n"


def test_invalidate_needs_a_yes(kept: list[str], capsys: Capture) -> None:
    said = shown(capsys, "invalidate", "--everything", code=2)
    assert said == "routewright: answers of the account default would be removed; repeat with --yes to do it\n"
    assert told(capsys, "stats")["entries"] == 3


def test_invalidate_needs_selectors_or_everything(kept: list[str], capsys: Capture) -> None:
    assert "--everything: nothing is selected" in shown(capsys, "invalidate", code=2)
    assert "--everything: cannot be combined" in shown(capsys, "invalidate", "--everything", "--namespace", "x", code=2)
    with pytest.raises(SystemExit):
        main(["cache", "invalidate", "--older-than", "soon"])
    assert "'soon' is not a time as 30m, 2h or 7d" in capsys.readouterr().err
