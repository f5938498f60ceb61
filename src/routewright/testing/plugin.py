"""An opt-in pytest plug-in that runs a test once for each situation that its policies must survive:

    pytest_plugins = ["routewright.testing.plugin"]  # in conftest.py; or: pytest -p routewright.testing.plugin

    @pytest.mark.routewright("policies.toml")
    def test_our_policies_survive(situation):
        situation.check()

The marker takes the arguments of ``routewright.testing.situations``. A file is searched beside the test's file, then in
the directory where pytest was started, then in pytest's root directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path

import pytest

from routewright.errors import Problem, ValidationFailed

from .survival import SituationCase, situations

_MARKER = "routewright(policies, policy=None, *, catalogue=None, request='Hello')"
_UNMARKED = "'situation' comes with the marker: write @pytest.mark.routewright('policies.toml') above the test"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{_MARKER}: run for each situation")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests that take ``situation``."""
    test = metafunc.definition
    if "situation" in metafunc.fixturenames:
        marker = test.get_closest_marker("routewright")
        if marker is not None:
            cases = _cases(marker, test)
            ids = [repr(case) if isinstance(case, SituationCase) else "unusable" for case in cases]
            metafunc.parametrize("situation", cases, ids=ids, indirect=True)
    elif any(marker.name == "routewright" for marker in test.own_markers):  # a class's marker may be for other tests
        problem = f"{test.name} has the marker 'routewright' and does not use it"
        pytest.fail(f"{problem}: take 'situation' as an argument, and call situation.check()", pytrace=False)


@pytest.fixture
def situation(request: pytest.FixtureRequest) -> SituationCase:
    """One policy in one situation, from the marker ``routewright``."""
    case = getattr(request, "param", _UNMARKED)
    if isinstance(case, SituationCase):
        return case
    pytest.fail(case, pytrace=False)


def _cases(marker: pytest.Mark, test: pytest.Item) -> Sequence[SituationCase | str]:
    """The test's cases, or what is wrong with its marker, for the fixture to fail with."""
    try:
        bound = signature(situations).bind(*marker.args, **marker.kwargs)
    except TypeError as error:
        return [str(ValidationFailed.of(Problem("@pytest.mark.routewright", str(error), f"write {_MARKER}")))]
    try:
        policies = bound.arguments["policies"]
        if isinstance(policies, str | Path) and not Path(policies).is_absolute():
            folders = dict.fromkeys((test.path.parent, test.config.invocation_params.dir, test.config.rootpath))
            paths = [folder / policies for folder in folders if (folder / policies).exists()]
            if not paths:
                problem = f"is not in {', nor in '.join(map(str, folders))}"
                raise ValidationFailed.of(Problem(str(policies), problem, "check the path"))
            bound.arguments["policies"] = paths[0]
        return situations(*bound.args, **bound.kwargs)
    except ValidationFailed as error:
        return [str(error)]
