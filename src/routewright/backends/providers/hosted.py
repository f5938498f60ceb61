"""Models that somebody else calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from routewright._core.catalogue.models import models_of
from routewright.errors import ProviderFault
from routewright.wire import FaultKind, Model, UpstreamCall


class HostedProvider:
    """Says that you call these models yourself, in the steps of ``Router.steps``. It needs no key and sends nothing.

        router = Router(providers=[HostedProvider("openai"), HostedProvider("anthropic")])

    Without ``models`` it stands for those of the catalogue under its name.
    """

    def __init__(self, name: str, *, models: Sequence[Model] = ()) -> None:
        self.name = name
        self._models = models_of(models)

    def __repr__(self) -> str:
        return f"HostedProvider({self.name!r})"

    def models(self) -> Sequence[Model]:
        """The models it was made with; none: those of the catalogue under its name."""
        return self._models

    def open(self, call: UpstreamCall) -> NoReturn:
        """Refuse the call, so that ``Router.route`` moves on to models that it can call."""
        raise ProviderFault(FaultKind.REQUEST, f"{self.name} is called by its host, in Router.steps")

    async def aclose(self) -> None:
        """Nothing is held."""
