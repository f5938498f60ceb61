"""What changed between two health snapshots: little, so that is what is stored of all but some of them."""

from __future__ import annotations

from msgspec import Struct

from routewright.wire import HealthSnapshot, ModelHealth


class HealthChange(Struct, frozen=True, omit_defaults=True):
    """What to do to the snapshot before to have the one after."""

    models: dict[str, ModelHealth] = {}
    gone: tuple[str, ...] = ()


def change(before: HealthSnapshot, after: HealthSnapshot) -> HealthChange:
    """What makes of the one the other."""
    other = {name: health for name, health in after.models.items() if before.models.get(name) != health}
    return HealthChange(other, tuple(name for name in before.models if name not in after.models))


def changed(before: HealthSnapshot, change: HealthChange, snapshot_id: str) -> HealthSnapshot:
    """The snapshot of that id, which came after."""
    left = {name: health for name, health in before.models.items() if name not in change.gone}
    return HealthSnapshot(snapshot_id, left | change.models)
