"""Types and checks of the arguments of a Router and its methods."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, cast, get_args

from routewright import wire
from routewright._core.accounts.keys import SCOPES
from routewright._core.accounts.terms import KEY_THERE, describe
from routewright._core.policy import check_policy
from routewright._core.request.rules import check_names
from routewright.errors import ValidationFailed
from routewright.protocols import Cache, Provider
from routewright.protocols import Tool as RunnableTool
from routewright.wire.account import holds_key
from routewright.wire.ids import normalise_trace_id
from routewright.wire.json_scan import is_unicode
from routewright.wire.problems import listed, shown

MAX_ACCOUNT_CHARS = 200
ENVIRONMENTS = get_args(wire.Environment)
_STORAGE = ("apply", "read", "scan", "sweep", "aclose")
"""Methods of a storage. From Python 3.12 on ``isinstance(storage, Storage)`` refuses storages that delegate by
``__getattr__``."""
_COORDINATION = ("announce", "hear", "aclose")
"""Methods of a coordination."""


class Dumps(Protocol):
    """A message of an SDK, such as OpenAI's or LangChain's."""

    def model_dump(self) -> dict[str, Any]: ...


RequestLike = str | Sequence[wire.Message | Mapping[str, Any] | Dumps] | Mapping[str, Any] | wire.RouteRequest
"""A request: a prompt, messages, a dict in wire spelling, or a ``RouteRequest``."""
RequestsLike = Iterable[RequestLike] | AsyncIterable[RequestLike]
"""Many requests; may be generated while the first are answered."""


class SharedOptions(TypedDict, total=False):
    """Options of ``route_many``, for each of its requests; dicts are in wire spelling."""

    goal: wire.Goal | None
    strategy: wire.Strategy | None
    policy_id: str | None
    models: Sequence[str] | None
    prefer: str | Sequence[str] | None
    fallback: wire.Fallback | wire.FallbackDict | None
    cache: bool | wire.CacheOpts | wire.CacheOptsDict | None
    tools: Sequence[wire.Tool | Mapping[str, Any] | RunnableTool | Callable[..., Any]] | None
    """Declarations, or functions to be declared by their signatures. The caller runs what the model calls."""
    tool_choice: str | wire.NamedToolChoice | Mapping[str, Any] | None
    params: wire.Params | wire.ParamsDict | None
    metadata: Mapping[str, Any] | None
    timeout_ms: float | None
    timeout: float | None
    """``timeout_ms`` in seconds."""
    max_retries: int | None
    """``maxRetries`` of ``fallback``."""


class Options(SharedOptions, total=False):
    """Fields of the route request as keywords (spec 2.1); dicts are in wire spelling."""

    budget: wire.Budget | wire.BudgetDict | None
    idempotency_key: str | None


def is_runnable(tool: object) -> bool:
    """True if a request's tool is a function or an agent's tool, not a declaration."""
    # a check against a protocol takes 30 µs
    return not isinstance(tool, dict | wire.Tool) and (callable(tool) or isinstance(tool, RunnableTool))


def check_storage(storage: object) -> None:
    """Raises ``ValidationFailed`` for anything but a storage."""
    _check_methods("storage", storage, _STORAGE, "pass SqliteStorage(path), MemoryStorage() or open_storage(url)")


def _check_methods(path: str, part: object, names: Sequence[str], hint: str) -> None:
    if isinstance(part, type) or not all(callable(getattr(part, name, None)) for name in names):
        raise ValidationFailed.at(path, f"{shown(part)} is not a {path}", hint)


def check_parts(providers: object, storage: object, coordination: object, cache: object) -> None:
    """Raises ``ValidationFailed`` for a wrong type, such as a file name, or one object instead of a list."""
    # These objects come from the host, and are used much later: a storage by the background thread, a provider's
    # ``open`` inside a call. A mistake would show there, as an AttributeError in a log or as a failed attempt, far from
    # the line that made it. So the constructor looks at them, without calling anything that may wait or read (P15:
    # import and construction are inert). A class passed in place of an object has all the methods, so types are refused
    # apart. Errors show a wrong object by its type only, since its repr may hold a key (P11).
    # Tests: test_an_invalid_list_of_providers_gets_a_hint, test_an_invalid_part_of_a_router_gets_a_hint,
    # test_a_provider_whose_open_returns_no_context_manager_is_refused.
    if providers is not None:
        if isinstance(providers, Provider):
            raise ValidationFailed.at("providers", f"{shown(providers)} is one provider, not a list", "pass a list")
        if not isinstance(providers, Sequence) or isinstance(providers, str):
            hint = "pass [OpenAIProvider(...)], or leave it out to use those of the environment"
            raise ValidationFailed.at("providers", f"{shown(providers)} is not a list of providers", hint)
        for index, provider in enumerate(providers):
            path = f"providers[{index}]"
            if not isinstance(provider, Provider) or not isinstance(provider.name, str):
                hint = "pass an object with name, models, open and aclose, such as an OpenAIProvider"
                raise ValidationFailed.at(path, f"{shown(provider)} is not a provider", hint)
            check_names({f"{path}.name": provider.name})
            if inspect.iscoroutinefunction(provider.open) or inspect.isasyncgenfunction(provider.open):
                hint = "decorate it with @asynccontextmanager, and yield an async iterator of chunks"
                raise ValidationFailed.at(path, f"open() of {provider.name!r} is a coroutine or generator", hint)
    if storage is not None:
        check_storage(storage)
    if coordination is not None:
        _check_methods("coordination", coordination, _COORDINATION, "pass MemoryCoordination(), or leave it out")
    if cache is not None and (isinstance(cache, type) or not isinstance(cache, Cache)):
        raise ValidationFailed.at("cache", f"{shown(cache)} is not a cache", "pass MemoryCache() or SqliteCache(path)")


def validate_policies(policies: object) -> tuple[wire.Policy, ...]:
    """Validate a list of policies and every field of them. Raises ``ValidationFailed``."""
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        hint = "pass PolicyFile(path), read_policies(path) or [Policy(...)]"
        raise ValidationFailed.at("policies", "is not a list of Policy", hint)
    return tuple(check_policy(policy, index) for index, policy in enumerate(policies))


def check_account(path: str, account: object) -> str:
    """A valid account name. Raises ``ValidationFailed``."""
    if not isinstance(account, str) or not 1 <= len(account) <= MAX_ACCOUNT_CHARS or not account.isprintable():
        problem = f"must be 1 to {MAX_ACCOUNT_CHARS} printable characters, got {shown(account)}"
        raise ValidationFailed.at(path, problem, 'for example "acme"')
    if account == wire.SYSTEM_ACCOUNT:
        raise ValidationFailed.at(path, f"{account!r} is the Router's own", "use another name")
    return account


def check_tenant(path: str, account: object) -> str:
    """The name of an account that may have a plan, or ``default``. Raises ``ValidationFailed``, without showing
    keys."""
    return wire.DEFAULT_ACCOUNT if account == wire.DEFAULT_ACCOUNT else check_owner(path, account)


def refuse_keys(arguments: Mapping[str, object]) -> None:
    """Raise ``ValidationFailed`` for arguments that contain an API key."""
    for path, value in arguments.items():
        if holds_key(str(value)):
            raise ValidationFailed.at(path, *KEY_THERE)


def check_choice(path: str, value: object, allowed: Sequence[object]) -> None:
    """Raises ``ValidationFailed``, without showing keys, unless the value is allowed."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
        names = [choice for choice in allowed if isinstance(choice, str)]
        raise ValidationFailed.at(
            path, f"is {describe(value)}", f"take {listed(names)}" if names else "take True or False"
        )


def check_owner(path: str, account: object) -> str:
    """The name of an account with a plan and keys. Raises ``ValidationFailed``, without showing keys."""
    if isinstance(account, str) and holds_key(account):
        raise ValidationFailed.at(path, *KEY_THERE)
    if account == wire.DEFAULT_ACCOUNT:
        raise ValidationFailed.at(path, "'default' stands for calls without an account", "use another name")
    return check_account(path, account)


def check_environment(environment: object) -> wire.Environment | None:
    """An environment, or None for both. Raises ``ValidationFailed``."""
    if environment is not None and environment not in ENVIRONMENTS:
        problem = f"must be 'production' or 'sandbox', got {shown(environment)}"
        raise ValidationFailed.at("environment", problem, "leave it out for both")
    return cast("wire.Environment | None", environment)


def make_feedback(
    trace_id: str, score: float, comment: str | None, at: float, environment: wire.Environment | None
) -> wire.PutFeedback:
    """A user's feedback on an answer, to be stored if its trace exists. Raises ``ValidationFailed``."""
    rating: object = score
    if isinstance(rating, bool) or not isinstance(rating, (int, float)) or not 0 <= rating <= 1:
        raise ValidationFailed.at("score", f"is {shown(score)}", "give a number from 0 (bad) to 1 (good)")
    text: object = comment
    if text is not None and not (isinstance(text, str) and is_unicode(text)):
        raise ValidationFailed.at("comment", f"must be valid Unicode text, got {shown(comment)}", "correct it")
    trace_id = normalise_trace_id(trace_id)
    return wire.PutFeedback(trace_id, float(score), comment, at, expect="present", environment=environment)


def check_deletes(everything: object, *, has_selection: bool) -> None:
    """Raises ``ValidationFailed`` unless the selection is clear."""
    if not isinstance(everything, bool):
        raise ValidationFailed.at("everything", f"is {shown(everything)}", "pass True, or leave it out")
    if everything and has_selection:
        raise ValidationFailed.at("everything", "cannot be combined with a selection", "leave out one of them")
    if not everything and not has_selection:
        hint = "pass trace_id, filter, since or until, or everything=True for all"
        raise ValidationFailed.at("", "no traces are selected", hint)


def check_caller(caller: object) -> None:
    """Raises ``ValidationFailed`` for a caller with an invalid account, environment, key or scope."""
    if not isinstance(caller, wire.Caller):
        raise ValidationFailed.at("caller", f"is {shown(caller)}", "pass Caller(account=...)")
    check_account("caller.account", caller.account)
    if caller.environment not in ENVIRONMENTS:
        problem = f"must be 'production' or 'sandbox', got {shown(caller.environment)}"
        raise ValidationFailed.at("caller.environment", problem, "leave it out for production")
    if caller.key_id is not None:
        check_key_id("caller.key_id", caller.key_id)
    scopes: object = caller.scopes
    if scopes is not None and not (isinstance(scopes, tuple) and all(scope in SCOPES for scope in scopes)):
        hint = f"pass a tuple of some of {', '.join(SCOPES)}, or None for all"
        raise ValidationFailed.at("caller.scopes", f"is {shown(scopes)}", hint)
    for field in ("models", "policies"):
        names = getattr(caller, field)
        if names is not None and not (names and isinstance(names, tuple) and {*map(type, names)} == {str}):
            raise ValidationFailed.at(f"caller.{field}", f"is {shown(names)}", "pass a tuple of names, or None for all")


def check_key_id(path: str, key_id: object) -> None:
    """Raises ``ValidationFailed``, without showing keys, unless this can be the id of a key."""
    if isinstance(key_id, str) and (key_id.startswith("sk_") or holds_key(key_id)):  # it would end up in traces
        raise ValidationFailed.at(path, "is an API key, not its id", "pass the Caller from Console.authenticate")
    if not isinstance(key_id, str) or not 1 <= len(key_id) <= MAX_ACCOUNT_CHARS or not key_id.isprintable():
        problem = f"must be a string of 1 to {MAX_ACCOUNT_CHARS} printable characters, got {shown(key_id)}"
        raise ValidationFailed.at(path, problem, "Console.keys() lists the ids")
