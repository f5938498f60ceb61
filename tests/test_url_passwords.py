"""No command shows the password of a URL, whatever is wrong with that URL or with the server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from routewright.cli import main
from routewright.cli.command import Parser
from routewright.cli.command import parser as make_parser
from routewright.errors import ValidationFailed
from routewright.storage import open_cache, open_coordination, open_storage
from routewright.wire.account import without_password, without_passwords
from tests.tables import table

SECRET = "canary-7741"
PLACES = (
    f"redis://:{SECRET}@127.0.0.1:1/0?password={SECRET}",
    f"redis+sentinel://u:{SECRET}@127.0.0.1:1/main",
    f"redi://u:{SECRET}@127.0.0.1:1/main",
    f"redis:u:{SECRET}@127.0.0.1:1",
    f"redis://u:12/{SECRET}@127.0.0.1:1",
    f"redis://u:12#{SECRET}@127.0.0.1:1",
    f"postgresql://u:{SECRET}@127.0.0.1:1/x",
    f"postgresql://u:{SECRET}@127.0.0.1:none/x",
    f"postgresql://127.0.0.1:1/x?user=u&password={SECRET}",
    f"postgres://u:{SECRET}@[::1/x",
    f"postgresql//u:{SECRET}@127.0.0.1:1/x",
)
COMMANDS = (
    "cache stats --cache URL",
    "store create URL --grant-to nobody",
    "store copy URL URL",
    "store backup --store URL copy.db",
    "store check URL",
    "store upgrade URL",
    "store URL",
    "URL",
    "traces ls --store URL",
    "route --sandbox --store URL hello",
    "serve --check --store URL",
    "serve --check --cache URL --coordination URL",
    "serve URL",
    "serve --check --config serve.toml",
    "serve --check --config lists.toml",
)


@pytest.fixture(scope="module")
def parser() -> Callable[[], Parser]:
    """The parser of the command line, made once."""
    return cache(make_parser)


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_the_password_of_a_url(
    command: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    parser: Callable[[], Parser],
    full: bool,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", "0123456789abcdef" * 4)
    monkeypatch.setattr("routewright.cli.command.parser", parser)
    first, step = (0, 1) if full else (COMMANDS.index(command) % 3, 3)
    for place in PLACES[first::step]:
        Path("serve.toml").write_text("".join(f'{key} = "{place}"\n' for key in ("store", "cache", "coordination")))
        Path("lists.toml").write_text(f'store = ["{place}"]\n"{place}" = "{place}"\n')
        for argv in (command.split(), [*command.split(), "--json"]):
            with suppress(SystemExit):
                main([word.replace("URL", place) for word in argv])
            said = "".join(capfd.readouterr()) + caplog.text
            assert SECRET not in said, (argv, place)


@table("open_url", [open_storage, open_cache, open_coordination])
def test_no_object_or_error_shows_the_password_of_its_url(open_url: Callable[[str], object]) -> None:
    for place in (*PLACES, f"u:{SECRET}@127.0.0.1:1"):
        try:
            shown = repr(open_url(place))
        except ValidationFailed as error:
            shown = f"{error!r} {error} {error.detail}"
        assert SECRET not in shown, place


def test_text_without_a_password_is_unchanged() -> None:
    for text in ("a policy cheap@2026-11-22: x", "sqlite:///folder/x@y.db: gone", "at 12:30 @question.txt", "key: a@b"):
        assert without_passwords(text) == text


@table(
    ("url", "shown"),
    [
        (f"postgresql://u:{SECRET}@127.0.0.1:1/x", "postgresql://u@127.0.0.1:1/x"),
        (f"postgresql://a%40b:{SECRET}@h/x", "postgresql://a%40b@h/x"),
        (f"redis://:{SECRET}@h/1", "redis://h/1"),
        (f"redis://u:1@{SECRET}@h/1", "redis://u@h/1"),
    ],
)
def test_the_user_of_a_url_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
