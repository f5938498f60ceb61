"""Settings of a Router, in small groups with defaults."""

from __future__ import annotations

from inspect import iscoroutinefunction
from math import inf
from random import SystemRandom
from typing import Any, get_args

from msgspec import Struct, field

from . import protocols
from ._core.analytics.report import check_keys
from ._core.attempts.timeouts import ExecutionLimits as ExecutionLimits
from ._core.webhooks.outbox import DELAYS_S, MAX_ATTEMPTS
from ._engine.capture import Capturing
from .backends.clock import SystemClock as SystemClock
from .errors import ValidationFailed
from .wire import Durability, SetRetention, UnknownAccounts
from .wire.problems import shown

DAY_S = 24 * 3600.0
MAX_DAYS = 36_500

_PARTS = {
    "clock": (("virtual", "time", "monotonic", "sleep", "deadline"), "pass SystemClock(), or FakeClock() in tests"),
    "rng": (("random", "getrandbits"), "pass random.Random(seed)"),
    "predictor": (("predict",), "pass an object with predict(request, models), or None"),
    "tokens": (("count",), "pass an object with count(text, encoding)"),
}
"""The attributes that each part needs, and the hint for anything else."""


def _check_numbers(settings: Struct, **maxima: float) -> None:
    """Refuse fields that are not numbers from 0 to the given limits."""
    for name, limit in maxima.items():
        value: object = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
            raise _refusal(f"{type(settings).__name__}.{name}", value, f"take a number from 0 to {limit}")


class Limits(Struct, frozen=True, kw_only=True):
    """Defaults for requests that set no limits."""

    default_max_output_tokens: int = 4_096
    """Output cap for calls with a limit of money or tokens (contract 7). A model that usually needs more gets more."""

    def __post_init__(self) -> None:
        tokens: object = self.default_max_output_tokens
        if type(tokens) is not int or tokens < 1:
            raise _refusal("Limits.default_max_output_tokens", tokens, "take at least 1")


class Retention(Struct, frozen=True, kw_only=True):
    """How long a durable store keeps traces (contract 9). Reports still count removed traces.

    router = Router(storage=SqliteStorage("traces.db"), settings=Settings(retention=Retention(production_days=90)))"""

    production_days: float | None = 30
    """None: for ever."""
    sandbox_days: float | None = 1

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            days: object = getattr(self, name)
            fits = isinstance(days, int | float) and not isinstance(days, bool) and 0 < days <= MAX_DAYS
            if days is not None and not fits:
                raise _refusal(f"Retention.{name}", days, f"take a number of days above 0, at most {MAX_DAYS}, or None")

    @property
    def write(self) -> SetRetention:
        """The write for a storage."""
        production_s, sandbox_s = (days and days * DAY_S for days in (self.production_days, self.sandbox_days))
        return SetRetention(production_s=production_s, sandbox_s=sandbox_s)

    @classmethod
    def of(cls, write: SetRetention) -> Retention:
        """The retention that a storage reports."""
        production, sandbox = (s if s is None else s / DAY_S for s in (write.production_s, write.sandbox_s))
        return cls(production_days=production, sandbox_days=sandbox)


class Capture(Struct, frozen=True, kw_only=True):
    """Keep prompts and answers in traces, as ``Trace.content``, after redaction.

    router = Router(settings=Settings(capture=Capture(prompts=False)))"""

    prompts: bool = True
    answers: bool = True
    redactor: protocols.Redactor | None = None
    """Returns the text to keep; called in any thread. None: replaces e-mail addresses, telephone, card and bank account
    numbers, and keys. If it raises, the text is not kept, and the call goes on."""

    def __post_init__(self) -> None:
        redactor: object = self.redactor
        if redactor is not None and (not callable(redactor) or iscoroutinefunction(redactor)):
            kind = "an async function" if iscoroutinefunction(redactor) else shown(redactor)
            raise ValidationFailed.at("Capture.redactor", f"is {kind}", "pass a plain function that takes a text")

    @property
    def started(self) -> Capturing:
        """The object that captures."""
        return Capturing(self.redactor, prompts=self.prompts, answers=self.answers)


class CacheSettings(Struct, frozen=True, kw_only=True):
    """How the response cache finds and checks answers, for requests that use it.

    router = Router(settings=Settings(cache=CacheSettings(judge_usd_a_day=0)))"""

    embedder: protocols.Embedder | None = None
    """Turns questions into vectors; None: ``HashedEmbedder()``, which needs no network."""
    comparators: tuple[protocols.AnswerComparator, ...] | None = None
    """Judge if a cached answer would have been right; the first that can tell decides. None:
    ``NormalisedEquality()``."""
    judge_usd_a_day: float = 1.0
    """Daily limit per process on the cost of a model that judges if no comparator can tell. 0: no model judges, and
    answers that no comparator accepts count as wrong."""
    low_hit_rate: float = 0.05
    """Below this share of hits, over an hour with 100 look-ups, ``cache.evicted`` is emitted."""

    def __post_init__(self) -> None:
        if self.embedder is not None and not isinstance(self.embedder, protocols.Embedder):
            raise _refusal("CacheSettings.embedder", self.embedder, "pass an object with name and embed(text)")
        if not isinstance(self.comparators, tuple | list | None):
            raise _refusal("CacheSettings.comparators", self.comparators, "pass a tuple of comparators")
        for comparator in self.comparators or ():
            if not hasattr(comparator, "compare") or isinstance(comparator, type):
                hint = "pass objects with compare(question, cached, live)"
                raise _refusal("CacheSettings.comparators", comparator, hint)
        _check_numbers(self, judge_usd_a_day=inf, low_hit_rate=1)


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """How this Router delivers webhooks to the endpoints that ``Console`` registers.

    router = Router(storage=SqliteStorage("t.db"), settings=Settings(webhooks=WebhookSettings(deliver=False)))"""

    deliver: bool = True
    """False: another process delivers, such as ``routewright webhooks run``."""
    max_attempts: int = MAX_ATTEMPTS
    """Attempts in all, 1 to 6; the sixth is four hours after the fifth."""
    allow_loopback: bool = False
    """For development: deliver to this machine, also over plain http."""
    transport: protocols.WebhookTransport | None = None
    """Replaces the default, for instance to use your egress proxy. Closed with the Router."""

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        maximum = len(DELAYS_S) + 1
        if type(attempts) is not int or not 1 <= attempts <= maximum:
            raise _refusal("WebhookSettings.max_attempts", attempts, f"take 1 to {maximum}")

    def open_transport(self) -> protocols.WebhookTransport:
        """The transport to use."""
        if self.transport is not None:
            return self.transport
        from .backends.transport.webhooks import AiohttpWebhooks  # loads aiohttp

        return AiohttpWebhooks(allow_loopback=self.allow_loopback)


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a Router.

    router = Router(settings=Settings(limits=Limits(default_max_output_tokens=1_000)))"""

    limits: Limits = Limits()
    execution: ExecutionLimits = ExecutionLimits()
    retention: Retention | None = None
    """How long the storage keeps traces; None: as set before, initially 30 days, and one day in the sandbox. Memory
    keeps a fixed number instead, unless set."""
    capture: Capture | None = None
    """Keep prompts and answers in traces; None: they are not stored."""
    cache: CacheSettings = CacheSettings()
    webhooks: WebhookSettings = WebhookSettings()
    durability: Durability = "buffered"
    """``buffered``: answer at once, and write the trace within 50 ms. ``committed``: answer once the trace is on
    disk."""
    rollup_keys: tuple[str, ...] = ()
    """Metadata keys that usage reports can group by, besides ``tenant`` and ``workflow``; at most 8."""
    workload_keys: tuple[str, ...] = ()
    """Metadata keys whose values split calls of a policy into workloads, each with its own answer length and pace; at
    most 8. Choose keys with few values."""
    unknown_accounts: UnknownAccounts = "auto"
    """Calls of accounts that the storage does not know. ``auto``: they are served while the storage knows none but
    ``default``, with one warning, and refused within two seconds after; ``serve``, ``refuse``: always."""
    traceparent_to: tuple[str, ...] = ()
    """Names of providers that receive the ``traceparent`` header of traced calls; ``"*"``: all. None by default, to
    keep ids of your systems from vendors."""
    warm_prefixes: bool = True
    """Price the part of a prompt that the vendor is expected to have cached as cached input."""
    stale_after_days: int | None = 90
    """Age in days above which a Router warns, once, that its prices are old; None: never."""
    clock: protocols.Clock = field(default_factory=SystemClock)
    rng: protocols.Rng = field(default_factory=SystemRandom)
    """The source of random numbers; ``random.Random(seed)`` makes a run repeatable."""
    predictor: protocols.QualityPredictor | None = None
    """Predicts how well each model would answer a request; None: the catalogue's figures for every request."""
    tokens: protocols.TokenCounter | None = None
    """Counts tokens if bounds do not suffice; None: the bundled vocabularies."""
    preload_tokens: bool = True
    """Load token tables before a server is ready (75 to 110 MB per process) if any model can be called. False: at the
    first count, which delays all requests by a quarter of a second."""

    def __post_init__(self) -> None:
        for name, (kind, hint) in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise _refusal(f"Settings.{name}", getattr(self, name), hint)
        if self.durability not in get_args(Durability):
            raise _refusal("Settings.durability", self.durability, "take 'buffered' or 'committed'")
        if self.unknown_accounts not in get_args(UnknownAccounts):
            raise _refusal("Settings.unknown_accounts", self.unknown_accounts, "take 'auto', 'serve' or 'refuse'")
        check_keys("Settings.rollup_keys", self.rollup_keys)
        check_keys("Settings.workload_keys", self.workload_keys)
        names: object = self.traceparent_to
        hint = "pass a tuple of names, such as ('vllm',), or ('*',) for all"
        if not isinstance(names, tuple | list | set | frozenset):
            raise _refusal("Settings.traceparent_to", names, hint)
        for provider in names:
            if not isinstance(provider, str) or not provider:
                raise ValidationFailed.at("Settings.traceparent_to", f"names {shown(provider)}", hint)
        days: object = self.stale_after_days
        if days is not None and (type(days) is not int or days < 0):
            raise _refusal("Settings.stale_after_days", days, "take a number of days, or None")
        for name, (needed, hint) in _PARTS.items():
            part = getattr(self, name)
            if part is None and name in ("predictor", "tokens"):
                continue
            if isinstance(part, type | str) or not all(hasattr(part, attribute) for attribute in needed):
                description = f"the class {part.__name__}" if isinstance(part, type) else shown(part)
                raise ValidationFailed.at(f"Settings.{name}", f"is {description}", hint)


_KINDS: dict[str, tuple[Any, str]] = {
    "limits": (Limits, "pass Limits(...)"),
    "execution": (ExecutionLimits, "pass ExecutionLimits(...)"),
    "retention": (Retention | None, "pass Retention(...)"),
    "capture": (Capture | None, "pass Capture(...)"),
    "warm_prefixes": (bool, "take True or False"),
    "preload_tokens": (bool, "take True or False"),
    "cache": (CacheSettings, "pass CacheSettings(...)"),
}
"""The type of each setting, and the hint for anything else."""


def _refusal(path: str, value: object, hint: str) -> ValidationFailed:
    return ValidationFailed.at(path, f"is {shown(value)}", hint)
