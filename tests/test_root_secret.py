"""The root secret: from the environment, from a file that only its owner can read, or made up for the process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from routewright import Console, MemoryStorage, SqliteStorage
from routewright._setup.root_secret import BEFORE, SECRET, RootSecret, secret_path
from routewright.errors import StorageReadOnly, StorageUnavailable, ValidationFailed
from routewright.protocols import Storage
from routewright.storage import open_storage
from tests.programs import Program
from tests.tables import table

GIVEN = "correct horse battery staple, once more"
FORMER = "a staple of correct horses and batteries"


def root_secret(storage: Storage, environment: Mapping[str, str]) -> bytes:
    """The one in use."""
    return RootSecret(storage, environment).load()[0]


@pytest.fixture
def store(tmp_path: Path) -> SqliteStorage:
    return SqliteStorage(tmp_path / "traces.db")


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_beside_the_store_is_created_once_for_its_owner_only(store: SqliteStorage) -> None:
    secret = root_secret(store, {})
    path = secret_path(store.path)
    assert names(store.path.parent) == ["traces.db.secret"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(secret) >= 32
    assert path.read_bytes().strip() == secret
    assert root_secret(store, {}) == root_secret(SqliteStorage(store.path), {}) == secret


def test_recreating_the_secret_of_a_store_with_keys_is_logged_once(
    store: SqliteStorage, caplog: pytest.LogCaptureFixture
) -> None:
    console = Console(store).blocking
    console.create_account("acme")
    key = console.create_key("acme", name="website").key
    assert caplog.messages == [], "the first secret loses none"
    path = secret_path(store.path)
    path.unlink()
    assert [len(root_secret(each, {})) for each in (store, SqliteStorage(store.path))] == [64, 64]
    (said,) = caplog.messages
    assert said == (
        f"{path} was missing and is new, and all keys of the store are refused, since they were made with another "
        "secret; restore the file from a backup, or set ROUTEWRIGHT_SECRET"
    )
    console.revoke_key("acme", key.id)
    console.close()
    path.unlink()
    root_secret(SqliteStorage(store.path), {})
    assert len(caplog.messages) == 1, "of no live key, nothing"


def test_the_variable_takes_precedence_and_creates_no_file(store: SqliteStorage) -> None:
    assert root_secret(store, {SECRET: GIVEN}) == GIVEN.encode()
    assert names(store.path.parent) == []
    made = root_secret(store, {})
    assert root_secret(store, {SECRET: GIVEN}) == GIVEN.encode() != made
    assert root_secret(MemoryStorage(), {SECRET: GIVEN}) == GIVEN.encode()
    assert root_secret(store, {SECRET: ""}) == made, "an empty one is none"


@table(
    "secret, problem",
    [
        ("thirty-one characters and words", "has 31 bytes"),
        ("correctly" * 4, "has 7 distinct bytes"),
    ],
)
def test_a_secret_that_is_easy_to_guess_is_refused(secret: str, problem: str, store: SqliteStorage) -> None:
    said = f"{problem}; use at least 32 with 10 distinct ones, such as those of 'openssl rand -hex 32'"
    with pytest.raises(ValidationFailed) as raised:
        root_secret(store, {SECRET: secret})
    assert str(raised.value) == f"{SECRET}: {said}"
    with pytest.raises(ValidationFailed) as raised:
        Console(store, secret=secret)
    assert str(raised.value) == f"secret[0]: {said}"


@table("secret", ["\ud800" * 20, [GIVEN, "\ud800" * 20]], ids=["one", "two"])
def test_a_secret_with_a_surrogate_is_refused(secret: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"^secret\[[01]\]: contains an unpaired surrogate"):
        Console(MemoryStorage(), secret=secret)


def test_the_previous_secret_has_its_own_variable(store: SqliteStorage) -> None:
    told = RootSecret(store, {SECRET: GIVEN, BEFORE: FORMER})
    assert told.load() == (GIVEN.encode(), FORMER.encode())
    assert RootSecret(store, {SECRET: GIVEN, BEFORE: ""}).load() == (GIVEN.encode(),)
    with pytest.raises(ValidationFailed, match=f"{BEFORE}: has 5 bytes"):
        RootSecret(store, {SECRET: GIVEN, BEFORE: "short"}).load()
    with pytest.raises(ValidationFailed, match=f"{BEFORE}: is set, and {SECRET} is not"):
        RootSecret(store, {BEFORE: FORMER}).load()


def test_memory_has_one_random_secret_for_all_its_users() -> None:
    storage = MemoryStorage()
    made = {root_secret(storage, {}) for _ in range(3)}
    assert len(made) == 1
    assert len(made.pop()) == 32
    assert root_secret(MemoryStorage(), {}) != root_secret(storage, {})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_can_read_or_write_is_refused(store: SqliteStorage, mode: int) -> None:
    root_secret(store, {})
    path = secret_path(store.path)
    path.chmod(mode)
    with pytest.raises(
        StorageUnavailable, match=f"other users can (read|write) {path}; run 'chmod 600 {path}'"
    ) as raised:
        root_secret(store, {})
    assert path.read_text().strip() not in str(raised.value)
    path.chmod(0o600)
    root_secret(store, {})


@pytest.mark.parametrize("content", [b"", b"short\n"])
def test_a_file_without_a_secret_is_refused_and_left_alone(store: SqliteStorage, content: bytes) -> None:
    path = secret_path(store.path)
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StorageUnavailable, match="contains no usable secret"):
        root_secret(store, {})
    assert path.read_bytes() == content


@table(
    "place, said",
    [
        (
            lambda path: path.symlink_to(path.with_name("another")),
            "is a symbolic link; put the file itself in its place",
        ),
        (os.mkfifo, "is not a regular file; move it away"),
    ],
    ids=["link", "pipe"],
)
def test_what_is_no_file_of_its_own_is_refused_and_nothing_hangs(store: SqliteStorage, place: Any, said: str) -> None:
    path = secret_path(store.path)
    path.with_name("another").write_text("0123456789abcdef" * 4)
    path.unlink(missing_ok=True)  # of the row before
    place(path)
    with pytest.raises(StorageUnavailable) as raised:
        root_secret(store, {})
    assert str(raised.value) == f"{path} {said.format(path=path)}"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_a_secret_of_another_user_is_refused(store: SqliteStorage) -> None:
    root_secret(store, {})
    path = secret_path(store.path)
    os.chown(path, 12_345, 12_345)
    with pytest.raises(StorageUnavailable, match=f"belongs to user 12345; run as that user, or run 'chown 0 {path}'"):
        root_secret(SqliteStorage(store.path), {})


def test_an_unreadable_file_is_refused(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(StorageReadOnly, match="cannot be read; run as its owner, or set ROUTEWRIGHT_SECRET"):
        root_secret(store, {})


@pytest.mark.parametrize("failing", ["open", "link"])
def test_without_a_file_the_secret_is_random_and_a_warning_is_logged(
    store: SqliteStorage, failing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: Any, **rest: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with caplog.at_level(logging.WARNING):
        secret = root_secret(store, {})
    monkeypatch.undo()
    assert len(secret) == 32
    assert "no secret can be stored beside" in caplog.text
    assert "No space left on device" in caplog.text
    assert secret.hex() not in caplog.text
    assert names(store.path.parent) == [], "no part is left"


def test_concurrent_processes_get_the_same_secret(tmp_path: Path, full: bool) -> None:
    code = """
import sys
from collections.abc import Mapping
from pathlib import Path
from routewright import SqliteStorage
from routewright._setup.root_secret import RootSecret
print("ready", flush=True)
while (name := sys.stdin.readline().strip()):
    print(RootSecret(SqliteStorage(Path(sys.argv[1]) / name), {}).load()[0].hex(), flush=True)
"""
    with ExitStack() as stack:
        racing = [stack.enter_context(Program("-c", code, str(tmp_path))) for _ in range(3)]
        assert {one.heard() for one in racing} == {"ready"}
        for number in range(500 if full else 7):
            for one in racing:
                one.tell(f"{number}.db")
            assert len({one.heard() for one in racing}) == 1
        for one in racing:
            one.end()
    assert all(name.endswith(".db.secret") for name in names(tmp_path)), "no part is left"


# Storages by URL


def test_a_path_follows_three_slashes_and_an_absolute_one_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in [
        ("sqlite:///traces.db", tmp_path / "traces.db"),
        ("sqlite:///data/my traces?.db", tmp_path / "data" / "my traces?.db"),
        (f"sqlite:///{tmp_path}/é.db", tmp_path / "é.db"),
    ]:
        storage = open_storage(url)
        assert isinstance(storage, SqliteStorage)
        assert storage.path == path
    assert names(tmp_path) == []


@table(
    ("url", "words"),
    [
        ("", "write memory: or sqlite:///traces.db"),
        ("t7.db", "is 't7.db'; write 'sqlite:///t7.db' for that file"),
        ("/tmp/t7.db", "write 'sqlite:////tmp/t7.db' for that file"),
        ("sqlite:///", "four slashes before an absolute path"),
        ("sqlight:///traces.db", "did you mean 'sqlite'"),
        ("mysql://host/db", "write memory: or"),
    ],
)
def test_an_invalid_storage_url_is_refused_with_a_hint(url: Any, words: str) -> None:
    with pytest.raises(ValidationFailed, match=r"^(url|path): ") as raised:
        open_storage(url)
    assert words in str(raised.value)
