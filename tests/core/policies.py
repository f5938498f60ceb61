"""Publishes policies without a storage."""

from __future__ import annotations

from collections.abc import Iterable

from routewright._core.model_selector import Known
from routewright._core.policy import Versions, drawn, published, version_asked
from routewright.wire import Policy, PolicySnapshot


def publish(policies: Iterable[Policy], today: str, known: Known) -> list[PolicySnapshot]:
    versions = Versions()
    return [published(each, versions.put(version_asked(each, today))[0]) for each in drawn(policies, known)]
