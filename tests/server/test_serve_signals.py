"""Signals in the first moments of a server: none is lost, and none ends it as if it had crashed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from routewright.serve.signals import Signals

from .command import serving

ENDING = [("SIGTERM", 0), ("SIGINT", 130), ("SIGQUIT", 131)]
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="sends signals that Windows has not")


@pytest.mark.parametrize(("name", "code"), ENDING)
def test_what_is_to_end_a_server_that_has_made_nothing_ends_it_at_once(name: str, code: int) -> None:
    with pytest.raises(SystemExit) as ended, Signals():
        signal.raise_signal(getattr(signal, name))
    assert ended.value.code == code


@pytest.mark.parametrize(("name", "code"), ENDING)
def test_later_it_is_noted_for_the_supervisor(name: str, code: int) -> None:
    number = getattr(signal, name)
    with Signals() as signals:
        signals.hold()
        signal.raise_signal(number)
    assert signals.noted == [number]


def test_a_wish_to_reload_is_noted_from_the_beginning_on() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
    assert signals.noted == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")
def test_a_reload_while_the_server_starts_comes_after_the_start(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.until(lambda: server.children)
        server.signal(signal.SIGHUP)
        assert server.keys
        server.until(lambda: "the new configuration is in force" in server.log)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")
def test_a_server_that_is_ended_while_it_starts_says_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.until(lambda: server.children)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert "Traceback" not in server.log
