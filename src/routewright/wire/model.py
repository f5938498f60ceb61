"""Models and their prices: the catalogue, what a provider declares, ``GET /v1/models`` (spec 2.3), and bills."""

from __future__ import annotations

from typing import Literal

from .analytics import NANOS_PER_USD
from .plain import Struct

Modality = Literal["text", "image", "tool", "audio", "file"]
Tokenizer = Literal["o200k_base", "cl100k_base"]
AvailabilityStatus = Literal["available", "degraded", "unavailable"]
Feature = Literal[
    "temperature", "top_p", "stop", "seed", "tool_choice", "image_url", "json_object", "json_schema",
    "file_url", "parallel_tool_calls", "reasoning", "reasoning_none", "reasoning_tokens", "reasoning_tools",
    "reasoning_tool_choice", "reasoning_sampling", "reasoning_brief", "reasoning_tokens_brief",
    "flex", "priority", "verbosity", "cache_control",
]  # fmt: skip
"""What a request may ask for that not every vendor takes. ``tool_choice``: that a tool is called; ``image_url`` and
``file_url``: images and files by their address; ``json_object`` and ``json_schema``: kinds of ``response_format``;
``parallel_tool_calls``: that calls come one at a time; ``reasoning``: an effort; ``reasoning_none``: that it does not
think; ``reasoning_tokens``: a bound on thinking. Beside an effort or a bound, ``reasoning_tools``: tools;
``reasoning_tool_choice``: that one is called; ``reasoning_sampling``: a temperature but 1, or a ``top_p`` under 0.95;
``reasoning_brief``: an effort under an output cap of 1,024 tokens or less; ``reasoning_tokens_brief``: a bound under
such a cap, or of less than that. The last four are wishes: without them a model is not left out."""


class PriceTier(Struct, frozen=True, omit_defaults=True):
    """Prices that hold once the input is longer than ``above_tokens``."""

    above_tokens: int
    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    """None: other than the shorter inputs' in the proportion of the input prices."""
    cache_write_usd: float | None = None
    """None: likewise."""


class ServicePrice(Struct, frozen=True, omit_defaults=True):
    """Prices of a service tier."""

    tier: Literal["flex", "priority"]
    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    cache_write_usd: float | None = None


class Pricing(Struct, frozen=True, omit_defaults=True):
    """US dollars per one million tokens, list price."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    cache_write_usd: float | None = None
    batch_input_usd: float | None = None
    """Of calls in a batch; what has no such price of its own follows in proportion."""
    batch_output_usd: float | None = None
    tiers: tuple[PriceTier, ...] = ()
    reasoning_usd: float | None = None
    """Of tokens thought before the answer. None: as output."""
    audio_input_usd: float | None = None
    """Of recordings. None: unknown, so that no audio is sent where money is limited."""
    cache_write_hour_usd: float | None = None
    """Of what the vendor's cache keeps for an hour. None: 1.6 times ``cache_write_usd``, as Anthropic has it."""
    service_tiers: tuple[ServicePrice, ...] = ()
    """Other prices of calls in these tiers. The flex tier of vendors who price it as batches needs no entry."""


class PriceChange(Struct, frozen=True):
    """Prices that hold from a day on, UTC."""

    starts: str
    """``YYYY-MM-DD``."""
    pricing_per_1m: Pricing


class Availability(Struct, frozen=True):
    """Whether the model can be called now: ``degraded`` if most calls of late failed, or a key of its provider was
    refused. Regions ``[]`` means unknown."""

    status: AvailabilityStatus = "available"
    regions: tuple[str, ...] = ()


class Model(Struct, frozen=True, kw_only=True):
    """One model. A provider that declares its own needs ``id`` and a price, and ``quality`` or ``like``.

    None is what is not given: it is taken from ``like`` or from what the catalogue knows of the ``id``. In the models
    of a Router what neither knows stays None, and decisions reckon with what is said below.
    """

    id: str
    """``provider/name``, unique in the catalogue."""
    provider: str = ""
    """Default: what stands before the first slash of ``id``."""
    context_window: int | None = None
    """Input and output together, in tokens. None: unknown, taken as 8,192."""
    modalities: tuple[Modality, ...] | None = None
    """Default: text alone."""
    pricing_per_1m: Pricing | None = None
    """None: unknown, so the model is left out wherever money is limited."""
    price_changes: tuple[PriceChange, ...] | None = None
    """Prices in the place of ``pricing_per_1m`` from their days on, the earliest first. Default: none are known."""
    availability: Availability = Availability()
    deprecated_at: str | None = None
    """RFC 3339 timestamp from which the vendor no longer serves it; a catalogue may give a date."""

    provider_model_id: str = ""
    """The name on the provider's wire. Default: what stands after the first slash of ``id``."""
    display_name: str = ""
    max_output_tokens: int | None = None
    structured_output: bool | None = None
    """Honours ``response_format`` with a JSON schema. Default: no."""
    unsupported: tuple[Feature, ...] | None = None
    """What it does not take, so that requests which ask for it go elsewhere. Default: nothing is known of that."""
    reasoning: bool | None = None
    """Thinks before it answers; thinking tokens are billed as output. Default: no."""
    tokenizer: Tokenizer | None = None
    """The vocabulary whose counts are exact for this model. None: counts are estimates with a margin."""
    released_at: str | None = None
    quality: float | None = None
    """Position among the catalogue's models, 0..1. None: taken from ``like``, else 0.3."""
    ttft_s: float | None = None
    """Seconds to the first token of a call. None: 1."""
    tokens_per_s: float | None = None
    """Output speed. None: 100."""
    like: str | None = None
    """Id of a known model whose quality, speed, window and abilities stand in for what is not given here."""
    free_tier: bool | None = None
    """Priced 0 as a rate-limited offer without a promise: routed to only where it is named. Default: no, and where a
    price is given no longer."""
    disabled: bool | None = None
    """Never picked. Default: no."""
    tags: tuple[str, ...] | None = None
    """Words of one's own, by which policies may pick it. Default: none."""


CostPart = Literal["input", "cached", "written", "written_hour", "audio", "output", "reasoning"]
"""Kinds of tokens that are priced apart. ``input`` is text that was neither read from a cache nor written to it,
``written_hour`` what was written to be kept for an hour, ``output`` what was not thought before the answer."""


class BillLine(Struct, frozen=True):
    """The tokens of one kind. ``usd`` is not rounded; the sum is."""

    what: CostPart
    tokens: int
    usd_per_1m: float
    usd: float


class Bill(Struct, frozen=True):
    """What one call of a model costs."""

    model: str
    day: str
    """Whose prices hold, ``YYYY-MM-DD``."""
    batch: bool
    above_tokens: int | None
    """The size from which the prices of the input's tier hold; None: those of short inputs do."""
    lines: tuple[BillLine, ...]
    """Kinds of which there were tokens."""
    total_nanos: int
    """Nano-dollars, rounded up once."""

    @property
    def total_usd(self) -> float:
        """The sum in dollars."""
        return self.total_nanos / NANOS_PER_USD
