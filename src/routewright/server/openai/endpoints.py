"""The endpoints of ``/openai/v1``: chat completions, and the models that they may name."""

from __future__ import annotations

from typing import get_args

from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean
from routewright.errors import NotFound, RouterError
from routewright.server.door import AUTO, ignored_header, routing_headers
from routewright.server.exchange import Exchange
from routewright.server.service import Service
from routewright.wire import Caller, Goal

from .errors import in_words
from .request import PATH, VENDOR, Asked
from .response import ModelList, OpenAIModel, completion_of, limit_headers, model_of
from .stream import ChunkFrames

CHOSEN = tuple(
    OpenAIModel(id=name, created=0, owned_by="routewright")
    for name in (AUTO, *(f"{AUTO}:{goal}" for goal in get_args(Goal)))
)
"""Names that leave the choice to the router."""


async def completions(service: Service, exchange: Exchange) -> None:
    """Answer a chat, whole or in chunks."""
    caller = await service.caller(exchange, "route")
    asked = Asked(service.router.model_names(caller=caller))
    try:
        await _complete(service, exchange, caller, asked)
    except RouterError as error:
        raise in_words(error, asked.words, exchange.clock.time()) from None


async def models(service: Service, exchange: Exchange) -> None:
    """The models that can be called now, and the names that leave the choice to the router."""
    caller = await service.caller(exchange, "models:read")
    known = service.router.models(caller=caller)
    callable_now = [model_of(model) for model in known if model.availability.status != "unavailable"]
    await exchange.json(ModelList(data=[*CHOSEN, *callable_now]))


async def model(service: Service, exchange: Exchange) -> None:
    """One model, by any name that a request may give it."""
    caller = await service.caller(exchange, "models:read")
    name = exchange.parameter
    known = {each.id: each for each in CHOSEN}
    known |= {each.id: model_of(each) for each in service.router.models(caller=caller)}
    names = service.router.model_names(caller=caller)
    found = known.get(name) or known.get(f"{VENDOR}/{name}") or known.get(names.get(name, ""))
    if found is None:
        hint = did_you_mean(name, known) or did_you_mean(f"{VENDOR}/{name}", known)
        hint = hint or "GET /openai/v1/models lists those that can be called"
        raise NotFound(f"there is no model {quoted(name)}; {hint}")
    await exchange.json(found)


async def _complete(service: Service, exchange: Exchange, caller: Caller, asked: Asked) -> None:
    prepared = await service.prepare(exchange, caller, asked.request_of, PATH)
    if prepared.request.stream:
        await service.send(exchange, prepared, ChunkFrames(exchange, prepared.stream(), asked))
        return
    answer = await service.answer(exchange, prepared)
    limits = answer.headers
    headers = routing_headers(answer.response) | limits | limit_headers(limits, exchange.clock.time())
    await exchange.json(completion_of(answer.response), headers=headers | ignored_header(asked.ignored))
