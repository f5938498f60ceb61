"""Runs one tool call of an agent: arguments checked, within the step's time, its output bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any

from msgspec import MsgspecError, json

from routewright._core.agent.arguments import misfits
from routewright._core.agent.machine import Observation, arguments_shown
from routewright._core.request.problems import did_you_mean
from routewright.protocols import Clock, Tool, ToolContext, ToolFailed
from routewright.wire import Step, ToolCall

Approve = Callable[[str, dict[str, Any]], bool | Awaitable[bool]]
"""Called with a tool's name and arguments before it runs; False: it does not."""

MOST_CHARACTERS = 16_000
"""Of a result; the rest is cut off, and the model told so."""
MOST_ARGUMENTS = 256_000
"""Characters of arguments that are read."""
_object = json.Decoder(dict[str, Any]).decode


class _Refused(Exception):
    """Why a call is not run, for the model."""


async def run_tool(
    tools: Mapping[str, Tool], call: ToolCall, context: ToolContext, clock: Clock, approve: Approve | None
) -> tuple[Step, Observation]:
    """Run a tool. Whatever it does, there is an observation for the model and a step."""
    name, started = call.function.name, clock.monotonic()
    result: Any = None
    error, still_running = None, False
    try:
        tool, arguments = _checked(tools, call)
        if not await _approved(name, arguments, approve):
            raise _Refused("the user did not approve this call")
        with clock.deadline(context.deadline) as limit:
            result = await tool.run(arguments, context)
        if limit.expired:
            still_running = bool(getattr(tool, "outlives_cancellation", False))
            error = "timed out: the step's time is over" + (", though it still runs" if still_running else "")
    except (_Refused, ToolFailed) as failed:
        error = str(failed)
    except Exception as failed:  # of a host's function; its words may hold secrets
        error = f"the tool failed with {type(failed).__name__}"
    output: dict[str, Any]
    if error is None:
        try:
            text = shown_text(result)
            output = {
                "result": result
                if isinstance(result, str) and result == text
                else json.decode(json.encode(_plain(result, text)))
            }
        except (TypeError, ValueError, MsgspecError, OverflowError):
            error = f"the tool gave a {type(result).__name__}, which JSON cannot hold"
    if error is not None:
        text, output = json.encode({"error": error}).decode(), {"error": error}
        if still_running:
            output["still_running"] = True
    step = Step(
        number=context.step,
        action="tool_call",
        tool=name,
        input=arguments_shown(call.function),
        output=output,
        duration_ms=round((clock.monotonic() - started) * 1000, 3),
        start_ms=0.0,
        cost_usd=context.spent_usd,
        trace_id=context.trace_id,
    )
    return step, Observation(call.id, text)


def _checked(tools: Mapping[str, Tool], call: ToolCall) -> tuple[Tool, dict[str, Any]]:
    """The tool and its arguments. Raises ``_Refused``."""
    name, raw = call.function.name, call.function.arguments or "{}"
    tool = tools.get(name)
    if tool is None:
        hint = did_you_mean(name, list(tools)) or f"known: {', '.join(tools) or 'none'}"
        raise _Refused(f"there is no tool {name!r}; {hint}")
    if len(raw) > MOST_ARGUMENTS:
        raise _Refused(f"the arguments have more than {MOST_ARGUMENTS} characters")
    try:
        arguments = _object(raw)
    except (MsgspecError, RecursionError):
        raise _Refused("the arguments are not one JSON object") from None
    wrong = [] if getattr(tool, "checks_arguments", False) else misfits(arguments, tool.spec.parameters)
    if wrong:
        raise _Refused("bad arguments: " + "; ".join(wrong))
    return tool, arguments


async def _approved(name: str, arguments: dict[str, Any], approve: Approve | None) -> bool:
    if approve is None:
        return True
    said = approve(name, arguments)
    return bool(await said if isawaitable(said) else said)


def shown_text(result: Any) -> str:
    """A result as the model is shown it."""
    text = result if isinstance(result, str) else json.encode(_builtin(result)).decode()
    if len(text) > MOST_CHARACTERS:
        return f"{text[:MOST_CHARACTERS]}\n[cut off: {len(text)} characters in all]"
    return text


def _plain(result: Any, text: str) -> Any:
    """A result as a step shows it: the text, where it was cut off."""
    return text if text.endswith(" characters in all]") else _builtin(result)


def _builtin(result: Any) -> Any:
    dump = getattr(result, "model_dump", None)  # of pydantic
    return dump(mode="json") if callable(dump) else result
