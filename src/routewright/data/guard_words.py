"""Reads ``guard_words.txt``: the words that the guards of the semantic cache know."""

from importlib.resources import files


def guard_words() -> str:
    """The text of the file."""
    return files("routewright.data").joinpath("guard_words.txt").read_text("utf-8")
