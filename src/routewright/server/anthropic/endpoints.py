"""``POST /anthropic/v1/messages`` and ``.../count_tokens``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from routewright import Prepared
from routewright.errors import AuthenticationFailed, RouterError
from routewright.server.departure import while_connected
from routewright.server.door import ignored_header, routing_headers
from routewright.server.exchange import Exchange
from routewright.server.service import Service
from routewright.wire import Caller

from .request import Reading
from .response import message_of
from .stream import MessageFrames

MESSAGES = "/anthropic/v1/messages"
COUNT_TOKENS = "/anthropic/v1/messages/count_tokens"


class TokenCount(Struct, frozen=True):
    """What ``.../count_tokens`` answers."""

    input_tokens: int


async def messages(service: Service, exchange: Exchange) -> None:
    """Answer with a message, whole or as it comes."""
    with _headed(exchange):
        caller = await _caller(service, exchange)
        reading = Reading(service.router, caller, capped=True)
        with _in_their_words(reading):
            prepared = await _prepare(service, exchange, caller, reading, MESSAGES)
            if prepared.request.stream:
                frames = MessageFrames(exchange, prepared.stream(), prepared.tokens.estimate, reading.words)
                await service.send(exchange, prepared, frames)
            else:
                answer = await service.answer(exchange, prepared)
                await exchange.json(message_of(answer.response), routing_headers(answer.response) | answer.headers)


async def count_tokens(service: Service, exchange: Exchange) -> None:
    """Say how many tokens a request's input has for the model that it names, or that would serve it."""
    with _headed(exchange):
        caller = await _caller(service, exchange)
        reading = Reading(service.router, caller, capped=False)
        with _in_their_words(reading):
            prepared = await _prepare(service, exchange, caller, reading, COUNT_TOKENS)
            # the model that was named, or the one that would serve the request
            counting = partial(prepared.count_tokens, reading.names.get(reading.model))
            count = await while_connected(exchange, counting)
        low, high = count.low, count.high
        told = {
            "X-Routewright-Model": count.model,
            "X-Routewright-Input-Tokens": f"{low}" if low == high else f"{low}-{high}",
        }
        await exchange.json(TokenCount(count.estimate), prepared.headers | told)


async def _caller(service: Service, exchange: Exchange) -> Caller:
    """Who asks, by either header that this vendor's clients send a key in."""
    key = (exchange.header(b"x-api-key") or "").strip()
    told = (exchange.header(b"authorization") or "").partition(" ")[2].strip()
    if not key:  # an empty header is none
        return await service.caller(exchange, "route")
    if service.takes_keys and told not in ("", key):
        raise AuthenticationFailed("x-api-key and Authorization name two API keys: send one of the two")
    return await service.caller(exchange, "route", key=f"Bearer {key}")


async def _prepare(service: Service, exchange: Exchange, caller: Caller, reading: Reading, path: str) -> Prepared:
    prepared = await service.prepare(exchange, caller, reading.decode, path)
    exchange.headers |= ignored_header(reading.ignored)
    return prepared


@contextmanager
def _in_their_words(reading: Reading) -> Iterator[None]:
    """Tell what is wrong with a request by the names that its fields have here."""
    try:
        yield
    except RouterError as error:
        if reading.words is None:
            raise
        told = reading.words.error(error)
    else:
        return
    raise told


@contextmanager
def _headed(exchange: Exchange) -> Iterator[None]:
    """Send what this vendor's clients look for in every response."""
    exchange.headers["request-id"] = exchange.request_id
    try:
        yield
    except RouterError as error:
        if not error.retryable:  # they would try again after any 409 and 500
            exchange.headers["x-should-retry"] = "false"
        raise
