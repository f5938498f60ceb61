"""Publishes policies without a storage."""

from __future__ import annotations

from collections.abc import Iterable

from routewright._core.model_selector import ModelIndex
from routewright._core.policy import Versions, resolve, version_write, with_version
from routewright.wire import Policy, PolicySnapshot


def publish(policies: Iterable[Policy], today: str, known: ModelIndex) -> list[PolicySnapshot]:
    versions = Versions()
    return [with_version(each, versions.put(version_write(each, today))[0]) for each in resolve(policies, known)]
