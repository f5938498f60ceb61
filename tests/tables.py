"""A table in one item: what ``pytest.mark.parametrize`` is for cheap rows, without an item, and its cost, for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence


def table(
    names: str | Sequence[str], rows: Iterable[object], ids: object = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test of no other arguments than these for each row; a failure says for which.

    Several multiply, as those of pytest do. ``ids`` names what a row is, for readers.
    """
    keys = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    listed = list(rows)

    def over_rows(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**others: object) -> None:
            for row in listed:
                values: Iterable[object] = [row] if len(keys) == 1 else row  # type: ignore[assignment]
                try:
                    test(**others, **dict(zip(keys, values, strict=True)))
                except Exception as error:
                    error.add_note(f"in the row {row!r:.500}")
                    raise

        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return over_rows
