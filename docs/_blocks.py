"""Runs what the documentation shows: Python blocks, commands, and the output that stands below them.

A page is read from top to bottom. Its Python blocks share one namespace and a folder of their own; functions named
``test_...`` are called. A ``text`` block right below a Python block is what that printed, the lines below ``$
routewright ...`` in a ``console`` block are what the command printed; a line ``...`` there leaves lines out. A comment
on the line before a block says what is special about it:

    <!-- file: NAME -->     the block is written to this file first
    <!-- prints: COMMAND -->    the block is what the command prints
    <!-- not run: WHY -->   the block is only compiled
    <!-- needs: NAME -->    so it is where that server or Python module is not installed
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple
from unittest.mock import patch

import anyio
from tests.database_servers import NotInstalled, find

from routewright import Catalogue
from routewright.backends.clock import SystemClock
from routewright.backends.providers.hosts import HOSTS
from routewright.cli import main

ROOT = Path(__file__).parent.parent
NOON = datetime.fromisoformat(f"{Catalogue().as_of}T12:00:00+00:00").timestamp()
"""When everything is run: the day of the bundled facts, since models retire with time."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_VOLATILE = (
    (re.compile(r"\b(tr|key|inc)_[0-9A-Z]{26}"), r"\1_*"),
    (re.compile(r"\bsk_(live|test)_[0-9A-Za-z]{4,}"), r"sk_\1_*"),
    (re.compile(r"\b\d+(\.\d+)? ms"), "* ms"),
    (re.compile(r"\b(\d+)\.\d s\b"), r"\1.* s"),  # with the sandbox's own are those of the decision
    (re.compile(r"[▏▎▍▌▋▊▉█]+"), "█"),  # bars have what room the measured times leave
    (re.compile(r"[ \t]+"), " "),
)


class Block(NamedTuple):
    """A fenced block of a page."""

    mark: str
    language: str
    text: str
    start: int
    """Where its text begins, in characters of the page."""
    line: int


class Shown(NamedTuple):
    """Output that a page shows, and what was really printed."""

    start: int
    shown: str
    printed: str

    @property
    def agrees(self) -> bool:
        """Whether they are the same, but for ids, measured times, bars, spaces and what ``...`` leaves out."""
        parts = [re.escape(_steady(part)) for part in re.split(r"^\.\.\.\n", self.shown, flags=re.MULTILINE)]
        return re.fullmatch(r"(?:.*\n)*?".join(parts), _steady(self.printed)) is not None


def pages() -> list[Path]:
    """Every page: the README and what lies in ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = _BLOCK.finditer(text)
    starts = [(each, each.start("text")) for each in found]
    return [
        Block(each["mark"] or "", each["language"], each["text"], start, text.count("\n", 0, start))
        for each, start in starts
    ]


def run(page: Path) -> list[Shown]:
    """Run a page. Raises what a block raises; gives what the page shows beside what was printed."""
    text = page.read_text("utf-8")
    shown: list[Shown] = []
    namespace: dict[str, Any] = {"__name__": "__page__"}
    printed, end = None, 0
    with _at_home():
        for block in blocks(text):
            follows = text[end : block.start].split() == ["```", "```text"]
            end = block.start + len(block.text)
            kind, _, said = block.mark.partition(": ")
            if kind == "file":
                Path(said).write_text(block.text, "utf-8")
            elif kind == "prints":
                shown.append(Shown(block.start, block.text, _command(shlex.split(said)[1:])[0]))
            elif block.language == "console":
                shown += _session(block)
            elif block.language == "text" and follows and printed is not None:
                shown.append(Shown(block.start, block.text, printed))
            printed = None
            if block.language == "python":
                code = _compiled(page, block)
                runs = kind != "not run" and (kind != "needs" or _is_installed(said))
                printed = _printed(code, namespace) if runs else None
    return shown


def _is_installed(name: str) -> bool:
    if "." in name:
        return find_spec(name) is not None
    try:
        find(name)
    except NotInstalled:
        return False
    return True


@contextmanager
def _at_home() -> Iterator[None]:
    """An empty folder, a webhook secret but neither keys nor a store in the environment, and the day of the facts."""
    variables = {"ROUTEWRIGHT_STORE", "ROUTEWRIGHT_SECRET", "ROUTEWRIGHT_SECRET_BEFORE"}
    variables |= {name for host in HOSTS.values() for name in (*host.key_variables, host.url_variable or "")}
    kept = {name: value for name, value in os.environ.items() if name not in variables}
    kept["WEBHOOK_SECRET"] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    with ExitStack() as stack:
        stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(patch.dict(os.environ, kept, clear=True))
        stack.enter_context(patch.object(SystemClock, "time", lambda self: NOON))
        yield


def _compiled(page: Path, block: Block) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile("\n" * block.line + block.text, str(page), "exec", flags=flags, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _printed(code: CodeType, namespace: dict[str, Any]) -> str:
    known = set(namespace)
    with redirect_stdout(io.StringIO()) as out:
        _call(partial(eval, code, namespace), waits=bool(code.co_flags & CO_COROUTINE))
        for name in namespace.keys() - known:
            if name.startswith("test_"):
                test = namespace[name]
                _call(test, waits=bool(test.__code__.co_flags & CO_COROUTINE))
    return out.getvalue()


def _call(function: Callable[[], Any], *, waits: bool) -> None:
    if waits:
        anyio.run(function)
    else:
        function()


def _session(block: Block) -> Iterator[Shown]:
    """The commands of a console block with their output; ``echo $?`` shows the last exit code."""
    code, at = 0, block.start
    for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
        line, _, shown = part.partition("\n")
        start, at = at + len(line) + 1, at + len(part)
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words == ["echo", "$?"]:
            yield Shown(start, shown, f"{code}\n")
        elif words and words[0] == "routewright" and not set(words) & set("|<>;"):
            printed, code = _command(words[1:])
            if shown.strip():
                yield Shown(start, shown, printed)
            else:
                assert code == 0, f"{line} ended with {code}: {printed}"
        else:
            assert not shown.strip(), f"output below a command that is not run: {line}"


def _command(argv: list[str]) -> tuple[str, int]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), patch.object(sys, "stdin", None):
        try:
            code = main(argv)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return out.getvalue(), code


def _steady(text: str) -> str:
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())
