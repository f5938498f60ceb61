"""Errors from real causes, and the exceptions the official SDK raises for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from routewright import ProviderFault
from routewright.backends.providers.callable import CallableProvider
from routewright.testing import ScriptedProvider
from routewright.wire import UpstreamCall
from tests.server.uvicorn_server import PATIENCE_S, Site

from .clients import ASKED, model, scripted, sdk

LIMITED: dict[str, Any] = {**ASKED, "extra_body": {"routewright": {"budget": {"maxCostUsd": 1e-9}}}}


def failure(site: Site, key: str | None = None, **asked: Any) -> anthropic.APIStatusError:
    with sdk(site, key) as client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**{**ASKED, **asked})
    return caught.value


def test_an_error_lists_at_most_twenty_rejected_models_callable_ones_first() -> None:
    site = scripted(ScriptedProvider([], models=[model()]))
    caught = failure(site, site.key(), **LIMITED)
    assert caught.error_code == "router.budget_exceeded"
    rejected = caught.body["error"]["details"]["rejected_candidates"]
    assert len(rejected) == 20
    assert (rejected[0]["model"], rejected[0]["reason"]) == ("test/one", "budget_cost")
    assert {each["reason"] for each in rejected[1:]} <= {"disabled", "deprecated", "provider_unavailable"}
    assert len(str(caught)) < 3_000


def test_a_fault_after_content_is_an_error_event() -> None:
    read = threading.Event()

    def answer(call: UpstreamCall) -> Iterator[str]:
        yield "Hel"
        read.wait(PATIENCE_S)
        raise ProviderFault("reset")

    site, heard = scripted(CallableProvider(answer, models=[model()])), list[str]()
    raised = pytest.raises(anthropic.APIStatusError)

    def listen(stream: anthropic.MessageStream[None]) -> None:
        for text in stream.text_stream:
            heard.append(text)
            read.set()

    with sdk(site, site.key()) as client, client.messages.stream(**ASKED) as stream, raised as caught:
        listen(stream)
    assert heard == ["Hel"]
    assert caught.value.type == "api_error"
    assert caught.value.error_code == "router.upstream_failed"
