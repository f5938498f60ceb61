"""The recorded outcomes: what of each script has to stay equal, and a digest of that."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .outcome import differences, digest_of, normal, reduced, text_of
from .playback import Outcome, play
from .scripts import COUNT, is_still, script_of

FOLDER = Path(__file__).parents[1] / "data" / "golden"
DIGESTS, OUTCOMES = FOLDER / "digests.txt", FOLDER / "outcomes.json.gz"


def outcome_of(seed: int) -> Outcome:
    """Play a script now; its whole outcome in the normal form."""
    return normal(play(script_of(seed)))


def compared(seed: int, outcome: Outcome) -> Outcome:
    """What of an outcome has to stay equal."""
    return outcome if is_still(seed) else reduced(outcome)


@cache
def digests() -> dict[int, str]:
    """A mark of what was recorded of each script."""
    lines = (line.split() for line in DIGESTS.read_text().splitlines())
    return {int(seed): digest for seed, digest in lines}


@cache
def kept() -> dict[int, Outcome]:
    """What was recorded of each script, whole."""
    found: dict[str, Outcome] = json.loads(gzip.decompress(OUTCOMES.read_bytes()))
    return {int(seed): outcome for seed, outcome in found.items()}


def record() -> None:
    """Play all scripts and write down what came of them."""
    recorded = {seed: compared(seed, outcome_of(seed)) for seed in range(COUNT)}
    FOLDER.mkdir(parents=True, exist_ok=True)
    DIGESTS.write_text("".join(f"{seed} {digest_of(outcome)}\n" for seed, outcome in recorded.items()))
    OUTCOMES.write_bytes(gzip.compress(b"{" + b",".join(_lines(recorded)) + b"}", mtime=0))


def _lines(recorded: dict[int, Outcome]) -> Iterable[bytes]:
    return (f'"{seed}":{text_of(outcome)}\n'.encode() for seed, outcome in recorded.items())


def changes(seeds: Iterable[int]) -> dict[int, list[tuple[str, str]]]:
    """The scripts whose outcome is not the recorded one, with the places that differ."""
    found = {}
    for seed in seeds:
        now = compared(seed, outcome_of(seed))
        if digest_of(now) != digests()[seed]:
            found[seed] = list(differences(kept()[seed], json.loads(text_of(now))))
    return found
