"""An outcome in the one form in which it is compared: ids by their order, figures rounded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from .playback import Outcome
from .randomness import Data

ID = re.compile(
    r"\b(tr|req|evt|key|pol|own|cr|cor)_[0-9A-HJKMNP-TV-Z]{26}\b|\b(?:cat|hea|pos)_[0-9a-f]{26,32}\b"
    r"|\b(sk)_(?:live|test)_[\w-]{4}\b|\b(?:[0-9a-f]{32}|[0-9a-f]{8}:[0-9a-f]{64})\b"
)
LONGEST = 400
"""Characters of a text that are kept as they are."""


class Names:
    """Gives each id a name by its order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def named(self, text: str) -> str:
        """A text with its ids replaced; of a long one the beginning and a mark of all."""
        text = ID.sub(self._name, text)
        if len(text) <= LONGEST:
            return text
        return f"{text[:LONGEST]}... {len(text)} characters, {_mark(text)}"

    def _name(self, found: re.Match[str]) -> str:
        name = self._names.get(found[0])
        if name is None:
            prefix = found[1] or found[2] or ("snap" if "_" in found[0] else "digest")
            number = self._counts[prefix] = self._counts.get(prefix, 0) + 1
            name = self._names[found[0]] = f"{prefix}#{number}"
        return name


def normal(outcome: Outcome) -> Outcome:
    """The outcome as it is compared and kept."""
    named: Outcome = _normal(outcome, "", Names())
    return named


def _normal(value: Any, key: str, names: Names) -> Any:
    match value:
        case dict():
            return {names.named(str(name)): _normal(value[name], str(name), names) for name in sorted(value, key=str)}
        case list() | tuple():
            return [_normal(each, key, names) for each in value]
        case str():
            return names.named(value)
        case float():
            return _rounded(value, 6 if key.endswith(("_ms", "_s")) or key in ("deadline", "steps") else 12)
    return value


def _rounded(value: float, places: int) -> float:
    return float(f"{round(value, places):.9g}") + 0.0


def text_of(outcome: Outcome) -> str:
    """The canonical JSON of an outcome that is in its normal form."""
    return json.dumps(outcome, sort_keys=True, separators=(",", ":"))


def digest_of(outcome: Outcome) -> str:
    """Sixteen letters that stand for an outcome in its normal form."""
    return _mark(text_of(outcome))


def _mark(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def reduced(outcome: Outcome) -> Outcome:
    """What is left of an outcome where figures of health may differ by one publication."""
    return {
        "calls": [_reduced_call(each) for each in outcome["calls"]],
        "traces": [_reduced_trace(each) for each in outcome["traces"]],
        "ledger": {name: [_picked(row, _ROW) for row in rows] for name, rows in outcome["ledger"].items()},
        "asked": {name: len(calls) for name, calls in outcome["asked"].items()},
        "left_open": outcome["left_open"],
    }


_ROW = ("request_id", "attempt", "kind", "model", "tokens", "cost_nanos", "charge_nanos", "cost_range_nanos")
_TRACE = ("id", "status", "selected_model", "fallback_used", "tokens", "cost_usd", "charged_usd", "error", "account")


def _picked(given: Data, names: tuple[str, ...]) -> Data:
    return {name: given[name] for name in names}


def _reduced_call(call: Data) -> Data:
    found: Data = {name: call[name] for name in ("pieces", "cancelled", "stopped") if name in call}
    if "answer" in call:
        response = call["answer"]["response"]
        found["answer"] = {name: response.get(name) for name in ("output", "finish_reason", "trace_id", "tool_calls")}
        found["replayed"] = call["answer"]["replayed"]
    if "error" in call:
        found["error"] = _picked(call["error"], ("class", "code", "status"))
    if "events" in call:
        deltas = [
            each for each in call["events"] if each["event"] in ("output.delta", "route.fallback", "tool_call.delta")
        ]
        found["events"] = [[each["id"], each["event"], each["data"]] for each in deltas]
    return found


def _reduced_trace(trace: Data) -> Data:
    attempts = [
        [span["model"], span["error"] or span["status"], span["probe"], span["repair"]]
        for span in trace["spans"]
        if span["type"] == "model"
    ]
    return _picked(trace, _TRACE) | {"attempts": attempts}


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where two outcomes differ: paths, and what stands there."""
    match before, now:
        case dict(), dict():
            for name in sorted({*before, *now}):
                yield from differences(
                    before.get(name, "nothing"), now.get(name, "nothing"), f"{path}.{name}".lstrip(".")
                )
        case list(), list() if len(before) == len(now):
            for place, (old, new) in enumerate(zip(before, now, strict=True)):
                yield from differences(old, new, f"{path}[{place}]")
        case list(), list():
            yield path, f"{len(before)} items -> {len(now)} items: {_short(before)} -> {_short(now)}"
        case _ if before != now:
            yield path, f"{_short(before)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:160]}..."
