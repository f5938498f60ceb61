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
    """How often one model is tried again after it failed."""
    on_partial: OnPartial | None = None
    """What happens if a model fails in the middle of a streamed answer: the answer starts again from the beginning
    (``restart``), or the stream ends with an error (``error``)."""
    on_refusal: Literal["fail", "fallback"] = "fail"
    """What happens if a provider's moderation refuses the content: the call fails, or the next model is asked
    (``fallback``)."""
    hedge: bool = False
    """Also call the next model if the first one has sent nothing for longer than it usually takes."""


class PolicyWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each part counts in the score, in per cent: whole numbers that add up to 100."""

    quality: float
    """Weight of the answer's quality, as the catalogue or your own predictor gives it."""
    cost: float
    """Weight of the expected cost of the request."""
    latency: float
    """Weight of the expected time until the answer is complete."""
    stability: float
    """Weight of the share of calls that succeed."""


class PolicyGuardrail(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy redacts or blocks: kinds of data, words, or both."""

    patterns: list[PatternKind] | None = None
    """Kinds of data to look for."""
    deny: list[str] | None = None
    """Words and phrases to look for. Upper and lower case make no difference."""
    action: GuardrailAction
    """What is done with what is found."""
    stages: list[Stage] | None = None
    """Where to look: in requests (``input``), in answers (``output``), or in both, which is the default."""


Capability = Literal["image", "tools", "json", "reasoning"]


class PolicyMatch(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the built-in predictor has to read in a prompt: all that is given here."""

    topic: str | None = None
    """What the prompt is about, for example ``code`` or ``math``."""
    difficulty: str | None = None
    """How difficult the prompt is, as a comparison with a number from 0 to 1: ``>0.7``, ``<=0.3``."""
    novelty: str | None = None
    """How much of the prompt is new to the predictor, as a comparison with a number from 0 to 1: ``>0.9``."""
    language: str | None = None
    """The language of the prompt, as a code of ISO 639-1: ``de``."""


class PolicyRules(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy can ask for. Limits and lists can only be narrowed by a request."""

    goal: Goal | None = None
    """Replaces the goal of the request."""
    strategy: Strategy | None = None
    """Replaces the strategy of the request."""
    weights: PolicyWeights | None = None
    """Replaces goal and strategy, which this policy must then leave out."""
    models: list[str] | None = None
    """The allowed models: ids, aliases, globs (``openai/*``), ``provider:openai``, ``tag:eu``, ``capability:image``."""
    exclude: list[str] | None = None
    """Models that are not allowed even if ``models`` names them, written in the same ways."""
    capabilities: list[Capability] | None = None
    """Allow only models that can do all of these."""
    regions: list[str] | None = None
    """Allow only models that are known to be served from all of these regions."""
    min_quality: float | None = None
    """Allow only models of at least this quality."""
    max_latency_ms: float | None = None
    """Allow only models whose whole answer is expected within this time."""
    prefer: list[str] | None = None
    """Ids and aliases of models to try first, in this order. Models that the request prefers come before them."""
    fallback: PolicyFallback | None = None
    """The models to try if the first one fails, and when to try them. Replaces the Router's own choice."""
    params: Params | None = None
    """Parameters for requests that do not set them themselves. ``max_output_tokens`` is also a limit: the smaller value
    applies. Fields of ``extra`` are merged, and those of the request take precedence."""
    budget: Budget | None = None
    """The most that a request may use."""
    cache: bool | CacheOpts | None = None
    """Whether and how answers may come from the cache. A request may switch it off or tighten it."""
    timeout_ms: float | None = None
    """The most time that a request may take, with all retries and fallbacks."""
    guardrails: list[PolicyGuardrail] | None = None
    """What is redacted or blocked. Guardrails run in this order, each on the text that the one before has left."""
    explore_models: float | None = None
    """The share of requests, up to 0.2, that try another good model first, so that you can learn from your own traffic.
    The expected cost of the policy's requests rises by at most this share."""


class PolicyClass(PolicyRules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rules for the prompts that match. What a class sets replaces the policy's value; the rest stays as it is."""

    match: PolicyMatch
    """Which prompts it is for."""
    name: str = ""
    """What ``explain`` calls it. Default: what it matches."""


class Policy(PolicyRules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Named rules. Goal and strategy override a request's; limits and lists can only be narrowed by it."""

    name: str
    """The name by which requests refer to the policy. It must not contain ``@``, which separates name and date in
    ``policy_version``."""
    id: str = ""
    """An id that requests can use instead of the name. Default: ``pol_`` and 26 characters made from the name."""
    created_at: str | None = None
    """RFC 3339. Default: when the storage first saw this content."""
    classes: list[PolicyClass] | None = None
    """Other rules for some prompts. The first class that matches a prompt applies."""


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
