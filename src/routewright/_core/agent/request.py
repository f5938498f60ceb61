"""Reads the request of an agent run and holds it to the rules (spec 2.4)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from routewright._core.request.json_scan import decode, is_unicode, joined, quoted, scan
from routewright._core.request.problems import did_you_mean, example, shown
from routewright._core.request.read import converted
from routewright._core.request.rules import MAX_KEY_BYTES, MAX_PROBLEMS, check_metadata, check_numbers, check_tools
from routewright.errors import Problem, ValidationFailed
from routewright.wire import AgentRequest, Tool

MOST_TASK = 1_000_000  # characters
BLANK = " \t\n\r"
"""JSON's own white space: a task of nothing else is refused. Each regex dialect has another idea of ``\\s``."""
_FIELDS = AgentRequest.__struct_fields__
_MEANT = {  # fields of other interfaces, and what they are in the request of a run
    "goal": "it is 'model_strategy.goal' here",
    "strategy": "it is 'model_strategy.strategy' here",
    "stream": "it is 'stream_steps' here",
    "budget": "it is 'total_budget_usd' here",
    "timeout_ms": "it is 'per_step_timeout_ms' here",
    "conversation": "it is 'metadata.conversation' here",
    **dict.fromkeys(("messages", "prompt", "input"), "it is 'task' here"),
}


def sent_run(body: bytes, idempotency_key: str | None) -> AgentRequest:
    """Make the request of a JSON body and the key of its header. Raises ``InvalidJson`` and ``ValidationFailed``."""
    scan(body)
    request = run_of(decode(body))
    if idempotency_key is not None:
        if request.idempotency_key not in (None, idempotency_key):
            said = f"is {shown(idempotency_key)}, and the body says {shown(request.idempotency_key)}"
            raise ValidationFailed.of(Problem("Idempotency-Key", said, "send one of the two"))
        request = replace(request, idempotency_key=idempotency_key)
    return checked_run(request)


def run_of(document: object) -> AgentRequest:
    """Make the request of plain values, right in its types. Raises ``ValidationFailed``."""
    if isinstance(document, dict):
        unknown = [name for name in document if name not in _FIELDS][:MAX_PROBLEMS]
        if unknown:
            known = f"known: {', '.join(_FIELDS)}"
            hints = [_MEANT.get(name) or did_you_mean(name, _FIELDS) or known for name in unknown]
            told = zip(unknown, hints, strict=True)
            raise ValidationFailed.of(*(Problem(joined("", name), "is not a field", hint) for name, hint in told))
    return converted(document, AgentRequest, "")


def checked_run(request: AgentRequest) -> AgentRequest:
    """Raise ``ValidationFailed`` for what breaks a rule."""
    found: list[Problem] = []
    task: Any = request.task
    if not isinstance(task, str) or not task.strip(BLANK) or len(task) > MOST_TASK or not is_unicode(task):
        found.append(
            Problem("task", f"must be a text of 1 to {MOST_TASK} characters, got {shown(task)}", example("task"))
        )
    check_numbers(AgentRequest, "", request, found)
    names = Counter(tool if isinstance(tool, str) else tool.function_spec.name for tool in request.tools or [])
    check_tools([tool for tool in request.tools or [] if isinstance(tool, Tool)], None, found)
    for name, times in names.items():
        if times > 1:
            found.append(Problem("tools", f"names {quoted(name)} twice", "give each tool its own name"))
    if request.metadata is not None:
        check_metadata(request.metadata, found)
    key = request.idempotency_key
    if key is not None and not (is_unicode(key) and 1 <= len(key.encode()) <= MAX_KEY_BYTES):
        found.append(Problem("idempotency_key", f"must take 1 to {MAX_KEY_BYTES} bytes in UTF-8", "hash a longer one"))
    if found:
        raise ValidationFailed.of(*found[:MAX_PROBLEMS])
    return request
