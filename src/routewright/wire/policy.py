"""Policies, and what attempts and an account's traffic taught of models."""

from __future__ import annotations

from typing import Literal

from .account import Durability
from .plain import Struct
from .request import Budget, CacheOpts, Goal, OnPartial, Params, Strategy

Stage = Literal["input", "output"]  # where a text is checked: on its way to a model, or on its way back
GuardrailAction = Literal["redact", "block"]
PatternKind = Literal["email", "phone", "card", "iban", "api_key"]


class Allow(Struct, frozen=True):
    """Nothing was found."""


class Redaction(Struct, frozen=True):
    """What stands from ``start`` up to ``end``, in characters, is replaced by a word."""

    start: int
    end: int
    rule: str
    replacement: str = "[redacted]"


class Redact(Struct, frozen=True):
    """The text may pass without these parts. They stand in its order and do not overlap."""

    parts: tuple[Redaction, ...]


class Block(Struct, frozen=True):
    """The text may not pass."""

    rule: str


Verdict = Allow | Redact | Block


class PolicyFallback(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A policy's chain. ``on_refusal="fallback"`` asks another provider when one refuses the content."""

    models: list[str] | None = None
    """The chain, in this order: ids and aliases of models that the policy allows; ``[]`` for none."""
    max_retries: float | None = None
    """Further tries of one model."""
    on_partial: OnPartial | None = None
    """What follows when a model fails within its answer."""
    on_refusal: Literal["fail", "fallback"] = "fail"
    """``fallback``: ask the next model when a provider's moderation refuses."""
    hedge: bool = False
    """Ask the next model, too, where the first shows no life for longer than it usually takes."""


class PolicyWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts how much in the score, in per cent: whole numbers that make 100."""

    quality: float
    """Of the answer, by the catalogue or your own prediction."""
    cost: float
    """Expected, of the request."""
    latency: float
    """Expected, to the whole answer."""
    stability: float
    """Share of calls that succeed."""


class PolicyGuardrail(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy redacts or blocks: kinds of data, words, or both."""

    patterns: list[PatternKind] | None = None
    """Kinds of data to look for."""
    deny: list[str] | None = None
    """Words and phrases to look for, in any case."""
    action: GuardrailAction
    """What is done with what is found."""
    stages: list[Stage] | None = None
    """Default: input and output."""


Capability = Literal["image", "tools", "json", "reasoning"]


class PolicyMatch(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the built-in predictor has to read in a prompt: all that is given here."""

    topic: str | None = None
    """What the prompt is about: ``code``, ``math`` ..."""
    difficulty: str | None = None
    """A comparison with a number from 0 to 1: ``>0.7``, ``<=0.3``."""
    novelty: str | None = None
    """The same, of how much of the prompt the predictor does not know: ``>0.9``."""
    language: str | None = None
    """Of the prompt, as ISO 639-1: ``de``."""


class PolicyRules(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy can ask for. Limits and lists can only be narrowed by a request."""

    goal: Goal | None = None
    """In the place of the request's."""
    strategy: Strategy | None = None
    """In the place of the request's."""
    weights: PolicyWeights | None = None
    """In the place of goal and strategy, which must then be left out."""
    models: list[str] | None = None
    """What is allowed: ids, aliases, globs (``openai/*``), ``provider:openai``, ``tag:eu``, ``capability:image``."""
    exclude: list[str] | None = None
    """What of these is not, written in the same ways."""
    capabilities: list[Capability] | None = None
    """Only models that can do all of these."""
    regions: list[str] | None = None
    """Only models known to be served from all of these."""
    min_quality: float | None = None
    """Only models of at least this quality, 0 to 1."""
    max_latency_ms: float | None = None
    """Only models whose whole answer is expected within this time."""
    prefer: list[str] | None = None
    """Ids and aliases of models that are tried first, in this order, after those that the request prefers."""
    fallback: PolicyFallback | None = None
    """The chain, in the place of ours."""
    params: Params | None = None
    """What a request is sent with that says nothing else; ``max_output_tokens`` is a limit. Of ``extra`` the request's
    own fields hold."""
    budget: Budget | None = None
    """The most that a request may use."""
    cache: bool | CacheOpts | None = None
    """Whether and how answers may come from the cache. A request may switch it off or tighten it."""
    timeout_ms: float | None = None
    """For everything."""
    guardrails: list[PolicyGuardrail] | None = None
    """What is redacted or blocked, in this order: each sees what the one before has left."""
    explore_models: float | None = None
    """Share of requests, up to 0.2, that try another good model first, so that you can learn from your own traffic. It
    adds at most this share to what the policy's requests are expected to cost."""


class PolicyClass(PolicyRules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rules for the prompts that match: what it sets stands in the place of the policy's, the rest stays."""

    match: PolicyMatch
    """Which prompts it is for."""
    name: str = ""
    """What ``explain`` calls it. Default: what it matches."""


class Policy(PolicyRules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Named rules. Goal and strategy override a request's; limits and lists can only be narrowed by it."""

    name: str
    """How requests call it; without ``@``, which parts the name from the date in ``policy_version``."""
    id: str = ""
    """The other way to call it. Default: ``pol_`` and 26 characters made from the name."""
    created_at: str | None = None
    """RFC 3339. Default: when the storage first saw this content."""
    classes: list[PolicyClass] | None = None
    """Other rules for some prompts: the first of these that matches."""


class Learned(Struct, frozen=True, omit_defaults=True):
    """Sums over the attempts at one model. Each attempt counts one at its time, and half after every half-life."""

    at: float
    """Unix seconds for which the sums hold."""
    good: float = 0.0
    bad: float = 0.0
    answers: float = 0.0
    """Those whose length says something."""
    length: float = 0.0
    length_squared: float = 0.0
    unusual: float = 0.0
    """Of the length, what would not be there had the work been as usual; negative: what is missing."""
    late: float = 0.0
    """Octaves by which the work, not the model, made answers slower."""
    tokens: float = 0.0
    """That were written after the first one, in ``us`` microseconds."""
    us: float = 0.0
    first: dict[int, float] = {}
    """Times to the first token: weights by bucket (``_core/attempts/quantile.py``)."""
    whole: dict[int, float] = {}


class LearnedModel(Struct, frozen=True):
    """What all processes learned of one model."""

    model: str
    epoch: int
    """In which something was added last."""
    settled: Learned
    """What was added before that epoch."""
    pending: Learned
    """What was added in it."""


class AddLearned(Struct, frozen=True, tag=True):
    """Add to what is known of models, each under its id. Said under ``SYSTEM_ACCOUNT``."""

    fleet: str
    """Whose attempts they were: ``production``, ``sandbox`` or ``hosted``."""
    models: dict[str, Learned]
    expect: None = None
    durability: Durability = "buffered"


class LearnedSince(Struct, frozen=True, tag=True):
    """A list of the ``LearnedModel`` of a fleet that were added to in an epoch or later, by model. Asked under
    ``SYSTEM_ACCOUNT``. A ``LocalStorage`` answers at once, or raises."""

    fleet: str
    epoch: int


class HeadFigures(Struct, frozen=True):
    """How well a head predicts traces that it was not fitted to, beside the built-in predictor alone."""

    traces: int
    shipped_log_loss: float
    log_loss: float
    gain_error: float
    """The standard error of the gain, over traces."""

    @property
    def gain(self) -> float:
        """By how much the log-loss of the head is lower."""
        return self.shipped_log_loss - self.log_loss


class Head(Struct, frozen=True, kw_only=True):
    """How much better or worse models do in an account's traffic than the built-in predictor says."""

    id: str
    """Made of the content, as of a snapshot; ``Reading.predictor`` names it behind a ``+``."""
    made_at: float
    """Unix seconds."""
    predictor: str
    """Id of the weights that it corrects. It says nothing beside others."""
    models: dict[str, tuple[float, ...]]
    """By model an offset, then a weight for each number of a sketch, in logits."""
    figures: HeadFigures
