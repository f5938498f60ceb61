"""How many tokens a call reserves in its rate window before its usage is known."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from routewright import ProviderFault, RateLimited
from routewright.errors import UpstreamFailed
from routewright.wire import RateLimits

from .test_admission import ANSWER, Bank, account

pytestmark = pytest.mark.anyio


async def asked(**options: Any) -> int:
    """How many tokens a call asks for, by its refusal."""
    bank = await Bank(ANSWER, terms=[account(limits=RateLimits(tokens_per_min=10))]).open()
    await bank.route()
    with pytest.raises(RateLimited) as refused:
        await bank.route(**options)
    assert refused.value.detail["resource"] == "tokens"
    return int(refused.value.detail["asked"])


async def test_a_call_counts_its_output_cap_or_256_tokens() -> None:
    least = await asked(params={"max_output_tokens": 1})
    assert await asked(params={"max_output_tokens": 900}) - least == 899
    assert await asked(params=None) - least == 255
    assert await asked(params={"temperature": 0.0}) - least == 255


async def test_a_call_counts_the_upper_bound_of_its_input_tokens() -> None:
    short, long = await asked(text="hi"), await asked(text="word " * 500)
    assert long - short > 500


@pytest.mark.parametrize(("answered", "admitted"), [(True, False), (False, True)])
async def test_a_call_of_unknown_usage_counts_all_its_estimated_tokens(answered: bool, admitted: bool) -> None:
    terms = [account(limits=RateLimits(tokens_per_min=1_000))]
    bank = await Bank([ProviderFault("auth", answered=answered)], ANSWER, terms=terms).open()
    with pytest.raises(UpstreamFailed):
        await bank.route(params={"max_output_tokens": 700})
    with nullcontext() if admitted else pytest.raises(RateLimited):
        await bank.route(params={"max_output_tokens": 400})
    assert len(bank.good.calls) == 1 + admitted
