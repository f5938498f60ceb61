"""``Catalogue``: the models a Router chooses from, 169 bundled ones and your own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import msgspec

from routewright.errors import ValidationFailed
from routewright.wire import Bill, BillLine, Goal, Model, Usage

from ._core.catalogue import prices as price_rules
from ._core.catalogue.models import Deprecation, deprecations, fields_of, models_of, overlay
from ._core.catalogue.models import model_called as model_called
from ._core.catalogue.models import undated as undated
from ._core.money import PICOS_PER_NANO, PICOS_PER_USD_1M
from ._core.request.rules import check_names, is_day
from .wire.conversion import rebuild
from .wire.json_scan import quoted
from .wire.money import NANOS_PER_USD
from .wire.problems import did_you_mean, shown

AUTO = "auto"
_LOST_TIERS = "%s: the price of %s lacks the 'tiers' of the bundled one; add yours, or 'tiers = []' if there are none"

_logger = logging.getLogger(__name__)


class Catalogue:
    """Models and aliases, never changed in place.

        catalogue = Catalogue.load("models.toml")
        router = Router(catalogue=catalogue)

    ``Catalogue()`` is the bundled one. ``load`` overlays it with a TOML or JSON file
    (``docs/how-to/own-models.md``)."""

    def __init__(
        self,
        models: Iterable[Model] | None = None,
        *,
        aliases: Mapping[str, str] | None = None,
        as_of: str | None = None,
    ) -> None:
        self._models = None if models is None else overlay((), map(fields_of, models_of(models)))
        self.aliases: dict[str, str] = rebuild(aliases or {}, dict[str, str], "aliases")
        check_names({f"aliases[{quoted(alias)}]": alias for alias in self.aliases})
        self._as_of = None if as_of is None else _check_day(as_of)

    @classmethod
    def load(cls, path: str | Path) -> Catalogue:
        """Overlay the bundled catalogue with a file. Raises ``ValidationFailed`` naming file and key."""
        from ._setup.config import read_catalogue
        from ._setup.input_file import read

        document = read(path)
        with document.naming():
            models = cls().models
            file = read_catalogue(document, known=[model.id for model in models])
            for model in models:
                if model.id in file.untiered and model.pricing_per_1m is not None and model.pricing_per_1m.tiers:
                    _logger.warning(_LOST_TIERS, document.path, model.id)
            return cls().overlaid(file.rows, aliases=file.aliases, as_of=file.as_of)

    def overlaid(
        self, rows: Iterable[Mapping[str, Any]], *, aliases: Mapping[str, str] | None = None, as_of: str | None = None
    ) -> Catalogue:
        """Overlay this catalogue with rows, each an ``id`` and some fields of ``Model``. ``as_of``: the date of the
        facts, if it differs."""
        new = Catalogue(aliases=self.aliases | dict(aliases or {}), as_of=as_of or self._date_of_facts)
        new._models = overlay(self.models, rows)
        return new

    def deprecations(
        self, within_days: int | None = None, *, today: str | date | None = None
    ) -> tuple[Deprecation, ...]:
        """The models that end within some days, including those that have ended, the soonest first.

        ``within_days`` None: all with a known end. ``today`` None: the day in UTC. Raises ``ValidationFailed``."""
        if within_days is not None and (isinstance(within_days, bool) or not isinstance(within_days, int)):
            raise ValidationFailed.at("within_days", f"must be a whole number, got {shown(within_days)}", "pass days")
        return deprecations(self.models, date.fromisoformat(_day(today, "today")), within_days)

    @property
    def models(self) -> tuple[Model, ...]:
        """All models, in order of definition."""
        return bundled()[0] if self._models is None else self._models

    @property
    def as_of(self) -> str:
        """Date of the facts, ``YYYY-MM-DD``."""
        return self._as_of or bundled()[1]

    def age_days(self, today: str) -> int | None:
        """Days from the date of the facts to ``today`` (``YYYY-MM-DD``); None if that date is unknown."""
        as_of = self._date_of_facts
        day = date.fromisoformat(_check_day(today, "today"))
        return None if as_of is None else (day - date.fromisoformat(as_of)).days

    def stale(self, today: str, after_days: int | None) -> str:
        """The warning for a catalogue older than some days (None: never); empty for one that is not."""
        age = self.age_days(today)
        if age is None or after_days is None or age <= after_days:
            return ""
        return f"the prices are of {self.as_of}, {age} days ago; renew them with 'routewright catalogue import FILE'"

    def bill(self, model: str, usage: Usage, *, on: str | date | None = None, batch: bool = False) -> Bill:
        """Price one call by the prices of a day, by default today in UTC.

            Catalogue().bill("openai/gpt-6-luna", Usage(input=1_000, output=200)).total_usd

        Raises ``ValidationFailed`` for an unknown model, a missing price, and a usage that does not add up."""
        models = {entry.id: entry for entry in self.models}
        day = _day(on, "on")
        if not isinstance(model, str):
            raise ValidationFailed.at("model", f"must be an id or alias, got {shown(model)}", 'as "openai/gpt-6-luna"')
        if (match := models.get(self.aliases.get(model, model))) is None:
            hint = did_you_mean(model, [*models, *self.aliases]) or "'models' of the catalogue lists the known ids"
            raise ValidationFailed.at("model", f"unknown model {quoted(model)}", hint)
        usage = validate_usage(usage)
        listed = price_rules.pricing_on(match, day)
        prices = price_rules.batch_prices_of(listed) if batch else price_rules.prices_of(listed)
        if listed is None:
            problem = f"no price of {quoted(match.id)} is known on {day}"
            raise ValidationFailed.at("model", problem, "give it one in a catalogue file")
        if not prices:
            hint = "give it batch_input_usd and batch_output_usd, or leave 'batch' out"
            raise ValidationFailed.at("batch", f"no batch price of {quoted(match.id)} is known on {day}", hint)
        price = price_rules.price_at(prices, usage.input)
        lines = tuple(
            BillLine(part, tokens, picos / PICOS_PER_USD_1M, tokens * picos / (PICOS_PER_NANO * NANOS_PER_USD))
            for part, (tokens, picos) in zip(price_rules.COST_PARTS, price_rules.charges(price, usage), strict=True)
            if tokens
        )
        above = None if price.above < 0 else price.above
        return Bill(match.id, day, batch, above, lines, price_rules.usage_nanos(prices, usage))

    @property
    def _date_of_facts(self) -> str | None:
        """The given date, or the bundled catalogue's; None for own models without a date."""
        return self.as_of if self._models is None else self._as_of


def chooses(model: str) -> bool:
    """True if the name leaves the choice to the router: ``auto``, ``auto:<goal>`` or ``policy:<id>``."""
    return model == AUTO or model.startswith((f"{AUTO}:", "policy:"))


def routing_of(model: str) -> tuple[str, str | list[str] | None]:
    """The field of the route request that the name of a model sets, and its value: ``goal`` for ``auto:<goal>``,
    ``policy_id`` for ``policy:<id>``, ``models`` for a model; ``auto`` is the ``goal`` None. Raises
    ``ValidationFailed``."""
    value = model.partition(":")[2]
    if model == AUTO:
        return "goal", None
    if not chooses(model):
        return "models", [model]
    if model.startswith("policy:"):
        return "policy_id", value
    goals = get_args(Goal)
    if value not in goals:
        hint = f"{did_you_mean(value, goals)} take auto, or auto:{', auto:'.join(goals)}".lstrip()
        raise ValidationFailed.at("model", f"names the unknown goal {shown(value)}", hint)
    return "goal", value


def _check_day(text: object, path: str = "as_of") -> str:
    if not isinstance(text, str) or not is_day(text):
        raise ValidationFailed.at(path, f"must be a date, got {shown(text)}", "write 'YYYY-MM-DD'")
    return text


def _day(value: object, path: str) -> str:
    if value is None:
        return datetime.now(UTC).date().isoformat()
    return _check_day(value.isoformat() if isinstance(value, date) else value, path)


def validate_usage(value: object) -> Usage:
    """A usage whose parts do not exceed the whole. Raises ``ValidationFailed``."""
    usage = rebuild(value, Usage, "usage")
    if not price_rules.adds_up(usage):
        hint = "'input' includes 'cached' and 'written', 'output' includes 'reasoning', and none is negative"
        raise ValidationFailed.at("usage", "does not add up", hint)
    return usage


class _Bundled(msgspec.Struct):
    as_of: str
    models: tuple[Model, ...]


@cache
def bundled() -> tuple[tuple[Model, ...], str]:
    """The bundled models, and the date of their facts."""
    file = files("routewright") / "data" / "models.json"
    catalogue = msgspec.json.decode(file.read_bytes(), type=_Bundled)
    return catalogue.models, catalogue.as_of


def price_sources() -> dict[str, list[dict[str, str]]]:
    """The pages on which the bundled prices were read, by model: that of the present price, then those of its changes.
    A page has a ``title``, a ``url`` if known, and ``starts`` if it is of a change."""
    file = files("routewright") / "data" / "price_sources.json"
    return msgspec.json.decode(file.read_bytes(), type=dict[str, list[dict[str, str]]])
