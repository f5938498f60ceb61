"""Figures that workers share: no lack of room, and no cleaner of temporary files, ends who keeps them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import values

from routewright import Router
from routewright.serve.metrics import metrics_of
from routewright.serve.metrics_folder import SHARED_BY, MetricsFolder
from routewright.server.metrics import Metrics

Patch = pytest.MonkeyPatch
ROWS = 1_000
"""More than fit into a file as it begins."""


@pytest.fixture
def folder(monkeypatch: Patch, tmp_path: Path) -> Path:
    """What workers share."""
    monkeypatch.setenv(SHARED_BY, str(tmp_path))
    monkeypatch.setattr(values, "MmapedDict", vars(values)["MmapedDict"])
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    return tmp_path


@pytest.fixture
def router() -> Iterator[Router]:
    made = Router.sandbox()
    yield made
    made.blocking.close()


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def count_models(metrics: Metrics) -> None:
    for number in range(ROWS):
        metrics._made["attempts"].labels(f"model-{number}", "ok", "sandbox").inc()


def told(metrics: Metrics) -> int:
    return metrics.render().count(b"\nroutewright_attempts_total{")


def holes(file: Path) -> bool:
    with file.open("rb") as opened:
        return os.lseek(opened.fileno(), 0, os.SEEK_HOLE) < file.stat().st_size


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="looks for holes in files")
def test_no_file_has_a_hole_from_its_beginning_on_and_when_it_grows(folder: Path, router: Router) -> None:
    metrics = metrics_of(router)
    files = sorted(folder.iterdir())
    assert [file.name.rpartition("_")[0] for file in files] == ["counter", "gauge_livesum", "histogram"]
    assert not any(map(holes, files))
    before = files[0].stat().st_size
    count_models(metrics)
    assert files[0].stat().st_size > before
    assert not any(map(holes, files))
    assert told(metrics) == ROWS


def test_where_a_file_cannot_grow_a_figure_waits_for_room(
    folder: Path, router: Router, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = metrics_of(router)
    with monkeypatch.context() as patched:
        patched.setattr("routewright.serve.metrics.os.write", full)
        count_models(metrics)
        assert 0 < told(metrics) < ROWS
        said = "some figures are not told, until there is room for them: [Errno 28] No space left on device"
        assert caplog.messages == [said]
    count_models(metrics)
    assert told(metrics) == ROWS
    assert metrics.render().count(b'environment="sandbox",model="model-999",outcome="ok"} 2.0\n') == 1


def test_where_there_is_no_room_at_the_start_a_worker_tells_its_own(
    folder: Path, router: Router, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("routewright.serve.metrics.os.write", full)
        metrics = metrics_of(router)
    count_models(metrics)
    assert told(metrics) == ROWS
    assert list(folder.iterdir()) == []
    assert caplog.messages == [
        "the figures of this worker are told by itself alone: [Errno 28] No space left on device"
    ]


def test_where_the_folder_is_gone_a_worker_tells_its_own(folder: Path, router: Router) -> None:
    metrics = metrics_of(router)
    shutil.rmtree(folder)
    count_models(metrics)
    metrics._made["request_seconds"].labels("/v1/route").observe(1.0)  # the first of its kind
    assert told(metrics) == ROWS


def test_a_folder_that_was_removed_is_made_anew(monkeypatch: Patch) -> None:
    monkeypatch.setenv(SHARED_BY, "")
    monkeypatch.delenv(SHARED_BY)
    with MetricsFolder() as shared:
        shared.provide()
        first = os.environ[SHARED_BY]
        shared.provide()
        assert os.environ[SHARED_BY] == first
        shutil.rmtree(first)
        shared.provide()
        second = os.environ[SHARED_BY]
        assert os.path.isdir(second)
        assert second != first
    assert not os.path.exists(second)
    assert SHARED_BY not in os.environ


def test_a_folder_that_cannot_be_made_is_said_in_a_line(
    monkeypatch: Patch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(SHARED_BY, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with MetricsFolder() as shared:
        shared.provide()
        assert SHARED_BY not in os.environ
    (said,) = caplog.messages
    assert said.startswith("the figures of each worker are told by itself alone: [Errno 2]")


def test_a_folder_of_the_operator_stays_what_it_is(folder: Path) -> None:
    with MetricsFolder() as shared:
        shared.provide()
        assert os.environ[SHARED_BY] == str(folder)
    assert folder.is_dir()
    assert os.environ[SHARED_BY] == str(folder)
