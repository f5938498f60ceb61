"""A file is written beside the one that it takes the place of: nobody ever reads half of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TextIO

PRIVATE, SHARED = 0o600, 0o666
"""Rights of a new file, of which the umask takes some: its owner alone reads it; others do, too."""


@contextmanager
def replacing(path: Path, new: int) -> Iterator[TextIO]:
    """A draft to write, which then takes the place of a file and has its rights, or ``new`` where there is none.

    What is no file, as a device or a pipe, is written to directly. Raises ``OSError``.
    """
    try:
        there = path.stat().st_mode
    except FileNotFoundError:
        there = None
    if there is not None and not stat.S_ISREG(there):
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    target = path.resolve()  # of a link it is what the link leads to
    draft = target.with_name(f".{token_hex(8)}.new")
    written = _made(draft, new if there is None else PRIVATE)
    try:
        with written:
            yield written
        if there is not None:
            with suppress(OSError):  # as on an exFAT stick, which knows no rights
                draft.chmod(there & 0o777)
        os.replace(draft, target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _made(path: Path, rights: int) -> TextIO:
    return open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, rights))
