"""What the library says, in the words of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from routewright.errors import ValidationFailed

from .options import Arguments

_OPTIONS = {
    "budget.maxCostUsd": "--max-cost",
    "budget.maxTokens": "--max-tokens",
    "params.max_output_tokens": "--max-output-tokens",
    "timeout_ms": "--timeout-ms",
    "policy_id": "--policy",
    "pass it to Router(policies=...)": "give its file as --policies",
    "Router.models()": "'routewright models --all'",
    "pass Router(providers=[...]), or use Router.sandbox()": "or add --sandbox",
}
"""What the library's messages name, and what it is here."""
OF_A_STORE = ("traces", "analytics", "feedback", "store")
"""The commands that are about a store."""
_ARGUMENTS = {
    "account": "--account",
    "bucket": "--bucket",
    "comment": "COMMENT",
    "end_date": "--end-date",
    "environment": "--environment",
    "filter": "FILTER",
    "group_by": "--group-by",
    "limit": "--limit",
    "Retention.production_days": "--production-days",
    "Retention.sandbox_days": "--sandbox-days",
    "score": "SCORE",
    "since": "--since",
    "start_date": "--start-date",
    "trace_id": "ID",
    "until": "--until",
}
"""Where a problem lies with what is said of a store, and what that is here."""
_HINTS = {
    "or pass a datetime with a time zone": "or how long ago, as 30m, 2h, 7d",
    "bucket=day": "--bucket day",
    "or None": "or forever",
}


def said(text: object, args: Arguments) -> str:
    """What the library says, with options in the place of fields."""
    message = str(text)
    if args.request is not None or args.command in OF_A_STORE:
        return message  # who writes JSON knows the fields by their own names; a filter's keys are no options
    for field, option in _OPTIONS.items():
        message = message.replace(field, option)
    return message


@contextmanager
def arguments_named() -> Iterator[None]:
    """Let problems with arguments of a ``TraceStore`` name what was written on the command line."""
    try:
        yield
    except ValidationFailed as error:
        if not error.problems:
            raise
        found = [each._replace(path=_argument(each.path), hint=_hint(each.hint)) for each in error.problems]
        raise ValidationFailed.of(*found) from error


def _argument(path: str) -> str:
    name, bracket, rest = path.partition("[")
    return f"{_ARGUMENTS.get(name, name)}{bracket}{rest}"


def _hint(hint: str) -> str:
    for theirs, ours in _HINTS.items():
        hint = hint.replace(theirs, ours)
    return hint
