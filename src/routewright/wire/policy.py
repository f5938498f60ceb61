"""Policies, and statistics of models learned from attempts and traffic."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import Literal, TypeAlias

from .account import Durability, Expect
from .plain import Struct
from .request import Budget, CacheOpts, Goal, OnPartial, Params, Strategy

Stage = Literal["input", "output"]  # a text is checked on its way to a model, or from it
GuardrailAction = Literal["redact", "block"]
PatternKind = Literal["email", "phone", "card", "iban", "api_key"]


class Allow(Struct, frozen=True):
    """Nothing was found."""


class Redaction(Struct, frozen=True):
    """Replaces the characters from ``start`` up to ``end``, exclusive."""

    start: int
    end: int
    rule: str
    replacement: str = "[redacted]"


class Redact(Struct, frozen=True):
    """The text may pass with these parts replaced. They are in order and do not overlap."""

    parts: tuple[Redaction, ...]


class Block(Struct, frozen=True):
    """The text may not pass."""

    rule: str


Verdict = Allow | Redact | Block


class PolicyFallback(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A policy's fallback chain. ``on_refusal="fallback"`` tries the next model if a provider refuses the content."""

    models: list[str] | None = None
    """Ids or aliases of models to try, in order; the policy must allow them. ``[]`` disables fallback."""
    max_retries: float | None = None
    """Retries of the same model."""
    on_partial: OnPartial | None = None
    """What to do if a model fails during its answer."""
    on_refusal: Literal["fail", "fallback"] = "fail"
    """``fallback``: try the next model if a provider's moderation refuses."""
    hedge: bool = False
    """True: also start the next model if the first one takes unusually long to respond."""


class PolicyWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights of the score in percent: integers that add up to 100."""

    quality: float
    """Quality of the answer, from the catalogue or a predictor."""
    cost: float
    """Expected cost of the request."""
    latency: float
    """Expected time to the complete answer."""
    stability: float
    """Weight of the share of calls that succeed."""


class PolicyGuardrail(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Redacts or blocks kinds of data, words, or both."""

    patterns: list[PatternKind] | None = None
    """Kinds of data to look for."""
    deny: list[str] | None = None
    """Words and phrases to look for. Case does not matter."""
    custom: dict[str, str] | None = None
    """Regular expressions to look for, by the name of their finding."""
    action: GuardrailAction
    """What to do with matches."""
    stages: list[Stage] | None = None
    """Where to look: in requests (``input``), in answers (``output``), or in both, which is the default."""


Capability = Literal["image", "tools", "json", "reasoning"]


class PolicyMatch(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Conditions on a request. All must hold."""

    metadata: dict[str, str | int | float | bool]
    """Values that the request's metadata must have."""


class PolicyWhen(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Conditions on how much of its limits the caller has spent, such as ``">0.8"``, ``">=0.5"`` or ``"<0.2"``. All
    must hold. Of several limits for a period, the one that is used up most counts; without any, no condition holds."""

    spent_of_day: str | None = None
    """The share of a daily limit, of the account or the key."""
    spent_of_week: str | None = None
    """The share of a weekly limit."""
    spent_of_month: str | None = None
    """The share of a monthly limit."""


class SpentShares(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How much of its limits a caller has spent, in millionths. None: no limit for that period."""

    day: int | None = None
    week: int | None = None
    month: int | None = None


class PolicyRules(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rules of a policy. A request can only narrow its limits and lists."""

    goal: Goal | None = None
    """Overrides the request's."""
    strategy: Strategy | None = None
    """Overrides the request's."""
    weights: PolicyWeights | None = None
    """Replaces ``goal`` and ``strategy``, which must be left out."""
    models: list[str] | None = None
    """Allowed models: ids, aliases, globs (``openai/*``), ``provider:openai``, ``tag:eu``, ``capability:image``."""
    exclude: list[str] | None = None
    """Excluded models, in the same notation."""
    capabilities: list[Capability] | None = None
    """Only models with all of these capabilities."""
    regions: list[str] | None = None
    """Only models known to be available in all of these regions."""
    min_quality: float | None = None
    """Only models with at least this quality, 0 to 1."""
    max_latency_ms: float | None = None
    """Only models whose complete answer is expected within this time."""
    prefer: list[str] | None = None
    """Ids or aliases of models to try first, in order, after those that the request prefers."""
    fallback: PolicyFallback | None = None
    """Replaces the default fallback chain."""
    params: Params | None = None
    """Defaults for the request's parameters. ``max_output_tokens`` is an upper limit. ``extra`` is merged; the
    request's fields take precedence."""
    budget: Budget | None = None
    """Upper limit of a request's budget."""
    cache: bool | CacheOpts | None = None
    """Whether and how answers may come from the cache. A request may turn it off or tighten it."""
    timeout_ms: float | None = None
    """Time limit for the whole call."""
    guardrails: list[PolicyGuardrail] | None = None
    """Guardrails, applied in order; each sees the text as redacted by the previous ones."""


class PolicyClass(PolicyRules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rules for matching requests. Fields that are set override the policy's."""

    match: PolicyMatch | None = None
    """Requests that the class applies to. It needs this, ``when``, or both."""
    when: PolicyWhen | None = None
    """Callers that it applies to, by what they have spent."""
    name: str = ""
    """Name in traces and ``explain``. Default: its conditions."""


class Policy(PolicyRules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Named rules. Goal and strategy override the request's; a request can only narrow limits and lists."""

    name: str
    """Name that requests use. May not contain ``@``, which separates name and date in ``policy_version``."""
    id: str = ""
    """Id that requests can use instead. Default: ``pol_`` and 26 characters derived from the name."""
    created_at: str | None = None
    """RFC 3339. Default: the time when this content was first stored."""
    classes: list[PolicyClass] | None = None
    """Rules for particular requests. The first class that matches applies."""
    shadow: str | None = None
    """Name of a draft or another policy that also decides every request, without calling a model: traces show how."""


class PolicyVersion(Struct, frozen=True):
    """A version of a policy."""

    content: str
    """Hash of the content."""
    label: str
    """``<policy_name>@<YYYY-MM-DD>``; later versions of the same day end in ``.2``, ``.3`` ..."""
    created_at: str
    policy: Policy | None = None
    """Null for versions from before texts were stored."""
    by: str = ""
    """Who published it first."""
    note: str = ""
    """Reason of the first publication."""


class PolicyShare(Struct, frozen=True):
    """A version that serves a part of a policy's traffic."""

    content: str
    """Hash of the version's content."""
    fraction: float
    """Above 0 and below 1."""
    by: str = "account"
    """``account``, or ``metadata.<key>``: requests with the same value get the same version."""


class PolicyDifference(Struct, frozen=True):
    """A field of a policy that differs."""

    path: str
    """Such as ``budget.maxCostUsd``, or ``classes[premium].models``."""
    before: str | None
    """Value as JSON. Null: not set."""
    after: str | None


class WeightShift(Struct, frozen=True):
    """Weights of the score that differ, for requests that set neither goal nor strategy."""

    policy_class: str
    """Name of the class. Empty: requests of no class."""
    before: PolicyWeights | None
    """Null: the class is new."""
    after: PolicyWeights | None


class PolicyDiff(Struct, frozen=True):
    """What a draft changes."""

    name: str
    against: str | None
    """Label of the version that it is compared with. Null: with nothing."""
    differences: tuple[PolicyDifference, ...]
    """Fields that differ, by path."""
    weights: tuple[WeightShift, ...]
    """What the differences do to the weights."""


class PolicyRecord(Struct, frozen=True, kw_only=True):
    """What the storage knows of a policy name: its draft, and what is published."""

    name: str
    owner: str = "storage"
    """``storage``, ``code``, or ``file <path>``: who publishes the name."""
    draft: Policy | None = None
    """What the next publication puts in force. Null beside ``drafted_at``: a later version wrote it, which this one
    cannot read."""
    drafted_at: str | None = None
    drafted_by: str = ""
    content: str | None = None
    """Hash of the version in force. Null: none is published."""
    share: PolicyShare | None = None
    """A second version in force, for a part of the traffic."""
    previous: tuple[str, ...] = ()
    """Contents in force before, newest last."""
    changed_at: str
    """Last change of what is in force, or of the owner."""
    changed_by: str = ""
    note: str = ""
    """Reason of the last publication."""


class PolicyState(Struct, frozen=True):
    """A record with the versions that serve."""

    record: PolicyRecord
    version: PolicyVersion | None
    """The version in force. For a name that a file or code owns, its newest."""
    shared: PolicyVersion | None
    """The version of ``record.share``."""


class PutPolicyRecord(Struct, frozen=True, tag=True):
    """Create or replace the record of a policy name. Applied under ``SYSTEM_ACCOUNT``."""

    record: PolicyRecord
    expect: Expect | PolicyRecord | None = None
    """A ``PolicyRecord``: fail unless the stored one equals it."""
    durability: Durability = "committed"


class PolicyRecords(Struct, frozen=True, tag=True):
    """All ``PolicyRecord`` items, by name. Queried under ``SYSTEM_ACCOUNT``."""


Bills: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs ``(bound, billed)``: a call admitted with at most ``bound`` tokens was billed ``billed``, which is no less."""


class Overrun(Struct, frozen=True, array_like=True):
    """What a model's provider has billed, once it billed more than a call was admitted with. Budgets cover it. In order
    of bounds, at most two per power of four."""

    input: Bills = ()
    """By the size of the prompt."""
    output: Bills = ()
    """By the output cap."""

    def billed(self, input_tokens: int, output_tokens: int) -> tuple[int, int]:
        """The most that may be billed for a prompt of at most ``input_tokens`` and an output cap."""
        return _billed(self.input, input_tokens), _billed(self.output, output_tokens)

    @property
    def added(self) -> tuple[int, int]:
        """The most input and output tokens that were billed beyond a bound."""
        most = [max((billed - bound for bound, billed in bills), default=0) for bills in (self.input, self.output)]
        return most[0], most[1]

    def cap_within(self, output_tokens: int) -> int:
        """The largest output cap for which at most this much is billed; negative if there is none."""
        caps = [output_tokens * bound // billed for bound, billed in self.output if billed <= output_tokens]
        return max(caps, default=-1) if self.output else output_tokens

    def covers(self, other: Overrun | None) -> bool:
        """True if this record reserves as much as the other one, or more, for every call."""
        sides = () if other is None else ((self.input, other.input), (self.output, other.output))
        return all(_billed(theirs, bound) <= billed for ours, theirs in sides for bound, billed in ours or ((1, 1),))

    def merge(self, other: Overrun | None) -> Overrun:
        """The record of all that both have seen."""
        return self if other is None else Overrun(_fold(self.input + other.input), _fold(self.output + other.output))


def _billed(bills: Bills, tokens: int) -> int:
    # A bill has two readings: the provider adds tokens to every call, or multiplies them. By both, a smaller call costs
    # no more, and a larger one at most as much times the ratio of the bounds. All bills must agree with the truth, so
    # the lowest of these limits holds. test_both_readings_of_an_overrun_cover_every_call
    limits = [billed if tokens <= bound else -(-tokens * billed // bound) for bound, billed in bills]
    return min(limits, default=tokens)


def _fold(bills: Bills) -> Bills:
    """Raise the bills until they agree, and keep the smallest and the largest per power of four."""
    # A bill above the limit that another one sets refutes that limit. The other one is raised as far as needed: to the
    # same amount if its bound is larger, to the same ratio if it is smaller. After a pass in both directions, amounts
    # rise with the bounds and ratios fall, so a bill between two others is covered without it, and a record
    # that is merged once more stays as it is: processes agree. test_a_record_is_never_below_a_bill
    rising = list(accumulate(sorted(bills), lambda last, bill: (bill[0], max(last[1], bill[1]))))
    agreed = accumulate(rising[::-1], lambda last, bill: (bill[0], max(bill[1], -(-last[1] * bill[0] // last[0]))))
    groups = [list(group) for _, group in groupby(agreed, lambda bill: bill[0].bit_length() // 2)]
    return tuple(sorted({bill for group in groups for bill in (group[0], group[-1])}))


class Learned(Struct, frozen=True, omit_defaults=True):
    """Decaying sums over the attempts at one model. An attempt's weight halves with every half-life."""

    at: float
    """Unix seconds at which the sums are valid."""
    good: float = 0.0
    bad: float = 0.0
    answers: float = 0.0
    """Answers with a representative length."""
    length: float = 0.0
    length_squared: float = 0.0
    unusual: float = 0.0
    """Part of ``length`` due to unusual work; negative if answers were shorter."""
    late: float = 0.0
    """Slowdown due to the work instead of the model, in octaves."""
    tokens: float = 0.0
    """Tokens after the first one, written in ``us`` microseconds."""
    us: float = 0.0
    first: dict[int, float] = {}
    """Histogram of times to the first token: weight by bucket number."""
    whole: dict[int, float] = {}
    overrun: Overrun | None = None
    """Not a sum: the most of all processes. It does not decay."""


class LearnedModel(Struct, frozen=True):
    """Sums of all processes for one model."""

    model: str
    epoch: int
    """Epoch of the last addition."""
    settled: Learned
    """Sums added before that epoch."""
    pending: Learned
    """Sums added in that epoch."""


class AddLearned(Struct, frozen=True, tag=True):
    """Add to the sums of models, by model id. Applied under ``SYSTEM_ACCOUNT``."""

    fleet: str
    """Source of the attempts: ``production``, ``sandbox`` or ``hosted``."""
    models: dict[str, Learned]
    expect: None = None
    durability: Durability = "buffered"


class LearnedSince(Struct, frozen=True, tag=True):
    """``LearnedModel`` records of a fleet changed in an epoch or later, by model. Queried under ``SYSTEM_ACCOUNT``. A
    ``LocalStorage`` answers without waiting, or raises."""

    fleet: str
    epoch: int
