"""What a Router can be told besides its parts: small objects with defaults that explain themselves."""

from __future__ import annotations

from random import SystemRandom

from msgspec import Struct, field

from ._core.problem import shown
from .backends.clock import SystemClock
from .errors import Problem, ValidationFailed
from .protocols import Clock, QualityPredictor, Rng, TokenCounter


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that hold where a request names none."""

    default_max_output_tokens: int = 4_096
    """Output cap where money or tokens are limited (contract 7). A model that usually needs more gets that."""

    def __post_init__(self) -> None:
        if type(self.default_max_output_tokens) is not int or self.default_max_output_tokens < 1:
            problem = f"is {shown(self.default_max_output_tokens)}"
            raise ValidationFailed.of(Problem("Limits.default_max_output_tokens", problem, "take at least 1"))


class Settings(Struct, frozen=True, kw_only=True):
    """How a Router works inside.

    router = Router(settings=Settings(limits=Limits(default_max_output_tokens=1_000)))
    """

    limits: Limits = Limits()
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=SystemRandom)
    """Where chance comes from; ``random.Random(seed)`` makes a run repeatable."""
    quality: QualityPredictor | None = None
    """Says per request how well each model would do; None: the catalogue's own figures."""
    tokens: TokenCounter | None = None
    """Counts tokens where bounds do not settle the matter; None: the bundled vocabularies."""
