"""A picture of the source: its floors from the top down, with the files of each room."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from tests.test_layers import FLOORS, SRC

WIDTH = 108


def picture() -> str:
    """The rooms of each floor with their files, in alphabetical order; a folder in a room is a line of its own."""
    lines = ["```text"]
    for floor in reversed(FLOORS):
        lines += ["", *(line for room in _rooms(floor) for line in room)]
    return "\n".join([lines[0], *lines[2:], "```"])


def _rooms(floor: list[str]) -> list[list[str]]:
    folders = [SRC / room for room in floor if (SRC / room).is_dir()]
    alone = sorted(room for room in floor if (SRC / f"{room}.py").is_file() and not room.startswith("__"))
    rooms = [_room("", alone)] if alone else []
    for folder in folders:
        for inner in [folder, *sorted(each for each in folder.rglob("*") if each.is_dir())]:
            files = sorted(file.stem for file in inner.glob("*.py") if file.stem != "__init__")
            if files:
                rooms.append(_room(_name(inner), files))
    return rooms


def _name(folder: Path) -> str:
    return f"{folder.relative_to(SRC).as_posix()}/"


def _room(name: str, files: list[str]) -> list[str]:
    return wrap(
        " ".join(files), WIDTH, initial_indent=f"{name:<31}", subsequent_indent=" " * 31, break_on_hyphens=False
    )
