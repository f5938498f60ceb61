"""The engine makes of every recorded script what it made of it before."""

from __future__ import annotations

import pytest

from . import recordings
from .scripts import COUNT, script_of

CHUNKS = 30
IN_CI = 24
"""Without ``--full`` one script of so many is played."""
SHOWN = 8
"""Differences of one script that are shown."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_script_ends_as_it_was_recorded(chunk: int, full: bool) -> None:
    changed = recordings.changes(range(chunk, COUNT, CHUNKS if full else CHUNKS * IN_CI))
    assert not changed, _told(changed)


def _told(changed: dict[int, list[tuple[str, str]]]) -> str:
    lines = [f"{len(changed)} scripts end otherwise than recorded"]
    for seed, places in changed.items():
        lines.append(f"script {seed} ({script_of(seed)['family']}): python -m tests.golden show {seed}")
        lines += [f"    {path}: {said}" for path, said in places[:SHOWN]]
    return "\n".join([*lines, "all at once: python -m tests.golden diff"])
