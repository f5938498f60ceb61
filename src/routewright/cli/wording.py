"""What the library says, in the words of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

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
OF_A_STORE = ("traces", "analytics", "feedback", "ledger", "accounts", "keys", "incidents", "secret", "store")
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
    "Settings(rollup_keys=...)": "the setting rollup_keys",
}


def said(text: object, args: Arguments) -> str:
    """What the library says, with options in the place of fields."""
    message = str(text)
    if args.request is not None or args.command in (*OF_A_STORE, "serve"):
        return message  # who writes JSON knows the fields by their own names; a filter's keys are no options
    for field, option in _OPTIONS.items():
        message = message.replace(field, option)
    return message


_OF_A_CONSOLE = {
    "account": "ACCOUNT",
    "budget_usd": "--budget",
    "force": "",  # it is what was not given
    "id": "--id",
    "limits": "--requests-per-min, --tokens-per-min, --concurrency",
    "monthly_limit_usd": "--monthly-limit",
    "note": "--note",
    "scopes": "--scope",
    "status_url": "--status-url",
    "title": "TITLE",
    "usd": "USD",
}
"""The same of accounts, keys and incidents."""
_CONSOLE_HINTS = {
    "pass RateLimits(requests_per_min=..., ...)": "give one of them at least",
    "change_account() changes its terms": "'routewright accounts change' changes its terms",
    "force=True ends them": "--force ends them",
}


_OF_A_LEDGER = {
    "account": "--account",
    "attempt": "ATTEMPT",
    "cost_usd": "--cost",
    "first": "--first",
    "last": "--last",
    "limit": "--limit",
    "month": "MONTH",
    "note": "--note",
    "path": "FILE",
    "provider": "--provider",
    "since": "--since",
    "tolerance": "--tolerance",
    "until": "--until",
    "usage": "--input, --output",
}
"""The same of a ledger."""
_LEDGER_HINTS = {
    "or pass a datetime with a time zone": "or how long ago, as 30m, 2h, 7d",
    "pass one of them, or both": "give it, or --input and --output, or all of them",
    "pass cost_usd, too": "give --cost, too",
    "0.01 is 1 %": "as 1%",
}


def arguments_named() -> AbstractContextManager[None]:
    """Let problems with arguments of a ``TraceStore`` name what was written on the command line."""
    return _named(_ARGUMENTS, _HINTS)


def console_named(name: str = "NAME") -> AbstractContextManager[None]:
    """The same of a ``Console``, some of whose methods take a ``name``."""
    return _named(_OF_A_CONSOLE | {"name": name}, _CONSOLE_HINTS)


def ledger_named(trace_id: str) -> AbstractContextManager[None]:
    """The same of a ``Ledger``. ``trace_id``: where that is given."""
    return _named(_OF_A_LEDGER | {"trace_id": trace_id}, _LEDGER_HINTS)


@contextmanager
def _named(arguments: Mapping[str, str], hints: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except ValidationFailed as error:
        if not error.problems:
            raise
        found = [
            each._replace(path=_argument(each.path, arguments), hint=_hint(each.hint, hints)) for each in error.problems
        ]
        raise ValidationFailed.of(*found) from error


def _argument(path: str, arguments: Mapping[str, str]) -> str:
    name, bracket, rest = path.partition("[")
    return f"{arguments.get(name, name)}{bracket}{rest}"


def _hint(hint: str, hints: Mapping[str, str]) -> str:
    for theirs, ours in hints.items():
        hint = hint.replace(theirs, ours)
    return hint
