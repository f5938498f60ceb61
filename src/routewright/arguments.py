"""Checks what is passed to a Router and its methods."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import cast, get_args

from ._core.account import SCOPES, holds_key
from ._core.policy import checked_policy
from ._core.request.json_scan import is_unicode
from ._core.request.problems import shown
from ._core.request.rules import check_names
from ._core.terms import KEY_THERE
from ._core.trace.ids import normalise_trace_id
from ._core.traceparent import TraceParent, parse_traceparent
from .catalogue import Catalogue
from .errors import Problem, ValidationFailed
from .policy_file import PolicyFile
from .protocols import Provider
from .settings import Settings
from .wire import DEFAULT_ACCOUNT, SYSTEM_ACCOUNT, Caller, Environment, Policy, PutFeedback, RouteRequest

MAX_ACCOUNT_CHARS = 200
ENVIRONMENTS = get_args(Environment)
_STORAGE = ("apply", "read", "scan", "sweep", "aclose")
"""What a storage does. Not asked as ``isinstance(storage, Storage)``, which from Python 3.12 on refuses one that hands
its calls on by ``__getattr__``."""
_MEETS = ("take", "end", "renew", "announce", "hear", "aclose")
"""What a coordination does."""


def check_storage(storage: object) -> None:
    """Refuse what is no storage. Raises ``ValidationFailed``."""
    if isinstance(storage, type) or not all(callable(getattr(storage, name, None)) for name in _STORAGE):
        raise ValidationFailed.of(
            Problem(
                "storage",
                f"{shown(storage)} is not a storage",
                "pass SqliteStorage(path), MemoryStorage() or open_storage(url)",
            )
        )


def check_coordination(coordination: object) -> None:
    """Refuse what is no coordination, nor None for that which goes with the storage. Raises ``ValidationFailed``."""
    given = not isinstance(coordination, type) and all(callable(getattr(coordination, name, None)) for name in _MEETS)
    if coordination is not None and not given:
        problem = f"{shown(coordination)} is not a coordination"
        hint = "pass MemoryCoordination() or SqliteCoordination(path), or leave it out"
        raise ValidationFailed.of(Problem("coordination", problem, hint))


def check_parts(providers: object, catalogue: object, policies: object, storage: object, settings: object) -> None:
    """Refuse what is not of its kind: the name of a file, say, or one thing in the place of a list.

    Raises ``ValidationFailed``.
    """
    if providers is not None:
        _check_providers(providers)
    if catalogue is not None and not isinstance(catalogue, Catalogue):
        problem = Problem("catalogue", f"is {type(catalogue).__name__}", "pass Catalogue.load(path) or a Catalogue")
        raise ValidationFailed.of(problem)
    if not isinstance(policies, PolicyFile):
        _check_policies(policies)
    if storage is not None:
        check_storage(storage)
    if not isinstance(settings, Settings):
        raise ValidationFailed.of(Problem("settings", f"{shown(settings)} is not Settings", "pass Settings(...)"))


def _check_policies(policies: object) -> None:
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        hint = "pass PolicyFile(path), read_policies(path) or [Policy(...)]"
        raise ValidationFailed.of(Problem("policies", "is not a list of Policy", hint))


def check_replaceable(policies: object, file: PolicyFile | None) -> None:
    """Refuse what cannot take the place of the policies in force. Raises ``ValidationFailed``."""
    _check_policies(policies)
    if file is not None:
        hint = "change the file, and call reload_policies() to have it taken at once"
        raise ValidationFailed.of(Problem("policies", f"are those of {file.path}", hint))


def checked_policies(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    """Policies whose every field holds. Raises ``ValidationFailed``."""
    return tuple(checked_policy(policy, place) for place, policy in enumerate(policies))


def _check_providers(providers: object) -> None:
    if isinstance(providers, Provider):
        problem = f"{shown(providers)} is one provider, not a list"
        raise ValidationFailed.of(Problem("providers", problem, "put it into one: providers=[...]"))
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        hint = "pass [OpenAIProvider(...)]; without the argument they are found from the environment"
        raise ValidationFailed.of(Problem("providers", f"{shown(providers)} is not a list of providers", hint))
    for place, provider in enumerate(providers):
        if not isinstance(provider, Provider) or not isinstance(provider.name, str):
            hint = "pass an OpenAIProvider, a CallableProvider, or what has name, models, open and aclose as they do"
            raise ValidationFailed.of(Problem(f"providers[{place}]", f"{shown(provider)} is not a provider", hint))
        check_names({f"providers[{place}].name": provider.name})
        if inspect.iscoroutinefunction(provider.open) or inspect.isasyncgenfunction(provider.open):
            problem = f"open() of {provider.name!r} is a coroutine or generator"
            hint = "decorate it with @asynccontextmanager, and yield an async iterator of chunks"
            raise ValidationFailed.of(Problem(f"providers[{place}]", problem, hint))


def check_many(requests: object, limit: object) -> None:
    """Refuse one request where many are meant, and a limit that is none."""
    if isinstance(requests, str | Mapping | RouteRequest):
        problem = Problem("requests", f"{type(requests).__name__} is one request, not many", "put it into a list")
        raise ValidationFailed.of(problem)
    if not isinstance(requests, Iterable | AsyncIterable):
        raise ValidationFailed.of(Problem("requests", f"{shown(requests)} holds no requests", "pass a list of them"))
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValidationFailed.of(Problem("limit", f"must be a whole number of at least 1, got {shown(limit)}", ""))


def check_account(path: str, account: object) -> str:
    """The name of an account, if it is one. Raises ``ValidationFailed``."""
    if not isinstance(account, str) or not 1 <= len(account) <= MAX_ACCOUNT_CHARS or not account.isprintable():
        problem = f"must be 1 to {MAX_ACCOUNT_CHARS} printable characters, got {shown(account)}"
        raise ValidationFailed.of(Problem(path, problem, ""))
    if account == SYSTEM_ACCOUNT:
        raise ValidationFailed.of(Problem(path, f"{account!r} is the Router's own", "use another name"))
    return account


def check_owner(path: str, account: object) -> str:
    """The name of an account that may have a plan and keys. Raises ``ValidationFailed``, which shows no key."""
    if isinstance(account, str) and holds_key(account):
        raise ValidationFailed.of(Problem(path, *KEY_THERE))
    if account == DEFAULT_ACCOUNT:
        hint = "use another name: calls that name no account are 'default', which has no limits"
        raise ValidationFailed.of(Problem(path, "'default' is nobody's account", hint))
    return check_account(path, account)


def check_new_owner(path: str, account: object) -> str:
    """The name of one that is to be set up, which nobody takes for another. Raises ``ValidationFailed``."""
    name = check_owner(path, account)
    if name != name.strip():
        problem = f"must neither begin nor end with a blank, got {shown(name)}"
        raise ValidationFailed.of(Problem(path, problem, "leave it out"))
    return name


def check_environment(environment: object) -> Environment | None:
    """An environment, or None for both. Raises ``ValidationFailed``."""
    if environment is not None and environment not in ENVIRONMENTS:
        problem = f"must be 'production' or 'sandbox', got {shown(environment)}"
        raise ValidationFailed.of(Problem("environment", problem, "leave it out for both"))
    return cast("Environment | None", environment)


def checked_feedback(
    trace_id: str, score: float, comment: str | None, at: float, environment: Environment | None
) -> PutFeedback:
    """What a user says of an answer, to be kept if its trace is there. Raises ``ValidationFailed``."""
    given: object = score
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise ValidationFailed.of(Problem("score", f"is {shown(score)}", "give a number from 0 (bad) to 1 (good)"))
    said: object = comment
    if said is not None and not (isinstance(said, str) and is_unicode(said)):
        raise ValidationFailed.of(Problem("comment", f"must be a string of whole characters, got {shown(comment)}", ""))
    trace_id = normalise_trace_id(trace_id)
    return PutFeedback(trace_id, float(score), comment, at, expect="present", environment=environment)


def checked_traceparent(header: object) -> TraceParent:
    """Read what a program says it is called from. Raises ``ValidationFailed``."""
    found = parse_traceparent(header) if isinstance(header, str) else None
    if found is None:
        hint = "pass version-trace-span-flags in hexadecimal, such as 00-<32 digits>-<16 digits>-01, not all zero"
        raise ValidationFailed.of(Problem("traceparent", f"is {shown(header)}", hint))
    return found


def check_deletes(everything: object, *, named: bool) -> None:
    """Refuse to delete what is not clearly meant. Raises ``ValidationFailed``."""
    if not isinstance(everything, bool):
        problem = Problem("everything", f"is {shown(everything)}", "pass True, or leave it out")
    elif everything and named:
        problem = Problem("everything", "is more than what else is given", "leave out one of them")
    elif not everything and not named:
        hint = "pass trace_id, filter, since or until; everything=True deletes all of the account"
        problem = Problem("", "delete() does not say which traces", hint)
    else:
        return
    raise ValidationFailed.of(problem)


def check_caller(caller: object) -> None:
    """Refuse what would be billed to nobody, answered in no environment, or kept among the Router's own things."""
    if not isinstance(caller, Caller):
        raise ValidationFailed.of(Problem("caller", f"is {shown(caller)}", "pass Caller(account=...)"))
    check_account("caller.account", caller.account)
    if caller.environment not in ENVIRONMENTS:
        problem = f"must be 'production' or 'sandbox', got {shown(caller.environment)}"
        raise ValidationFailed.of(Problem("caller.environment", problem, ""))
    if caller.key_id is not None:
        check_key_id("caller.key_id", caller.key_id)
    scopes: object = caller.scopes
    if scopes is not None and not (isinstance(scopes, tuple) and all(each in SCOPES for each in scopes)):
        hint = f"pass a tuple of some of {', '.join(SCOPES)}, or None for all"
        raise ValidationFailed.of(Problem("caller.scopes", f"is {shown(scopes)}", hint))


def check_key_id(path: str, key_id: object) -> None:
    """Refuse what can be no key's id. Raises ``ValidationFailed``, which shows no key."""
    if isinstance(key_id, str) and (key_id.startswith("sk_") or holds_key(key_id)):  # it would stand in traces
        hint = "pass the key's id, or the Caller that Console.authenticate gives"
        raise ValidationFailed.of(Problem(path, "is an API key itself", hint))
    if not isinstance(key_id, str) or not 1 <= len(key_id) <= MAX_ACCOUNT_CHARS or not key_id.isprintable():
        problem = f"must be a string of 1 to {MAX_ACCOUNT_CHARS} printable characters, got {shown(key_id)}"
        raise ValidationFailed.of(Problem(path, problem, ""))
