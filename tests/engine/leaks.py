"""Collects everything a call leaves behind, to search it for private text: logs, errors, reprs, pickles and files."""

from __future__ import annotations

import logging
import pickle
import secrets
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from types import TracebackType
from typing import Self

from routewright import RouterError


def canary() -> str:
    """A word that stands nowhere else. No id or digest holds it: those have digits or capitals."""
    return "qz" + "".join(secrets.choice(ascii_lowercase) for _ in range(9))


class Watch(logging.Handler):
    """Looks for words in all that it is shown, and in all that the package logs meanwhile.

    with Watch([word]) as watch:
        watch.look_at("the answer", answer)
    assert watch.seen == []
    """

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(logging.DEBUG)
        self.words = words
        self.seen: list[str] = []
        """Where there was one of them."""
        self.looked: set[str] = set()
        """Where it looked."""
        self._logger = logging.getLogger("routewright")
        self._formatter = logging.Formatter("%(name)s %(funcName)s %(message)s")

    def __enter__(self) -> Self:
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a record, and at the error that it brings."""
        where = f"the log of {record.name}"
        self.look_for(where, f"{self._formatter.format(record)} {record.__dict__!r}")
        if record.exc_info and record.exc_info[1] is not None:
            self.look_at_error(where, record.exc_info[1])

    def look_for(self, where: str, text: str | bytes, words: Sequence[str] | None = None) -> None:
        """Look into a text."""
        self.looked.add(where)
        said = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
        if any(word.encode() in said for word in (self.words if words is None else words)):
            self.seen.append(where)

    def look_at(self, where: str, thing: object, words: Sequence[str] | None = None) -> None:
        """Look at what an object shows of itself to whoever prints or logs it, or keeps a notebook."""
        for how, shown in _shown(thing):
            self.look_for(f"{where}: {how} of {type(thing).__name__}", shown, words)

    def look_at_pickle(self, where: str, thing: object, words: Sequence[str] | None = None) -> None:
        """Look at what an object takes along to another process."""
        self.look_for(f"{where}: pickle of {type(thing).__name__}", pickle.dumps(thing), words)

    def look_at_error(self, where: str, error: BaseException, *, but: BaseException | None = None) -> None:
        """Look at an error, all errors behind it, and at its traceback as it is printed. ``but``: at one of them not,
        which is somebody else's, nor then at the printed whole."""
        for each in _chain(error):
            if each is but:
                continue
            told = [str(each), repr(each), repr(each.args), repr(vars(each))]
            told += [repr(getattr(each, name, None)) for name in ("object", "doc", "__notes__")]
            self.look_for(f"{where}: {type(each).__name__}", "\n".join(told))
            if isinstance(each, RouterError):
                self.look_at_pickle(where, each)
        if but is None:
            self.look_for(f"{where}: the traceback", "".join(traceback.format_exception(error)))

    def look_at_files(self, folder: Path) -> None:
        """Look at every byte of every file."""
        for path in sorted(folder.iterdir()):
            self.look_for(f"the file {path.name}", path.read_bytes())


def _shown(thing: object) -> Iterator[tuple[str, str]]:
    yield "repr", repr(thing)
    if type(thing).__str__ is not type(thing).__repr__:
        yield "str", str(thing)
    for name in ("__rich_repr__", "_repr_html_"):
        show = getattr(thing, name, None)
        if show is not None:
            shown = show()
            yield name, shown if isinstance(shown, str) else repr([*shown])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all those behind it, those that are not printed too."""
    left, met = [error], set[int]()
    while left:
        each = left.pop()
        if each is None or id(each) in met:
            continue
        met.add(id(each))
        yield each
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
