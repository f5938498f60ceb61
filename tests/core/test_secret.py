"""Only ``reveal`` shows a secret."""

from __future__ import annotations

import copy
import json
import pickle

import msgspec
import pytest

from routewright.wire.account import Secret, without_password
from tests.tables import table

KEY = "sk-Canary/0123456789+abcdef"


def test_a_secret_is_hidden_in_every_output() -> None:
    secret = Secret(KEY)
    assert secret.reveal() == KEY
    assert Secret(secret).reveal() == KEY
    for text in (repr(secret), str(secret), f"{secret}", f"{secret:>3}", f"{secret!s}", json.dumps(secret)[1:-1]):
        assert text == "***"
    for copied in (copy.copy(secret), copy.deepcopy(secret), pickle.loads(pickle.dumps(secret))):
        assert copied.reveal() == "***"
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)
    with pytest.raises(AttributeError):
        secret._value = "other"


def test_secrets_are_equal_only_to_themselves() -> None:
    secret = Secret(KEY)
    assert secret == secret  # the point
    assert secret != Secret(KEY)
    assert secret != "***"
    assert len({secret, Secret(KEY)}) == 2


def test_a_dump_of_a_secrets_state_holds_no_key() -> None:
    assert Secret(KEY).__getstate__() is None  # type: ignore[func-returns-value]


@table(
    ("url", "shown"),
    [
        ("postgresql://app@host/db", "postgresql://app@host/db"),
        ("postgresql://app:pw@host/db?sslmode=require", "postgresql://app@host/db?sslmode=require"),
        ("postgresql://app:p@w@host/db", "postgresql://app@host/db"),
        ("postgresql:/app:p\nw@host/db", "postgresql:/host/db"),
        (
            "postgresql://host/db?user=app&password=pw&sslpassword=pw",
            "postgresql://host/db?user=app&password=***&sslpassword=***",
        ),
        ("redis+cluster://:pw@host:1,host:2", "redis+cluster://host:1,host:2"),
        ("traces@home.db", "traces@home.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
