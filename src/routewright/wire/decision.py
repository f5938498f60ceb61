"""What a decision is made from and what it says, as values that can be stored and replayed (contract 3)."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import Literal

from .model import Model
from .plain import Struct
from .policy import Policy
from .request import Effort, Goal, Strategy


class Reason(StrEnum):
    """Why a model was rejected, in the order of the constraints."""

    WHITELIST = "whitelist"
    DISABLED = "disabled"
    DEPRECATED = "deprecated"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    REGION = "region"
    MODALITY = "modality"
    TOOLS = "tools"
    RESPONSE_FORMAT = "response_format"
    PARAMS = "params"
    QUALITY_FLOOR = "quality_floor"
    LATENCY_CEILING = "latency_ceiling"
    CONTEXT = "context"
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_COST = "budget_cost"
    CIRCUIT_OPEN = "circuit_open"


class Need(IntFlag):
    """Abilities that a request needs besides text."""

    NONE = 0
    IMAGE = 1
    TOOLS = 2
    JSON = 4
    TEMPERATURE = 8
    TOP_P = 16
    STOP = 32
    SEED = 64
    TOOL_CHOICE = 128
    """A tool is demanded."""
    IMAGE_URL = 256
    """An image is given by its address."""
    JSON_OBJECT = 512
    """JSON of any shape."""
    JSON_SCHEMA = 1024
    AUDIO = 1 << 11
    FILE = 1 << 12
    FILE_URL = 1 << 13
    SERIAL_TOOLS = 1 << 14
    """Tool calls come one at a time."""
    REASONING = 1 << 15
    """An effort is asked for."""
    NO_REASONING = 1 << 16
    REASONING_TOKENS = 1 << 17
    """Thinking is bounded in tokens."""
    FLEX = 1 << 18
    """This and the next three are wishes: no model is left out for want of them."""
    PRIORITY = 1 << 19
    VERBOSITY = 1 << 20
    CACHE_CONTROL = 1 << 21
    REASONING_TOOLS = 1 << 22
    """This and the next four are asked for beside an effort or a bound."""
    REASONING_TOOL_CHOICE = 1 << 23
    REASONING_SAMPLING = 1 << 24
    REASONING_BRIEF = 1 << 25
    """Thinking has little room."""
    REASONING_TOKENS_BRIEF = 1 << 26


class Images(Struct, frozen=True, omit_defaults=True):
    """Images of one size in a prompt; or a file, a recording, or what a model thought in an earlier turn."""

    width: int = 0
    """Pixels; 0: not known."""
    height: int = 0
    detail: Literal["auto", "low", "high"] = "auto"
    count: int = 1
    tokens: int = 0
    """Of what is no image, as a guess. 0: it is one."""
    most: int = 0
    """At most so many. 0: as many as a window holds."""


class TokenBounds(Struct, frozen=True, omit_defaults=True, gc=False):
    """What is known of the input's length. ``low`` and ``high`` hold for every vocabulary and, as the counts, are those
    of the text: what ``images`` add is each model's own."""

    low: int
    high: int
    """Never above a token a byte; once counted, what other vendors' vocabularies are taken to need at most."""
    estimate: int
    """Best guess without counting, images included; the score's size bucket comes from it."""
    o200k: int | None = None
    cl100k: int | None = None
    counted: bool = False
    """True once the text was counted, so that nothing better will come."""
    single: int = 0
    """Once counted: bytes that some vocabularies leave single where those that were counted pack them."""
    images: tuple[Images, ...] = ()

    @property
    def best(self) -> int:
        """The count if it was taken, else the estimate."""
        return self.estimate if self.o200k is None or self.images else self.o200k


class Reading(Struct, frozen=True, omit_defaults=True):
    """What the built-in predictor reads in a prompt. It holds no text."""

    predictor: str
    """Id of the weights that it was read with."""
    cell: tuple[int, ...]
    """Place on the predictor's grid, all zeros where it says nothing: the qualities of all models follow from it."""
    difficulty: float
    """0..1, 0.5 as usual."""
    topic: str
    novelty: float
    """0..1: how far the prompt is from all that the predictor knows. At 1 the catalogue's qualities stand."""
    language: str = ""
    """ISO 639-1; empty where it is not known."""
    policy_class: str = ""
    """The class of the policy that it matches."""
    sketch: tuple[int, ...] = ()
    """A few numbers from -127 to 127 by which heads learn from your traffic; kept only where that is asked for."""


class WarmPrefix(Struct, frozen=True):
    """The beginning of a prompt that a model's vendor is expected to have in its cache."""

    model: str
    tokens: int


class DecisionInput(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Everything a decision depends on, without text. With the three snapshots it replays bit for bit."""

    catalogue: str
    """Id of the catalogue snapshot."""
    health: str
    policy: str | None = None
    as_of: str
    """UTC date of the decision, ``YYYY-MM-DD``: what is deprecated by then is not picked."""
    tokens: TokenBounds
    needs: int = 0
    """Bits of ``Need``."""
    goal: Goal = "cost"
    strategy: Strategy = "balanced"
    models: tuple[str, ...] | None = None
    """Whitelist, the policy's and the request's intersected."""
    fallback: tuple[str, ...] | None = None
    """The caller's own chain; None: ours."""
    max_retries: int = 1
    max_output_tokens: int | None = None
    default_output_cap: int = 4096
    """Cap where money is limited and the request names none."""
    budget_nanos: int | None = None
    budget_tokens: int | None = None
    timeout_ms: int = 60_000
    regions: tuple[str, ...] = ()
    weights: tuple[int, int, int, int] | None = None
    """Per cent of the score for quality, cost, latency and stability, in the place of goal and strategy."""
    min_quality: int | None = None
    """Millionths; models below it are rejected."""
    max_latency_ms: int | None = None
    """Models whose expected time to the whole answer is longer are rejected."""
    quality: tuple[int, ...] | None = None
    """Quality per catalogue row in millionths, where it is not the catalogue's own."""
    assignment: str = ""
    """Key that fixes random choices of a policy for this caller."""
    rules: int
    """Version of the scoring rules. Without a default, so that it is always stored."""
    prefer: tuple[str, ...] = ()
    """Tried first, in this order, where they pass: the request's, then the policy's."""
    wishes: int = 0
    """Bits of ``Need`` that no model is left out for: expected and worst cost follow a service tier and marks for the
    vendor's cache."""
    effort: Effort | None = None
    """How much is thought before the answer; expected output, cost and time follow it."""
    thinking_tokens: int | None = None
    """The bound on thinking, in place of an effort."""
    hour_cache: bool = False
    """Marks ask the vendor's cache to keep the prompt for an hour, which may be priced higher."""
    reading: Reading | None = None
    """Where ``quality`` comes from the built-in predictor."""
    workload: tuple[int, int] | None = None
    """By how many quarter octaves answers of this workload are longer, and take more time, than usual."""
    warm: tuple[WarmPrefix, ...] = ()
    """What is expected to cost less, since a vendor has it in its cache."""
    propensity: int = 0
    """Under a policy that explores: millionths of chance with which the first model was to be tried first."""
    explored: bool = False
    """It was picked to be explored, and stands first among those preferred."""

    @property
    def own_quality(self) -> tuple[int, ...] | None:
        """Qualities that your own predictor gave: a policy's floor holds of them. Of those that follow from a reading
        it does not: its author knew the catalogue's."""
        return None if self.reading is not None else self.quality


class CatalogueSnapshot(Struct, frozen=True, tag="catalogue", tag_field="kind"):
    """The models a Router knew at one time; ``id`` is made from the content."""

    id: str
    as_of: str
    """Date of the facts, ``YYYY-MM-DD``."""
    models: tuple[Model, ...]


class PolicySnapshot(Struct, frozen=True, tag="policy", tag_field="kind"):
    """One published version of a policy; ``id`` is made from the content."""

    id: str
    version: str
    """``<policy_name>@<YYYY-MM-DD>``, with ``.2`` ... for further ones of a day."""
    policy: Policy
    """As its author wrote it, but for id and date."""
    models: tuple[str, ...] | None = None
    """Ids of the models that it allows, picked out of the catalogue of its day; None: all."""
    chain: tuple[str, ...] | None = None
    """Ids of its own fallbacks, in order; None: it names none."""
    prefer: tuple[str, ...] = ()
    """Ids of the models that it prefers, in order."""
    classes: tuple[PolicySnapshot, ...] = ()
    """The whole policy as it is for each of its classes, in order."""


class ModelHealth(Struct, frozen=True, omit_defaults=True):
    """What recent attempts say of one model. Whole numbers, so that scores replay."""

    stability: int = 901
    """Lower bound of the share of attempts that succeed, in thousandths."""
    ttft_ms: int | None = None
    """To the first token, as it usually is. None here and below: nothing observed, the catalogue's prior holds."""
    us_per_token: int | None = None
    ttft_p95_ms: int | None = None
    """None here and in the two below: too little was observed of late."""
    latency_p50_ms: int | None = None
    """Of whole answers, from the call to their end."""
    latency_p95_ms: int | None = None
    output_tokens: int | None = None
    """Mean length of an answer, thinking included."""
    output_p90: int | None = None
    open: bool = False
    """The circuit is open."""
    probe_at_ms: int | None = None
    """When an open breaker lets a probe through, Unix milliseconds."""


class HealthSnapshot(Struct, frozen=True, tag="health", tag_field="kind"):
    """Health of the models that were called; the others stand at ``ModelHealth()``."""

    id: str
    models: dict[str, ModelHealth]


Snapshot = CatalogueSnapshot | PolicySnapshot | HealthSnapshot  # what a decision was made from, besides its input


class Rejection(Struct, frozen=True):
    """A model that a constraint removed. ``estimated_cost_usd`` is the worst that the request could cost there, which
    is what a budget must hold; None where the price is unknown."""

    model: str
    reason: Reason
    estimated_cost_usd: float | None


class Candidate(Struct, frozen=True, gc=False):
    """A model that passed every constraint, with the terms of its score."""

    model: str
    score: float
    """0..1, the weighted sum of the terms."""
    quality: float
    """0..1, as the catalogue or the predictor says; the score uses its step on the grid."""
    cost_usd: float | None
    """Expected cost of this request's size class."""
    latency_s: float
    """Expected time to the whole answer."""
    stability: float
    terms: tuple[float, float, float, float]
    """Quality, cost, latency, stability on 0..1, higher is better."""
    late: bool = False
    """Expected to miss the deadline, so ranked last."""


class Decided(Struct, frozen=True, kw_only=True):
    """A decision with its reasons: the response of ``POST /v1/decide`` and the result of ``Decision.to_dict``."""

    model: str
    """The model that would serve the request."""
    chain: list[str]
    """Fallbacks, in order."""
    score: float
    reason: str
    """One sentence from the decision's own numbers."""
    output_cap: int | None
    """Output cap sent to the model, in tokens. Null: the model's own limit."""
    fallback_affordable: bool
    """False: the budget pays only for the chosen model's answer, not for a fallback."""
    candidates: list[Candidate]
    """Every model that fits, best first."""
    rejected: list[Rejection]
    """Every rejected model, with the first reason."""
    digest: str
    """Equal digests are equal decisions."""
    reading: Reading | None = None
    """The prediction from the prompt. Null: it could not change the choice."""
    instead_of: str | None = None
    """The model chosen without the prediction, if it differs."""
