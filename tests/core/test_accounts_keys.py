"""Plans and their limits; keys and their validity."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.accounts.keys import (
    PREFIXES,
    RANDOM_BYTES,
    SHOWN,
    compromised_from,
    is_compromised,
    is_live,
    new_key,
    parse_authorization,
    unknown_key_error,
)
from routewright._core.accounts.terms import PLANS, limits_of
from routewright.errors import AuthenticationFailed
from routewright.wire import Environment, PlanName, RateLimits
from routewright.wire.account import holds_key, without_keys
from tests.contracts.storage.samples import make_account, make_key

LIVE = new_key("production", bytes(range(RANDOM_BYTES)))
TEST = new_key("sandbox", bytes(range(RANDOM_BYTES)))
ENVIRONMENTS: tuple[Environment, ...] = ("production", "sandbox")


def refused(authorization: Any, environment: Environment | None = None) -> str:
    with pytest.raises(AuthenticationFailed) as failed:
        parse_authorization(authorization, environment)
    return str(failed.value)


# Plans


def test_the_plans_are_those_of_the_specification() -> None:
    told = {name: (plan.requests_per_min, plan.tokens_per_min, plan.concurrency) for name, plan in PLANS.items()}
    assert told == {
        "free": (60, 60_000, 5),
        "pro": (600, 600_000, 25),
        "team": (3_000, 3_000_000, 100),
        "enterprise": (None, None, None),
        "unlimited": (None, None, None),
    }
    assert set(told) == set(get_args(PlanName))


@pytest.mark.parametrize("plan", get_args(PlanName))
def test_each_limit_of_an_account_overrides_its_plan(plan: PlanName) -> None:
    assert limits_of(make_account(plan=plan)) == PLANS[plan]
    assert limits_of(make_account(plan=plan, limits=RateLimits())) == PLANS[plan]
    own = RateLimits(requests_per_min=7, tokens_per_min=0)
    expected = RateLimits(requests_per_min=7, tokens_per_min=0, concurrency=PLANS[plan].concurrency)
    assert limits_of(make_account(plan=plan, limits=own)) == expected


# Keys


@given(st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES), st.sampled_from(ENVIRONMENTS))
def test_a_key_shows_its_environment_and_keeps_all_random_bits(chance: bytes, environment: Environment) -> None:
    made = new_key(environment, chance)
    assert made.startswith(PREFIXES[environment])
    assert len(made) == len(PREFIXES[environment]) + 33
    assert parse_authorization(f"Bearer {made}", environment) == (made, environment)
    assert parse_authorization(f"Bearer {made}", None) == (made, environment)
    flipped = bytes([chance[0] ^ 1, *chance[1:]])
    assert new_key(environment, flipped) != made
    assert new_key(environment, bytes([*chance[:-1], chance[-1] ^ 128])) != made


def test_a_key_has_192_random_bits() -> None:
    assert RANDOM_BYTES * 8 == 192


@pytest.mark.parametrize("header", [f"Bearer {LIVE}", f"bearer {LIVE}", f"BEARER   {LIVE}", f"Bearer {LIVE}  "])
def test_bearer_is_case_insensitive(header: str) -> None:
    assert parse_authorization(header, "production").key == LIVE


@pytest.mark.parametrize("header", [None, "", "   ", 7, b"Bearer x"])
def test_a_missing_key_is_reported(header: Any) -> None:
    assert refused(header).startswith("an API key is missing")


@pytest.mark.parametrize(
    "header",
    [
        LIVE, f"Basic {LIVE}", f"Bearer{LIVE}", f"Bearer\t{LIVE}", f" Bearer {LIVE}", f"Bearer {LIVE} {LIVE}",
        f"Bearer {LIVE}\n", "Bearer ", f"Bearer {LIVE}é", f"Bearer {LIVE}" + " " * 200, "Bearer " + "x" * 10_000,
    ],
)  # fmt: skip
def test_any_other_authorization_header_is_refused(header: str) -> None:
    said = refused(header)
    assert "not 'Bearer <API key>'" in said
    assert LIVE not in said


@pytest.mark.parametrize(
    "told",
    ["x", "sk_live_", "sk_live_short", LIVE[:-1], LIVE + "0", LIVE.upper(), "sk_prod_" + LIVE[8:], LIVE[:-1] + "-"],
)
def test_a_malformed_key_is_refused_like_an_unknown_one(told: str) -> None:
    said = refused(f"Bearer {told}")
    assert said == str(unknown_key_error())
    assert told not in said or told == "x"


@pytest.mark.parametrize(("told", "here"), [(LIVE, "sandbox"), (TEST, "production")])
def test_a_key_of_the_other_environment_is_refused_with_its_address(told: str, here: Environment) -> None:
    other: Environment = "production" if here == "sandbox" else "sandbox"
    assert refused(f"Bearer {told}", here) == (
        f"this address takes {PREFIXES[here]}... keys; send the {PREFIXES[other]}... key to the {other} address"
    )


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")) | st.text().map(lambda text: f"Bearer {text}"))
def test_invalid_headers_are_never_echoed(header: str) -> None:
    said = refused(header)
    assert len(header) < 8 or header not in said


# Revocation


@pytest.mark.parametrize(
    ("created_at", "compromised"),
    [
        ("2026-11-20T09:29:59.999Z", False),
        ("2026-11-20T09:30:00.000Z", True),
        ("2026-11-21T09:30:00.000Z", True),
        ("2026-11-21T09:30:00.001Z", True),
        ("2027-01-01T00:00:00.000Z", True),
    ],
)
def test_calls_are_compromised_from_a_day_before_revocation(created_at: str, compromised: bool) -> None:
    revoked_at = "2026-11-21T09:30:00.000Z"
    assert is_compromised(created_at, revoked_at) is compromised
    assert compromised_from(revoked_at) == "2026-11-20T09:30:00.000Z"
    assert is_live(make_key())
    assert not is_live(make_key(revoked_at=revoked_at))


@given(
    st.sampled_from([*PREFIXES.items()]), st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES), st.text(), st.text()
)
def test_text_without_keys_shows_only_their_prefix(
    which: tuple[Environment, str], chance: bytes, before: str, after: str
) -> None:
    environment, prefix = which
    key = new_key(environment, chance)
    shown = without_keys(f"{before}{key} {after}{key[:-7]}...")
    assert not holds_key(shown)
    assert shown == f"{without_keys(before)}{prefix}*** {without_keys(after)}{prefix}***..."


def test_the_first_letters_of_a_key_may_be_shown() -> None:
    assert without_keys(f"{LIVE[:SHOWN]}... of acme") == f"{LIVE[:SHOWN]}... of acme"
