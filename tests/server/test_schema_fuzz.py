"""The OpenAPI document is accurate: schemathesis sends valid and invalid requests, and checks responses against it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from itertools import count
from typing import Any

import pytest
from docs._openapi import VENDOR_ROUTES
from hypothesis import settings

from .openapi_document import DOCUMENT
from .uvicorn_server import Site, bearer

schemathesis = pytest.importorskip("schemathesis", reason="the test group installs it")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

FULL = settings().max_examples > 1_000
"""``--full``: the profile of hypothesis says so when this is read."""
CASES = {
    "/v1/route": (15, 8_000),
    "/v1/agents/run": (8, 2_000),
    "/v1/decide": (6, 5_000),
    "/v1/traces": (10, 4_000),
    "/v1/traces/{trace_id}": (6, 1_000),
    "/v1/analytics/usage": (6, 2_000),
    "/v1/analytics/cache": (5, 1_000),
    "/v1/analytics/fallback": (5, 1_000),
    "/v1/analytics/latency": (5, 1_000),
    "/v1/models": (5, 500),
    "/v1/policies": (5, 500),
    "/v1/openapi.json": (5, 500),
}
"""How many of each operation are generated, by chance; with ``--full`` the edges of everything come on top."""
PROMISED = 20_000
"""In all, with ``--full``."""
ENOUGH = 0.9
"""The share of them that has to be sent: what chance makes twice is asked once."""
HURRIED_MS = 5_000
"""Who allows less may be told that it was too little."""

UNTOLD = re.compile(
    r"unknown (model|policy)"
    r"|takes \d+ bytes|holds (?:half of a|an unpaired) surrogate|nests more than"
    r"|is not a tool here|names .* twice"
    r"|is set by the router|may add costs that no budget|which uses up max_output_tokens"
    r"|which is not declared|is 'required', but there are no tools|declares .* again"
    r"|is .*, but the body says"
    r"|unknown key|is not a term|cannot be compared|is compared with|it is one of|has no value|write true or false"
    r"|the value of .* is|the quotes of|the cursor (is|does)"
    r"|after .*, the (end_date|to)|days up to|over \d+ days|must be a date|YYYY-MM-DD|write a timestamp|a year from 1"
    r"|is outside|none of|group_by: is|more than 32 terms"
    r"|is not a public host|is not ASCII|no valid host and port|user information|a control character or a backslash"
    r"|may not be sent by callers with a key",
    re.DOTALL,
)
"""What may be refused of a request that the schema allows: no schema can tell."""

not_a_server_error = pytest.importorskip("schemathesis.checks").not_a_server_error
schema = schemathesis.openapi.from_dict(
    deepcopy(DOCUMENT),  # which it changes
    config=schemathesis.Config.from_dict(
        {
            "generation": {"with-security-parameters": False},
            "phases": {"coverage": {"enabled": FULL}, "stateful": {"enabled": False}},
            "operations": [
                {"include-path": path, "generation": {"max-examples": numbers[FULL]}} for path, numbers in CASES.items()
            ],
        }
    ),
).exclude(path=[*VENDOR_ROUTES])
PLAIN = {
    path
    for path in CASES
    if DOCUMENT["paths"][path].keys() == {"get"} and "parameters" not in DOCUMENT["paths"][path]["get"]
}
"""What takes nothing, so that there is one request of it."""
NEVER_TAKEN = {"/v1/traces/{trace_id}"}
"""What names a thing that is not there, as chance has it."""
sent: Counter[str] = Counter()
taken: Counter[str] = Counter()
numbers = count()


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, str]]:
    site = Site()
    key = site.key(environment="sandbox", account_plan="unlimited")
    with site.served() as url:
        yield url, key


@pytest.fixture(autouse=True)
def enough(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold each operation, in whichever process it was, to its number of requests, of which many have got in."""
    before, failed = sent.copy(), request.session.testsfailed
    yield
    if request.node.name == test_every_operation_is_fuzzed.__name__ or request.session.testsfailed > failed:
        return
    ((path, number),) = (sent - before).items()
    assert number >= (1 if path in PLAIN else ENOUGH * CASES[path][FULL])
    if FULL and path not in NEVER_TAKEN:  # of few requests, chance may have every one refused
        assert taken[path] >= number / 10


def refused_only_for_what_no_schema_tells(ctx: Any, response: Any, case: Any) -> None:
    """Stands in the place of schemathesis's check, which knows no reason to refuse what the schema allows."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    said = response.json()["error"]["message"]
    strangers = [line for line in said.split("\n") if not UNTOLD.search(line)]
    assert not strangers, f"the schema allows what is refused: {strangers}"


def no_fault_of_the_server(ctx: Any, response: Any, case: Any) -> None:
    if response.status_code == 504:
        assert json.loads(response.request.body)["timeout_ms"] < HURRIED_MS
    else:
        assert response.status_code < 500, response.text


def with_known_names(body: Any) -> None:
    """A body that names nothing which is not there, and is not taken for another."""
    body.pop("policy_id", None)
    body.pop("tool_choice", None)
    for holder in (body, body.get("fallback") or {}):
        if holder.get("models"):
            holder["models"] = ["openai/gpt-4.1", "openai/gpt-4.1-mini"][: len(holder["models"])]
    if body.get("idempotency_key"):
        body["idempotency_key"] = f"key {next(numbers)}"


MENDED = [refused_only_for_what_no_schema_tells, no_fault_of_the_server]
"""Checks in the place of two of schemathesis's; all its others hold as they are."""


@schema.parametrize()  # type: ignore[untyped-decorator]
def test_the_application_conforms_to_its_document(case: Any, site: tuple[str, str]) -> None:
    url, key = site
    sent[case.path] += 1
    positive = case.meta is not None and case.meta.generation.mode.is_positive
    if positive and sent[case.path] % 2 and isinstance(case.body, dict):
        with_known_names(case.body)
        case.headers.pop("Idempotency-Key", None)
    response = case.call_and_validate(
        base_url=url,
        headers=bearer(key),
        additional_checks=MENDED,
        excluded_checks=[checks.positive_data_acceptance, not_a_server_error],
    )
    taken[case.path] += response.status_code in (200, 304)


def test_every_operation_is_fuzzed() -> None:
    assert {*CASES, *VENDOR_ROUTES} == DOCUMENT["paths"].keys()
    assert ENOUGH * sum(full for path, (_, full) in CASES.items() if path not in PLAIN) >= PROMISED
