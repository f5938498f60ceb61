"""The golden outcomes at the command line: ``python -m tests.golden record | diff | show SEED``."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter

from . import recordings
from .scripts import COUNT, is_still, script_of

USAGE = """\
python -m tests.golden diff         which outcomes changed since they were recorded, and where
python -m tests.golden show SEED    one script and its whole outcome, now
python -m tests.golden record       record all outcomes anew; say why in tests/data/golden/CHANGES.md
"""


def main(arguments: list[str]) -> int:
    """Do what was asked; the exit status."""
    logging.getLogger("routewright").setLevel(logging.CRITICAL)
    match arguments:
        case ["record"]:
            recordings.record()
        case ["diff"]:
            return show_changes()
        case ["show", seed]:
            shown = {"script": script_of(int(seed)), "outcome": recordings.outcome_of(int(seed))}
            print(json.dumps(shown, indent=1))
        case _:
            print(USAGE, end="")
            return 2
    return 0


def show_changes() -> int:
    """Print the scripts that changed, and the paths in them, those of one shape together."""
    changed = recordings.changes(range(COUNT))
    paths, samples = Counter[str](), dict[str, str]()
    for seed, places in changed.items():
        shapes = {re.sub(r"\[\d+\]", "[]", path): said for path, said in places}
        paths.update([*shapes])
        for shape, said in shapes.items():
            samples.setdefault(shape, f"script {seed}: {said}")
    families = Counter(script_of(seed)["family"] for seed in changed)
    still = sum(map(is_still, changed))
    others = len(changed) - still
    print(f"{len(changed)} of {COUNT} scripts changed: {still} where health stands still, {others} where it moves")
    if changed:
        print("seeds:", *changed)
        print("families:", ", ".join(f"{name} {count}" for name, count in families.most_common()))
        print("places, and in how many scripts:")
        for shape, count in paths.most_common():
            print(f"{count:6} {shape}\n           {samples[shape]}")
        print("If this is meant, record it anew and say why in tests/data/golden/CHANGES.md.")
    return 1 if changed else 0


sys.exit(main(sys.argv[1:]))
