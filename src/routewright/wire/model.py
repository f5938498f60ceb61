"""Models and their prices, in catalogues, provider declarations and ``GET /v1/models`` (spec 2.3), and bills."""

from __future__ import annotations

from typing import Literal

from .money import NANOS_PER_USD
from .plain import Struct

Modality = Literal["text", "image", "tool", "audio", "file"]
Tokenizer = Literal["o200k_base", "cl100k_base"]
AvailabilityStatus = Literal["available", "degraded", "unavailable"]
Feature = Literal[
    "temperature", "top_p", "stop", "seed", "tool_choice", "image_url", "json_object", "json_schema",
    "file_url", "parallel_tool_calls", "reasoning", "reasoning_none", "reasoning_tokens", "reasoning_tools",
    "reasoning_tool_choice", "reasoning_sampling", "reasoning_brief", "reasoning_tokens_brief",
    "flex", "priority", "verbosity", "cache_control", "http_url", "caller_url", "tools_stop",
]  # fmt: skip
"""A request feature that not every vendor supports. ``tool_choice``: require a tool call; ``image_url`` and
``file_url``: images and files by URL; ``json_object`` and ``json_schema``: kinds of ``response_format``;
``parallel_tool_calls``: limit an answer to one tool call; ``reasoning``: an effort; ``reasoning_none``: reasoning
turned off; ``reasoning_tokens``: a reasoning token limit. Together with an effort or such a limit, ``reasoning_tools``:
tools; ``reasoning_tool_choice``: a required tool call; ``reasoning_sampling``: a temperature other than 1 or a
``top_p`` below 0.95; ``reasoning_brief``: an effort with an output cap of 1,024 tokens or less;
``reasoning_tokens_brief``: a reasoning limit with such a cap, or below 1,024 tokens. ``flex``, ``priority``,
``verbosity`` and ``cache_control`` are optional: models without them are not rejected. ``http_url``: images by a URL
that begins with ``http://``; ``caller_url``: images and files by URL in requests of callers with a key;
``tools_stop``: stop sequences or a seed together with tools."""


class PriceTier(Struct, frozen=True, omit_defaults=True):
    """Prices for inputs longer than ``above_tokens``."""

    above_tokens: int
    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    """None: the base price, scaled as the input price."""
    cache_write_usd: float | None = None
    """None: scaled likewise."""


class ServicePrice(Struct, frozen=True, omit_defaults=True):
    """Prices of a service tier."""

    tier: Literal["flex", "priority"]
    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    cache_write_usd: float | None = None


class Pricing(Struct, frozen=True, omit_defaults=True):
    """List prices in US dollars per million tokens."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    cache_write_usd: float | None = None
    batch_input_usd: float | None = None
    """Price in batch calls. Prices without a batch price are scaled in proportion."""
    batch_output_usd: float | None = None
    tiers: tuple[PriceTier, ...] = ()
    reasoning_usd: float | None = None
    """Price of reasoning tokens. None: as output."""
    audio_input_usd: float | None = None
    """Price of audio input. None: unknown; no audio is sent if money is limited."""
    cache_write_hour_usd: float | None = None
    """Price of one-hour cache writes. None: 1.6 times ``cache_write_usd``, Anthropic's ratio."""
    service_tiers: tuple[ServicePrice, ...] = ()
    """Prices of service tiers. A flex tier priced like batches needs no entry."""
    exact: bool = False
    """True: input and output prices between 0 and 0.001 are meant. They are refused otherwise, since prices per token
    would void every budget."""


class PriceChange(Struct, frozen=True):
    """Prices that apply from a date on (UTC)."""

    starts: str
    """``YYYY-MM-DD``."""
    pricing_per_1m: Pricing


class Availability(Struct, frozen=True):
    """Whether the model can be called now. ``degraded``: most recent calls failed, or its provider refused a key.
    ``regions`` is empty if unknown."""

    status: AvailabilityStatus = "available"
    regions: tuple[str, ...] = ()


class Model(Struct, frozen=True, kw_only=True):
    """One model. A provider that declares its own models needs ``id``, a price, and ``quality`` or ``like``.

    Fields that are None are filled from ``like`` or the catalogue's entry for ``id``. If they are unknown there as
    well, they stay None, and decisions use the defaults below.
    """

    id: str
    """``provider/name``, unique in the catalogue."""
    provider: str = ""
    """Default: the part of ``id`` before the first slash."""
    context_window: int | None = None
    """Input and output tokens together. None: unknown, assumed to be 8,192."""
    modalities: tuple[Modality, ...] | None = None
    """Default: text only."""
    pricing_per_1m: Pricing | None = None
    """None: unknown; the model is rejected if money is limited."""
    price_changes: tuple[PriceChange, ...] | None = None
    """Future prices that replace ``pricing_per_1m``, earliest first. Default: none."""
    availability: Availability = Availability()
    deprecated_at: str | None = None
    """RFC 3339 timestamp from which the vendor no longer serves it; a catalogue may give only a date."""

    provider_model_id: str = ""
    """Name in the provider's API. Default: the part of ``id`` after the first slash."""
    display_name: str = ""
    max_output_tokens: int | None = None
    structured_output: bool | None = None
    """Supports ``response_format`` with a JSON schema. Default: no."""
    unsupported: tuple[Feature, ...] | None = None
    """Features that it does not support. Requests that need one go to other models. Default: none known."""
    reasoning: bool | None = None
    """Reasons before it answers; reasoning tokens are billed as output. Default: no."""
    tokenizer: Tokenizer | None = None
    """Vocabulary that counts this model's tokens exactly. None: counts are estimates with a margin."""
    released_at: str | None = None
    quality: float | None = None
    """Rank among the catalogue's models, 0 to 1. None: from ``like``, else 0.3."""
    ttft_s: float | None = None
    """Seconds to the first token. None: 1."""
    tokens_per_s: float | None = None
    """Output speed. None: 100."""
    like: str | None = None
    """Id of a known model that supplies quality, speed, context window and features not given here."""
    free_tier: bool | None = None
    """True: a rate-limited free offer, used only if a request names it. Default: no; also no once a price is given."""
    disabled: bool | None = None
    """True: never chosen. Default: no."""
    tags: tuple[str, ...] | None = None
    """Your own tags; policies select models by them (``tag:eu``). Default: none."""


CostPart = Literal["input", "cached", "written", "written_hour", "audio", "output", "reasoning"]
"""Kinds of tokens with separate prices. ``input``: neither read from a cache nor written to it; ``written_hour``:
written to the cache for an hour; ``output``: without reasoning."""


class BillLine(Struct, frozen=True):
    """Tokens of one kind. ``usd`` is not rounded; only the total is."""

    what: CostPart
    tokens: int
    usd_per_1m: float
    usd: float


class Bill(Struct, frozen=True):
    """Cost of one call of a model."""

    model: str
    day: str
    """Date of the prices, ``YYYY-MM-DD``."""
    batch: bool
    above_tokens: int | None
    """Lower bound of the price tier for this input's length. None: base prices."""
    lines: tuple[BillLine, ...]
    """One line per kind with any tokens."""
    total_nanos: int
    """Nano-dollars, rounded up once."""

    @property
    def total_usd(self) -> float:
        """The total in dollars."""
        return self.total_nanos / NANOS_PER_USD
