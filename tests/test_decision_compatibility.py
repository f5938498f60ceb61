"""Decisions that version 0.1.0 took are taken again by this version, bit for bit (``tests/data/README.md``)."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from routewright import Catalogue, Decision, MemoryStorage, NoCandidates, Router, Settings, Trace
from routewright.errors import NotFound
from routewright.testing import FakeClock
from routewright.wire import SYSTEM_ACCOUNT, DecisionInput, PutSnapshot, Snapshot

FOLDER = Path(__file__).parent / "data" / "decisions"
SNAPSHOTS, CASES = FOLDER / "snapshots.json.gz", FOLDER / "cases.jsonl.gz"


async def opened(snapshots: Sequence[Snapshot]) -> Router:
    """A Router whose storage holds the snapshots, and that has no models of its own that any of them names."""
    storage = MemoryStorage()
    await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(each) for each in snapshots])
    return Router.sandbox(storage=storage, settings=Settings(clock=FakeClock()))


def outcome(router: Router, given: DecisionInput) -> dict[str, Any]:
    """All that the decision of a trace says, or its refusal, as plain values."""
    trace = Trace(id="tr_old", status="completed", created_at=f"{given.as_of}T00:00:00.000Z", duration_ms=1.0,
                  environment="production", account="default", decision_input=given)  # fmt: skip
    try:
        return {"plan": plan_of(router.replay(trace))}
    except NoCandidates as refused:
        return {"refusal": {"code": refused.code, "rejected": plain(refused.detail["rejected_candidates"])}}


def plan_of(decision: Decision) -> dict[str, Any]:
    told: dict[str, Any] = plain(
        {
            "model": decision.model,
            "chain": decision.chain,
            "score": decision.score,
            "output_cap": decision.output_cap,
            "fallback_affordable": decision.fallback_affordable,
            "token_count": decision.token_count,
            "reason": decision.reason,
            "digest": decision.digest,
            "front": [each.model for each in decision.front],
            "candidates": decision.candidates,
            "rejected": decision.rejected,
            "rejected_counts": decision.rejected_counts,
        }
    )
    return told


def plain(value: Any) -> Any:
    """As it comes out of JSON."""
    return json.loads(msgspec.json.encode(value))


def changes(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where a value differs from the recorded one. A field that came later may be there, as long as it is empty."""
    match before, now:
        case dict(), dict():
            yield from (f"{path}.{name} is new: {now[name]}" for name in now.keys() - before.keys() if now[name])
            for name, held in before.items():
                yield from changes(held, now.get(name, "nothing"), f"{path}.{name}")
        case list(), list() if len(before) == len(now):
            for place, (old, new) in enumerate(zip(before, now, strict=True)):
                yield from changes(old, new, f"{path}[{place}]")
        case _ if (before, type(before)) != (now, type(now)):
            yield f"{path} was {before}, is {now}"


def asked_alone(sentence: str) -> str:
    """A recorded reason without the models that are outside the whitelist."""
    found = re.search(r"; (\d+) of (\d+) rejected \((?:(\d+) whitelist(?:, )?)(.*?)\)", sentence)
    if found is None:
        return sentence
    count, of, outside = int(found[1]), int(found[2]), int(found[3])
    told = f"; {count - outside} of {of - outside} rejected ({found[4]})" if found[4] else ""
    return sentence.replace(found[0], told)


def test_old_decisions_replay_bit_for_bit() -> None:
    snapshots = msgspec.json.decode(gzip.decompress(SNAPSHOTS.read_bytes()), type=list[Snapshot])
    cases = [json.loads(line) for line in gzip.decompress(CASES.read_bytes()).splitlines()]
    assert len(cases) == 500
    router = anyio.run(opened, snapshots)
    # those of one catalogue, day and health in a row, since few are kept compiled
    order = sorted(
        enumerate(cases), key=lambda each: [each[1]["input"][name] for name in ("catalogue", "as_of", "health")]
    )
    for place, case in order:
        given = msgspec.convert(case.pop("input"), DecisionInput)
        if "refusal" in case:  # which lists the models that were asked for, in their order, and is worded anew
            told = {each["model"]: each for each in case["refusal"]["detail"]["rejected_candidates"]}
            asked = told if given.models is None else given.models
            case = {"refusal": {"code": case["refusal"]["code"], "rejected": [told[model] for model in asked]}}
        else:  # models that nobody asked for are no longer counted among the rejected
            case["plan"]["reason"] = asked_alone(case["plan"]["reason"])
        assert list(changes(case, outcome(router, given))) == [], (place, given)


def old_decision(**fields: Any) -> tuple[Router, DecisionInput, Any]:
    """A decision of ours as an earlier build would have stored it, with more ``fields``, and its plan."""
    router = Router.sandbox(settings=Settings(clock=FakeClock()))
    decision = router.decide("hi", prefer=["openai/gpt-4.1"])
    stored = msgspec.to_builtins(decision.input) | fields
    given = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=DecisionInput)
    return router, given, plan_of(decision)


READING = {"predictor": "prd_1", "cell": [1, 0], "difficulty": 0.4, "topic": "math", "novelty": 0.1, "sketch": [3]}


def test_a_decision_by_a_predictor_of_the_library_is_read_and_not_replayed() -> None:
    router, given, _ = old_decision(reading=READING, quality=[500_000] * len(Catalogue().models))
    with pytest.raises(NotFound, match=r"^the decision used a quality predictor that this version lacks, so it cannot"):
        outcome(router, given)


def test_a_decision_that_no_prediction_changed_replays() -> None:
    router, given, plan = old_decision(propensity=20_000, explored=True)
    assert outcome(router, given) == {"plan": plan}
    router, given, plan = old_decision(reading=READING)
    plan["digest"] = "of the input with its reading"
    assert outcome(router, given)["plan"] | {"digest": plan["digest"]} == plan
