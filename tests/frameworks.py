"""Tests of frameworks that need other versions than the other tests, or bring plug-ins of pytest.

Their packages lie in a folder of their own, made at first need and shared by all processes: those of ``frameworks.txt``
that are missing here or differ. A child process finds them first and the rest as ever, and runs one file of tests. Its
tests are reported by name: see ``integrations/test_google_adk.py``.

    python -m tests.frameworks      # makes the folder, so that no test waits for it
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".frameworks"
LOCK = ROOT / "tests" / "frameworks.txt"
PASSED = "passed"
PLUGINS = ("anyio.pytest_plugin", "pytest_timeout", "xdist.plugin")
_INSTALL = "-m pip install -q --no-deps --no-compile --require-hashes --retries 2 --disable-pip-version-check".split()


class NotInstalled(RuntimeError):
    """The frameworks cannot be installed; the message is pip's."""


def outcomes(*arguments: str, plugins: Sequence[str] = ()) -> dict[str, str]:
    """Run pytest with ``arguments`` in a child process that has the frameworks, and return ``PASSED`` or the failure of
    every test, by name. Skips if they cannot be installed, as without a network; on CI that is a failure."""
    try:
        packages = install()
    except NotInstalled as problem:
        on_ci = os.environ.get("TEST_SERVERS") == "required" or "CI" in os.environ
        (pytest.fail if on_ci else pytest.skip)(f"the frameworks are not installed: {problem}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), environment.get("PYTHONPATH")]))
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of the frameworks would act on each test
    loaded = [word for plugin in (*PLUGINS, *plugins) for word in ("-p", plugin)]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--strict-markers", "-p", "no:cacheprovider"]
        command += [*loaded, f"--junitxml={report.name}", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        cases = ElementTree.parse(report.name).iter("testcase")
        return {case.attrib["name"]: "\n".join(_problems(case)) or PASSED for case in cases}


def list_tests(file: Path) -> list[str]:
    """Names of the test functions in a file that cannot be imported here."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, functions)]
    return [name for name in names if name.startswith("test_")]


def install() -> Path:
    """The folder of packages for ``PYTHONPATH``, made if it is missing. Raises ``NotInstalled``."""
    lines = differences()
    identity = "\n".join([sysconfig.get_platform(), str(sys.implementation.cache_tag), *lines])
    folder = FOLDER / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if folder.exists():
        return folder
    FOLDER.mkdir(exist_ok=True)
    with _locked(FOLDER / "lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _install(lines, unfinished)
            unfinished.rename(folder)
    return folder


def differences() -> list[str]:
    """Lines of the lock for packages that this environment lacks, or has in another version."""
    entries = re.sub(r" \\\n\s+", " ", re.sub(r"^#.*\n", "", LOCK.read_text("utf-8"), flags=re.MULTILINE)).splitlines()
    return [entry for entry in entries if _differs(Requirement(entry.partition(" --hash")[0]))]


def _differs(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return False
    try:
        return version(requirement.name) not in requirement.specifier
    except PackageNotFoundError:
        return True


def _install(lines: Sequence[str], target: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(lines))
        requirements.flush()
        command = [sys.executable, *_INSTALL, "--target", str(target), "-r", requirements.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(done.stderr.strip() or f"pip ended with {done.returncode}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        flock(file, LOCK_EX)  # ends with the file, or with the process
        yield


def _problems(case: ElementTree.Element) -> Iterator[str]:
    for problem in case:
        if problem.tag in ("failure", "error", "skipped"):
            yield f"{problem.tag}: {problem.attrib.get('message', '')}\n{problem.text or ''}"


if __name__ == "__main__":
    print(install())
