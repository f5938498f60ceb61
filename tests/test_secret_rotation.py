"""The root secret is changed: two hold at a time, everybody hears of it, and no crash leaves the store without one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import MemoryStorage, TraceStore
from routewright._setup.root_secret import BEFORE, SECRET, RootSecret, SecretFile, secret_path
from routewright.errors import CursorInvalid, PreconditionFailed, StorageUnavailable, ValidationFailed
from tests.contracts.storage.samples import make_trace
from tests.programs import Program
from tests.tables import table

NEW, PRESENT = "a new secret that is long enough", "the present secret, also long enough"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def rotate(store: Path) -> tuple[bytes, ...]:
    """Change the secret as another process would; those that hold now."""
    file = SecretFile(store)
    file.rotate(file.load()[0])
    return file.load()


def test_the_new_secret_is_first_and_the_previous_second(store: Path) -> None:
    file = SecretFile(store)
    (first,) = file.load()
    file.rotate(first)
    second, before = file.load()
    assert before == first != second
    assert secret_path(store).read_bytes() == second + b"\n" + first + b"\n"
    assert secret_path(store).stat().st_mode & 0o777 == 0o600
    file.rotate(second)
    assert file.load()[1:] == (second,)
    assert len({*file.load(), first}) == 3
    assert [path.name for path in store.parent.iterdir()] == ["traces.db.secret"], "no part is left"


def test_another_user_reads_a_changed_file_again(store: Path) -> None:
    file = SecretFile(store)
    (first,) = file.load()
    assert file.load() is file.load()
    assert rotate(store) == file.load()
    assert file.load()[1] == first
    secret_path(store).unlink()
    assert file.load()[1] == first, "one that is gone is still known"


def test_a_secret_is_rotated_once_from_the_same_base(store: Path) -> None:
    first, second = SecretFile(store), SecretFile(store)
    (base,) = first.load()
    assert second.load() == (base,)
    first.rotate(base)
    with pytest.raises(PreconditionFailed, match="check before you rotate it again"):
        second.rotate(base)
    assert second.load() == first.load()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such lock there")
def test_a_locked_file_is_not_waited_for(store: Path) -> None:
    import fcntl

    file = SecretFile(store)
    before = file.load()
    with secret_path(store).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PreconditionFailed, match="is changing"):
            file.rotate(before[0])
        assert file.load() == before
    file.rotate(before[0])
    assert file.load()[1:] == before


def test_memory_rotates_for_all_its_users() -> None:
    storage = MemoryStorage()
    one, other = RootSecret(storage, {}), RootSecret(storage, {})
    (base,) = one.load()
    one.rotate(base)
    assert other.load() == one.load()
    assert one.load()[1] == base
    with pytest.raises(PreconditionFailed):
        other.rotate(base)
    assert one.is_durable


def test_a_configured_secret_is_not_rotated() -> None:
    told = RootSecret(MemoryStorage(), {SECRET: PRESENT})
    with pytest.raises(ValidationFailed, match=f"set {SECRET} to a new one and {BEFORE} to the present one") as raised:
        told.rotate(PRESENT.encode())
    assert PRESENT not in str(raised.value)
    passed = RootSecret(MemoryStorage(), {SECRET: PRESENT}, [NEW, PRESENT])
    assert passed.load() == (NEW.encode(), PRESENT.encode())
    with pytest.raises(ValidationFailed, match="pass \\[the new one, the present one\\] as secret"):
        passed.rotate(NEW.encode())


@table("given", [7, [], [NEW, PRESENT, NEW], [NEW, 7], b"b" * 32, "short", "", [NEW, "short"]])
def test_an_invalid_secret_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"^secret") as raised:
        RootSecret(MemoryStorage(), {}, given)
    for text in (NEW, PRESENT, "short'"):
        assert text not in str(raised.value)


class Elsewhere:
    """A storage that is in no file, and that outlives the process all the same."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(MemoryStorage(), name)


def test_a_random_secret_for_another_storage_is_not_persistent() -> None:
    secret = RootSecret(Elsewhere(), {})
    assert secret.load() == secret.load()
    assert not secret.is_durable
    with pytest.raises(StorageUnavailable, match=f"no root secret is stored; set {SECRET}"):
        secret.rotate(secret.load()[0])


def test_a_secret_that_cannot_be_written_is_not_persistent(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SecretFile(store)
    with monkeypatch.context() as broken:
        broken.setattr(os, "link", fails)
        (made,) = file.load()
    assert not file.is_durable
    with pytest.raises(StorageUnavailable, match="cannot be replaced"):
        file.rotate(made)
    assert SecretFile(store).is_durable
    assert file.load() != (made,), "one that another could keep is taken"


def fails(*given: Any, **rest: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_failed_write_keeps_the_secret(store: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SecretFile(store)
    before = file.load()
    monkeypatch.setattr(os, step, fails)
    with pytest.raises(StorageUnavailable, match="No space left") as raised:
        file.rotate(before[0])
    monkeypatch.undo()
    assert before[0].decode() not in str(raised.value)
    assert SecretFile(store).load() == before
    assert [path.name for path in store.parent.iterdir()] == ["traces.db.secret"], "no part is left"


class Killed(BaseException):
    """The process ends here."""


STEPS = ("open", "fdopen", "fsync", "link", "rename", "replace", "unlink", "close", "stat", "fstat")


def killed_at(step: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let a process die before it does that step, so that none of the later ones is done either. False: it ended."""
    done = count(1)

    def dying(call: Callable[..., Any], *given: Any, **rest: Any) -> Any:
        if next(done) >= step:
            raise Killed
        return call(*given, **rest)

    with monkeypatch.context() as dead:
        for name in STEPS:
            real = getattr(os, name)
            dead.setattr(os, name, lambda *given, _real=real, **rest: dying(_real, *given, **rest))
        try:
            act()
        except Killed:
            return True
    return False


def test_a_crash_at_any_step_of_a_rotation_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[bool] = []
    for step in count(1):
        store = tmp_path / f"{step}.db"
        (base,) = SecretFile(store).load()
        file = SecretFile(store)
        died = killed_at(step, lambda file=file, base=base: file.rotate(base), monkeypatch)  # type: ignore[misc]
        live = SecretFile(store).load()
        assert base in live
        assert secret_path(store).stat().st_mode & 0o777 == 0o600
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir()), "parts that are left, too"
        changed.append(len(live) == 2)
        if not died:
            break
        rotate(store)
    assert changed == sorted(changed)
    assert changed[0] is False
    assert changed[-1] is True
    assert len(changed) > 6


def test_a_crash_at_any_step_of_creation_leaves_no_file_or_a_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in count(1):
        store = tmp_path / f"{step}.db"
        died = killed_at(step, lambda store=store: SecretFile(store).load(), monkeypatch)  # type: ignore[misc]
        assert len(SecretFile(store).load()[0]) == 64
        if not died:
            break
    assert step > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_one_of_many_processes_rotates(store: Path, full: bool) -> None:
    code = """
import sys
from pathlib import Path
from routewright.errors import PreconditionFailed
from routewright._setup.root_secret import SecretFile
from tests.tables import table
file = SecretFile(Path(sys.argv[1]))
print("ready", flush=True)
while sys.stdin.readline().strip():
    base = file.load()[0]
    print("seen", flush=True)
    sys.stdin.readline()
    try:
        file.rotate(base)
        print("done", flush=True)
    except PreconditionFailed:
        print("late", flush=True)
"""
    with ExitStack() as stack:
        racing = [stack.enter_context(Program("-c", code, str(store))) for _ in range(3)]

        def all_say() -> list[str]:
            return sorted(one.heard() for one in racing)

        def tell_all() -> None:
            for one in racing:
                one.tell()

        assert all_say() == ["ready"] * 3
        before = SecretFile(store).load()
        for _ in range(200 if full else 4):
            tell_all()
            assert all_say() == ["seen"] * 3
            tell_all()
            assert all_say() == ["done", "late", "late"]
            live = SecretFile(store).load()
            assert live[1] == before[0]
            before = live


def test_cursors_are_valid_as_long_as_their_secret(store: Path) -> None:
    async def walk() -> None:
        here, elsewhere = (TraceStore(f"sqlite:///{store}") for _ in range(2))
        for number in range(4):
            await here.record(make_trace(number))
        page = await here.query(limit=1)
        rotate(store)
        second = await elsewhere.query(limit=1, cursor=page.next_cursor)
        assert (await here.query(limit=1, cursor=second.next_cursor)).data
        assert (await here.query(limit=1, cursor=page.next_cursor)).data == second.data
        rotate(store)
        with pytest.raises(CursorInvalid):
            await here.query(limit=1, cursor=page.next_cursor)
        assert (await here.query(limit=1, cursor=second.next_cursor)).data
        await here.aclose()
        await elsewhere.aclose()

    anyio.run(walk)
