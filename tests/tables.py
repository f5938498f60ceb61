"""A table in one item: what ``pytest.mark.parametrize`` is for cheap rows, without an item, and its cost, for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

_Param = type(pytest.param())


def table(
    names: str | Sequence[str], rows: Iterable[object], ids: object = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test for each row; a failure says for which. The rows share the fixtures of the test.

    Several multiply, as those of pytest do. A row may be a ``pytest.param``. ``ids`` names what a row is, for readers.
    """
    keys = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    listed = list(rows)

    def cells_of(row: Any) -> dict[str, object]:
        values = row.values if isinstance(row, _Param) else [row] if len(keys) == 1 else row
        return dict(zip(keys, values, strict=True))

    def over_rows(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run(**others: object) -> None:
            for row in listed:
                try:
                    test(**others, **cells_of(row))
                except Exception as error:
                    error.add_note(f"in the row {row!r:.500}")
                    raise

        @functools.wraps(test)
        async def run_async(**others: object) -> None:
            for row in listed:
                try:
                    await test(**others, **cells_of(row))
                except Exception as error:
                    error.add_note(f"in the row {row!r:.500}")
                    raise

        runner: Any = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        runner.__signature__ = signature.replace(parameters=left)
        return runner  # type: ignore[no-any-return]

    return over_rows
