"""Checks requests of agent runs and arguments of tool calls, and cuts a run's history to the context window.

Cuts are large and rare, so that the prompt keeps its prefix for many steps and vendors' prompt caches stay warm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from routewright._core.request.read import check_same_key
from routewright._core.request.rules import MAX_KEY_BYTES, MAX_PROBLEMS, check_metadata, check_numbers, check_tools
from routewright._core.tokens.estimate import MESSAGE_TOKENS, estimate_text
from routewright.errors import Problem, ValidationFailed
from routewright.wire import AgentRequest, Message, Tool
from routewright.wire.conversion import convert_value
from routewright.wire.json_scan import is_unicode, joined, quoted, tree_of
from routewright.wire.problems import did_you_mean, example, shown

_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def find_misfits(arguments: Mapping[str, object], schema: Mapping[str, object] | None) -> list[str]:
    """Errors in arguments by the first level of their schema, worded for the model."""
    schema = schema or {}
    properties = schema.get("properties")
    known: Mapping[str, object] = properties if isinstance(properties, Mapping) else {}
    errors = [f"{name} is missing" for name in _as_list(schema.get("required")) if name not in arguments]
    for name, value in arguments.items():
        field = known.get(name)
        field = field if isinstance(field, Mapping) else {}
        kinds = [*map(str, _as_list(field.get("type")))]
        choices = _as_list(field.get("enum"))
        if name not in known and schema.get("additionalProperties") is False:
            errors.append(f"{name} is not known; use one of: {', '.join(known)}")
        elif kinds and not any(kind not in _KINDS or _KINDS[kind](value) for kind in kinds):
            types = [f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}" for kind in kinds]
            errors.append(f"{name} must be {' or '.join(types)}")
        elif choices and value not in choices:
            errors.append(f"{name} must be one of {choices!r}")
    return errors


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


FULL = 0.8  # a history above this share of the window is cut ...
TARGET = 0.5  # ... to this share
NEWEST = 4  # the last messages, which are never cut
CUT = "[left out: {} characters of an earlier result]"


def tokens_of(message: Message) -> int:
    """Estimated tokens of a message."""
    text = message.content if isinstance(message.content, str) else ""
    return MESSAGE_TOKENS + estimate_text(text + "".join(call.function.arguments for call in message.tool_calls or ()))


def fit_messages(messages: Sequence[Message], window: int) -> list[Message]:
    """The messages cut to fit a window. Keeps system messages, the last user message and the newest messages."""
    history = list(messages)
    sizes = [tokens_of(message) for message in messages]
    target = int(window * TARGET)
    total = sum(sizes)
    if total <= window * FULL:
        return history
    for place in range(len(history) - NEWEST):
        message = history[place]
        if total > target and message.role == "tool" and isinstance(message.content, str):
            history[place] = replace(message, content=CUT.format(len(message.content)))
            total -= sizes[place] - tokens_of(history[place])
    place = 0
    task = max((place for place, message in enumerate(history) if message.role == "user"), default=-1)
    while total > target and place < len(history) - NEWEST:
        end = place + 1
        while end < len(history) and history[end].role == "tool":  # tool results go with their message
            end += 1
        if history[place].role == "system" or place == task:
            place = end
            continue
        if end > len(history) - NEWEST:
            break
        total -= sum(map(tokens_of, history[place:end]))
        del history[place:end]
        task -= end - place if place < task else 0
    return history


MOST_TASK = 1_000_000  # characters
BLANK = " \t\n\r"
"""JSON's white space, of which a task must not only consist. Regex dialects disagree about ``\\s``."""
_FIELDS = AgentRequest.__struct_fields__
_MEANT = {  # hints for fields of other APIs
    "goal": "it is 'model_strategy.goal' here",
    "strategy": "it is 'model_strategy.strategy' here",
    "stream": "it is 'stream_steps' here",
    "budget": "it is 'total_budget_usd' here",
    "timeout_ms": "it is 'per_step_timeout_ms' here",
    "conversation": "it is 'metadata.conversation' here",
    **dict.fromkeys(("messages", "prompt", "input"), "it is 'task' here"),
}


def decode_run(body: bytes, idempotency_key: str | None) -> AgentRequest:
    """Decode and check a body, with the header's idempotency key. Raises ``InvalidJson`` and ``ValidationFailed``."""
    request = run_of(tree_of(body))
    if idempotency_key is not None:
        check_same_key(idempotency_key, request.idempotency_key)
        request = replace(request, idempotency_key=idempotency_key)
    return check_run(request)


def run_of(document: object, others: Sequence[str] = ()) -> AgentRequest:
    """Convert plain values to a request and check its types. ``others``: more names that errors list as known. Raises
    ``ValidationFailed``."""
    if isinstance(document, dict):
        unknown = [name for name in document if name not in _FIELDS][:MAX_PROBLEMS]
        if unknown:
            names = (*_FIELDS, *others)
            known = f"known: {', '.join(names)}"
            hints = {name: _MEANT.get(name) or did_you_mean(name, names) or known for name in unknown}
            problems = [Problem(joined("", name), "is not a field", hint) for name, hint in hints.items()]
            raise ValidationFailed.of(*problems)
    return convert_value(document, AgentRequest, "")


def check_run(request: AgentRequest) -> AgentRequest:
    """Check the rules. Raises ``ValidationFailed``."""
    problems: list[Problem] = []
    task: object = request.task
    if not isinstance(task, str) or not task.strip(BLANK) or len(task) > MOST_TASK or not is_unicode(task):
        problem = f"must be a text of 1 to {MOST_TASK} characters, got {shown(task)}"
        problems.append(Problem("task", problem, example("task")))
    check_numbers(AgentRequest, "", request, problems)
    names = Counter(tool if isinstance(tool, str) else tool.function_spec.name for tool in request.tools or [])
    check_tools([tool for tool in request.tools or [] if isinstance(tool, Tool)], None, problems)
    for name, times in names.items():
        if times > 1:
            problems.append(Problem("tools", f"names {quoted(name)} twice", "give each tool its own name"))
    if request.metadata is not None:
        check_metadata(request.metadata, problems)
    key = request.idempotency_key
    if key is not None and not (is_unicode(key) and 1 <= len(key.encode()) <= MAX_KEY_BYTES):
        problems.append(Problem("idempotency_key", f"must be 1 to {MAX_KEY_BYTES} bytes in UTF-8", "hash a longer key"))
    if problems:
        raise ValidationFailed.of(*problems[:MAX_PROBLEMS])
    return request
