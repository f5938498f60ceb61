"""Inputs and results of a decision, as values that can be stored and replayed (contract 3)."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import Literal

from .model import Model
from .plain import JsonObject, Struct
from .policy import Overrun, Policy, SpentShares
from .request import Effort, Goal, Params, Strategy


class Reason(StrEnum):
    """Why a model was rejected, in the order in which constraints are checked."""

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
    """A tool call is required."""
    IMAGE_URL = 256
    """An image is given by URL."""
    JSON_OBJECT = 512
    """JSON of any shape."""
    JSON_SCHEMA = 1024
    AUDIO = 1 << 11
    FILE = 1 << 12
    FILE_URL = 1 << 13
    SERIAL_TOOLS = 1 << 14
    """At most one tool call per answer."""
    REASONING = 1 << 15
    """A reasoning effort is set."""
    NO_REASONING = 1 << 16
    REASONING_TOKENS = 1 << 17
    """Reasoning is limited in tokens."""
    FLEX = 1 << 18
    """Like the next three, optional: models without it are not rejected."""
    PRIORITY = 1 << 19
    VERBOSITY = 1 << 20
    CACHE_CONTROL = 1 << 21
    REASONING_TOOLS = 1 << 22
    """Like the next four, combined with a reasoning effort or limit."""
    REASONING_TOOL_CHOICE = 1 << 23
    REASONING_SAMPLING = 1 << 24
    REASONING_BRIEF = 1 << 25
    """Little room for reasoning."""
    REASONING_TOKENS_BRIEF = 1 << 26
    HTTP_URL = 1 << 27
    """A URL begins with ``http://``."""
    CALLER_URL = 1 << 28
    """A URL was sent by a caller with a key, or over HTTP."""
    TOOLS_STOP = 1 << 29
    """Stop sequences or a seed, together with tools."""


class Images(Struct, frozen=True, omit_defaults=True):
    """Images of one size in a prompt; or a file, a recording, or reasoning of an earlier turn."""

    width: int = 0
    """Pixels; 0: unknown."""
    height: int = 0
    detail: Literal["auto", "low", "high"] = "auto"
    count: int = 1
    tokens: int = 0
    """Estimated tokens of anything but an image. 0: it is an image."""
    most: int = 0
    """Highest possible number of tokens. 0: no limit but the context window."""


class TokenBounds(Struct, frozen=True, omit_defaults=True, gc=False):
    """Bounds of the input's length. ``low``, ``high`` and the counts cover the text; each model counts ``images`` its
    own way. ``low`` and ``high`` hold for every vocabulary."""

    low: int
    high: int
    """At most one token per byte. Once counted: the assumed maximum of other vendors' vocabularies."""
    estimate: int
    """Estimate without counting, images included. Determines the size bucket of the score."""
    o200k: int | None = None
    cl100k: int | None = None
    counted: bool = False
    """True once the text was counted; the bounds are then final."""
    single: int = 0
    """Once counted: bytes that some vocabularies encode as single tokens and the counted ones merge."""
    images: tuple[Images, ...] = ()

    @property
    def best(self) -> int:
        """The count if there is one, else the estimate."""
        return self.estimate if self.o200k is None or self.images else self.o200k


class WarmPrefix(Struct, frozen=True):
    """The start of a prompt that a vendor is expected to have cached."""

    model: str
    tokens: int


class Requested(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a request with a policy itself set of the fields that policies change, without text. With it, the same
    request can be decided under another policy."""

    goal: Goal = "cost"
    strategy: Strategy = "balanced"
    models: tuple[str, ...] | None = None
    fallback: tuple[str, ...] | None = None
    prefer: tuple[str, ...] = ()
    max_retries: int | None = None
    timeout_ms: int | None = None
    budget_nanos: int | None = None
    budget_tokens: int | None = None
    params: Params | None = None
    """Without stop sequences, schemas and vendor fields; empty strings stand for stop sequences."""
    default_timeout_ms: int = 60_000
    """Like the next one, the Router's, for requests and policies that set none."""
    default_retries: int = 1


class DecisionInput(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Everything a decision depends on, without text. With the three snapshots, a replay is exact."""

    catalogue: str
    """Id of the catalogue snapshot."""
    health: str
    policy: str | None = None
    as_of: str
    """UTC date of the decision, ``YYYY-MM-DD``. Models deprecated by then are rejected."""
    tokens: TokenBounds
    needs: int = 0
    """Bits of ``Need``."""
    goal: Goal = "cost"
    strategy: Strategy = "balanced"
    models: tuple[str, ...] | None = None
    """Allowed models: the intersection of the policy's and the request's."""
    fallback: tuple[str, ...] | None = None
    """The caller's fallback chain. None: the default chain."""
    max_retries: int = 1
    max_output_tokens: int | None = None
    default_output_cap: int = 4096
    """Output cap if money is limited and the request sets none."""
    budget_nanos: int | None = None
    budget_tokens: int | None = None
    timeout_ms: int = 60_000
    regions: tuple[str, ...] = ()
    weights: tuple[int, int, int, int] | None = None
    """Percent of the score for quality, cost, latency and stability, replacing goal and strategy."""
    min_quality: int | None = None
    """In millionths. Models below it are rejected."""
    max_latency_ms: int | None = None
    """Models with a longer expected time to the complete answer are rejected."""
    quality: tuple[int, ...] | None = None
    """Quality per catalogue row in millionths, from a ``QualityPredictor``. None: the catalogue's."""
    assignment: str = ""
    """Digest of the value by which a policy's share was chosen (``PolicyShare.by``)."""
    rules: int
    """Version of the scoring rules. Has no default, so it is always stored."""
    prefer: tuple[str, ...] = ()
    """Models to try first if they pass, in order: the request's, then the policy's."""
    wishes: int = 0
    """Bits of ``Need`` that are optional. A service tier and cache marks affect expected and worst cost."""
    effort: Effort | None = None
    """Reasoning effort; affects expected output, cost and time."""
    thinking_tokens: int | None = None
    """Limit on reasoning tokens, instead of an effort."""
    hour_cache: bool = False
    """True: cache marks ask for one hour, which may cost more."""
    reading: JsonObject | None = None
    """Only in stored decisions of the builds that predicted ``quality`` themselves. These cannot be replayed."""
    workload: tuple[int, int] | None = None
    """How much longer answers of this workload are, and how much slower, in quarter octaves."""
    warm: tuple[WarmPrefix, ...] = ()
    """Prompt prefixes expected to cost less because a vendor has them cached."""
    policy_class: str = ""
    """Name of the class of ``policy`` that applied, if any."""
    spent: SpentShares | None = None
    """What the classes of ``policy`` read of the caller's limits. None: they read nothing."""
    requested: Requested | None = None
    """What the request itself set, if a policy applied. Decides nothing and is not part of the digest."""


class CatalogueSnapshot(Struct, frozen=True, tag="catalogue", tag_field="kind"):
    """The models of a Router at one time. ``id`` is derived from the content."""

    id: str
    as_of: str
    """Date of the data, ``YYYY-MM-DD``."""
    models: tuple[Model, ...]


class PolicySnapshot(Struct, frozen=True, tag="policy", tag_field="kind"):
    """One published version of a policy. ``id`` is derived from the content."""

    id: str
    version: str
    """``<policy_name>@<YYYY-MM-DD>``; later versions of the same day end in ``.2``, ``.3`` ..."""
    policy: Policy
    """As written, with id and date filled in."""
    models: tuple[str, ...] | None = None
    """Ids of the allowed models, resolved with the catalogue of that day. None: all."""
    chain: tuple[str, ...] | None = None
    """Ids of its fallback chain, in order. None: the default chain."""
    prefer: tuple[str, ...] = ()
    """Ids of its preferred models, in order."""
    classes: tuple[PolicySnapshot, ...] = ()
    """The complete policy for each of its classes, in order."""


class ModelHealth(Struct, frozen=True, omit_defaults=True):
    """Recent performance of one model. Integers, so that replays are exact."""

    stability: int = 901
    """Lower confidence bound of the success rate, in thousandths."""
    ttft_ms: int | None = None
    """Typical time to the first token. None, here and below: nothing observed; the catalogue's value is used."""
    us_per_token: int | None = None
    ttft_p95_ms: int | None = None
    """None, here and in the next two: too few recent observations."""
    latency_p50_ms: int | None = None
    """Time from the call to the end of the answer."""
    latency_p95_ms: int | None = None
    output_tokens: int | None = None
    """Mean length of an answer, reasoning included."""
    output_p90: int | None = None
    open: bool = False
    """True: the circuit breaker is open."""
    probe_at_ms: int | None = None
    """Unix milliseconds at which an open breaker allows a probe."""
    overrun: Overrun | None = None
    """None: its provider has billed no more than was admitted."""


class HealthSnapshot(Struct, frozen=True, tag="health", tag_field="kind"):
    """Health of the models that were called. All others have ``ModelHealth()``."""

    id: str
    models: dict[str, ModelHealth]


Snapshot = CatalogueSnapshot | PolicySnapshot | HealthSnapshot


class Rejection(Struct, frozen=True):
    """A rejected model. ``estimated_cost_usd`` is the request's highest possible cost, which a budget must cover; null
    if the price is unknown."""

    model: str
    reason: Reason
    estimated_cost_usd: float | None


class Candidate(Struct, frozen=True, gc=False):
    """A model that passed every constraint, with its score."""

    model: str
    score: float
    """0 to 1, the weighted sum of ``terms``."""
    quality: float
    """0 to 1, from the catalogue or the predictor. The score uses it rounded to a grid."""
    cost_usd: float | None
    """Expected cost for requests of this size class."""
    latency_s: float
    """Expected time to the complete answer."""
    stability: float
    terms: tuple[float, float, float, float]
    """Quality, cost, latency and stability, each 0 to 1; higher is better."""
    late: bool = False
    """True: expected to miss the deadline, so ranked after all others."""


class Decided(Struct, frozen=True, kw_only=True):
    """A decision and its reasons: the answer of ``POST /v1/decide`` and of ``Decision.to_dict``."""

    model: str
    """The chosen model."""
    chain: list[str]
    """Fallback models, in order."""
    score: float
    reason: str
    """One sentence that explains the choice with its numbers."""
    output_cap: int | None
    """Output token limit sent to the model. Null: the model's own limit."""
    fallback_affordable: bool
    """False: the budget covers only the chosen model."""
    candidates: list[Candidate]
    """Every model that passed the constraints, best first."""
    rejected: list[Rejection]
    """Every other model, with the first reason for its rejection."""
    digest: str
    """Equal digests mean equal decisions."""
    policy_class: str | None = None
    """Name of the policy's class that applied. Null: none did."""
