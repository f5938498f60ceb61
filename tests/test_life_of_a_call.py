"""``docs/explanation/life-of-a-call.md``: the walks are those of a real call, and visit each file once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest
from benchmarks.doubles import MODELS

from routewright import CallableProvider, Catalogue, Console, MemoryStorage, Router
from tests import test_hot_path as path

from .frames import Call, Entered, Profile

PAGE = Path(__file__).parents[1] / "docs/explanation/life-of-a-call.md"
ROW = re.compile(r"\| `(?P<file>[\w/.]+)` \| `(?P<function>[\w.]+)` \| `(?P<name>\w+)` \|")


class Step(NamedTuple):
    """A row of a walk: in this function of this file the thing has this name."""

    file: str
    function: str
    name: str


def walks() -> Iterator[list[Step]]:
    section = PAGE.read_text("utf-8").partition("## Four walks")[2]
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        yield [Step(**row.groupdict()) for row in ROW.finditer(table)]


BUDGET, TIMEOUT, CHUNK, DOLLAR = walks()


@asynccontextmanager
async def calls() -> AsyncIterator[tuple[Call, Call, Call]]:
    """A plain call, a streamed one and one of an account, each with a budget and a timeout."""
    storage = MemoryStorage()
    router = Router(providers=[CallableProvider(path.answer, models=MODELS)], catalogue=Catalogue(()), storage=storage)
    async with Console(storage, secret="a secret that is long enough for one") as console, router:
        caller = await console.authenticate(await path.new_key(console, budgets=True))

        async def plain() -> None:
            await router.route("hi", budget={"maxCostUsd": 1.0}, timeout_ms=5_000)

        async def streamed() -> None:
            async with router.stream("hi") as stream:
                async for _ in stream:
                    pass

        async def limited() -> None:
            await router.route("hi", caller=caller)

        yield plain, streamed, limited


async def entered_by(place: int) -> list[Entered]:
    async with calls() as made:
        with Profile(__file__, but=path.answer) as profile:
            return await profile.of(made[place], made[place])


def names_of(code: CodeType) -> set[str]:
    """What a function, and those inside it, name."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    keywords = {name for const in code.co_consts if isinstance(const, tuple) for name in const if isinstance(name, str)}
    own = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars, *keywords}
    return own.union(*map(names_of, inner))


@pytest.mark.anyio
@pytest.mark.parametrize(("walk", "place"), [(BUDGET, 0), (TIMEOUT, 0), (CHUNK, 1), (DOLLAR, 2)])
async def test_a_walk_is_that_of_a_real_call(walk: list[Step], place: int) -> None:
    assert len(walk) >= 5
    entered = iter(await entered_by(place))
    for step in walk:
        code = next(
            (
                each.code
                for each in entered
                if (each.code.co_qualname, each.is_ours) == (step.function, True)
                and each.code.co_filename.endswith(f"routewright/{step.file}")
            ),
            None,
        )
        assert code is not None, f"{step.function} of {step.file} is not entered after the step before it"
        assert step.name in names_of(code), f"{step.function} of {step.file} names no {step.name}"


@pytest.mark.parametrize("walk", [BUDGET, TIMEOUT, CHUNK, DOLLAR])
def test_a_walk_visits_each_file_once(walk: list[Step]) -> None:
    files = [step.file for step in walk]
    assert sorted(files) == sorted({*files})
