"""``routewright learn``: what traces teach, beside the built-in predictor, applied and taken back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from routewright import Policy, Router, Settings, SqliteStorage
from routewright.cli import main
from routewright.learning import Learning
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, Model, Pricing, UpstreamCall, Usage

Capture = pytest.CaptureFixture[str]

GOOD = Model(id="a/good", quality=0.95, pricing_per_1m=Pricing(1.2, 4.8), context_window=100_000, ttft_s=1.0)
SPARE = Model(id="a/spare", quality=0.4, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
EXPLORING = Policy(name="try", goal="quality", models=["a/good", "a/spare"], explore_models=0.2)
WORDS = "prove lemma river invoice function contract poem sky".split()


def reply(call: UpstreamCall) -> Any:
    return [Delta("an answer"), Usage(40, 30), Finish("stop")]


async def taught(path: Path, likes: str, count: int = 200) -> None:
    """A store whose users like one of two models, which a policy explores."""
    rng = Random(5)
    settings = Settings(rng=rng, predictor="built-in", learning=Learning())
    providers = [ScriptedProvider(reply, models=[GOOD, SPARE])]
    async with Router(
        storage=SqliteStorage(path), settings=settings, providers=providers, policies=[EXPLORING]
    ) as router:
        for _ in range(count):
            answer = await router.route(" ".join(rng.choices(WORDS, k=6)), policy_id="try")
            liked = rng.random() < (0.9 if answer.routing.selected_model == likes else 0.2)
            await router.feedback(answer.trace_id, float(liked))


def run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(["learn", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_head_is_evaluated_applied_and_reverted(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "traces.db"
    anyio.run(taught, path, "a/spare")
    where = ("--store", str(path))
    code, out, _ = run(capsys, *where)
    assert code == 0
    for line in ("200 of feedback", "(log-loss of held-out answers)", "expected cost", "a/spare by +"):
        assert line in out
    assert "it may be taken: give --apply" in out
    assert main(["traces", "show", *where]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^prompt +topic \w+, difficulty 0\.\d\d, novelty", shown, re.MULTILINE)
    code, out, _ = run(capsys, *where, "--json", "--evaluate")
    report = json.loads(out)
    assert 50 < report["changed"] <= report["replayed"] == 200
    assert 0 < report["head_cost_usd"] < report["cost_usd"], "the model that is liked costs less"
    assert report["head_quality"] > report["quality"]
    code, out, _ = run(capsys, *where, "--apply")
    assert (code, "applied: all processes take it within 5 s" in out) == (0, True)
    code, out, _ = run(capsys, *where, "--revert")
    assert (code, out) == (0, "default is routed by the built-in predictor alone\n")
    code, _, err = run(capsys, *where, "--revert")
    assert (code, "default has no head in production" in err) == (2, True)


def test_a_head_that_does_not_predict_better_is_not_applied(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "traces.db"
    anyio.run(taught, path, "a/good", 60)  # as the catalogue says
    code, out, _ = run(capsys, "--store", str(path), "--apply")
    assert code == 1
    assert "not taken: the head does not beat the built-in predictor on held-out traces: its log-loss is" in out
    code, _, _ = run(capsys, "--store", str(path), "--revert")
    assert code == 2, "none was applied"
    code, out, _ = run(capsys, "--store", str(path), "--account", "globex")
    assert code == 0
    assert (
        "only 0 traces have a score; at least 50 are needed: none of globex in production has a sketch, so far" in out
    )
