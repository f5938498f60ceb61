"""A worker takes no more connections than it may have files open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from routewright.serve.descriptors import FILES, UPSTREAM, most_open

pytest.importorskip("resource")

PROGRAM = """
import logging, resource, sys
from msgspec.structs import replace
from routewright.serve.worker import WorkerServer
from tests.server.test_supervisor import PLAN
logging.basicConfig()
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
worker = WorkerServer(replace(PLAN, connections={"open": wanted}), None)
print(worker.server_state.limits.open, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""
ROOT = Path(__file__).parents[2]


def fitted(soft: int, hard: int, wanted: int) -> tuple[list[int], str]:
    """What is open at most, and both limits of files, then; and what was logged."""
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, wanted))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    return [int(each) for each in done.stdout.split()], done.stderr


def test_the_soft_limit_is_raised_to_what_is_needed_and_no_further() -> None:
    assert fitted(256, 4096, 1_000) == ([1_000, 1_000 + UPSTREAM + FILES, 4096], "")


def test_a_limit_that_is_high_enough_stays() -> None:
    assert fitted(1024, 1024, 400) == ([400, 1024, 1024], "")


def test_fewer_connections_are_taken_where_the_hard_limit_is_low_and_it_is_said_once() -> None:
    told, log = fitted(256, 1024, 10_000)
    assert told == [432, 1024, 1024]
    (line,) = log.splitlines()
    assert "of 10000 connections (connections.open) 432 fit into the 1024 files" in line
    assert "ulimit -n" in line


@pytest.mark.parametrize("files", [1, FILES, 256, 1024, 4096, 20_000])
def test_room_is_left_for_files_and_for_a_connection_to_a_provider_each(files: int) -> None:
    fit = most_open(files)
    assert fit == 1 or fit + min(fit, UPSTREAM) + FILES <= files
