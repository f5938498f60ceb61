"""The engine makes of every recorded script what it made of it before; and the scripts reach what they are to guard."""

from __future__ import annotations

import pytest

from . import recordings
from .scripts import COUNT, script_of
from .turns import CELLS, FAULTS

CHUNKS = 30
IN_CI = 24
"""Without ``--full`` one script of so many is played."""
SHOWN = 8
"""Differences of one script that are shown."""
LEAST = 4
"""Scripts that have to exercise each thing."""
EXERCISED = {
    "": "answered|replay|repair|retry|hedge|probe|cancelled|stopped|stream restart|stream fallback without restart"
    "|text with error|steps wait|budget finish|data of a type",
    "fault": [*FAULTS, "invalid_output", "blocked"],
    "cell": CELLS,
    "code": "RATE_LIMITED|RouterTimeoutError|authentication_failed|blocked_by_policy|content_refused"
    "|insufficient_balance|idempotency_key_reused_with_different_body|internal_error|permission_denied|quota_exhausted"
    "|router.budget_exceeded|router.no_candidates|router.upstream_failed|validation_failed",
    "trace": "completed|failed|budget_exceeded|cancelled",
    "fallback": "timeout|upstream_5xx|safety",
    "finish": "stop|length|budget|tool_calls",
    "guardrail": "input block|input redact|output block|output redact",
    "rejected": "budget_cost|budget_tokens|circuit_open|context|deprecated|disabled|latency_ceiling|modality|params"
    "|quality_floor|region|response_format|tools|whitelist",
    "door": "route|stream|text|steps|many|decide",
    "event": "router.budget_exceeded|router.fallback_triggered|billing.threshold_crossed",
    "model status": "available|degraded|unavailable",
}
"""What has to be among what the scripts exercise."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_script_ends_as_it_was_recorded(chunk: int, full: bool) -> None:
    changed = recordings.changes(range(chunk, COUNT, CHUNKS if full else CHUNKS * IN_CI))
    assert not changed, _told(changed)


@pytest.mark.parametrize("kind", EXERCISED)
def test_each_thing_is_exercised_by_several_scripts(kind: str) -> None:
    names = EXERCISED[kind]
    wanted = [f"{kind}: {name}" if kind else name for name in (names.split("|") if isinstance(names, str) else names)]
    assert {name: count for name in wanted if (count := recordings.coverage().get(name, 0)) < LEAST} == {}


def _told(changed: dict[int, list[tuple[str, str]]]) -> str:
    lines = [f"{len(changed)} scripts end otherwise than recorded"]
    for seed, places in changed.items():
        lines.append(f"script {seed} ({script_of(seed)['family']}): python -m tests.golden show {seed}")
        lines += [f"    {path}: {said}" for path, said in places[:SHOWN]]
    return "\n".join([*lines, "all at once: python -m tests.golden diff"])
