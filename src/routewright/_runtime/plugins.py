"""Providers and storages of other packages, by the names of their entry points (``docs/how-to/plug-ins.md``).

Entry points are only read for a name that is not built in."""

from __future__ import annotations

from typing import Literal, TypeVar

from routewright.errors import RouterError, ValidationFailed
from routewright.wire.account import without_passwords
from routewright.wire.problems import listed, shown

T = TypeVar("T")
Group = Literal["routewright.providers", "routewright.storages"]


def make_plugin(path: str, group: Group, kind: type[T], name: str, *args: object, **options: object) -> T | None:
    """Call an entry point, which returns an object of a ``kind``. None: no installed package has it. Raises
    ``ValidationFailed`` at ``path``, naming the package; the entry point's own ``RouterError`` passes."""
    from importlib.metadata import entry_points  # loads email and zipfile

    entries = [*entry_points(group=group, name=name)]
    if not entries:
        return None
    packages = [f"{package.name} {package.version}" for entry in entries if (package := entry.dist) is not None]
    if len(entries) > 1:
        raise ValidationFailed.at(path, f"{name!r} is in the packages {listed(packages)}", "uninstall all but one")
    try:
        part = entries[0].load()(*args, **options)
        if not isinstance(part, kind):
            raise TypeError(f"{shown(part)} is not a {kind.__name__}")
    except RouterError:
        raise
    except Exception as error:
        problem = f"{name!r} of the package {packages[0]} fails: {type(error).__name__}: {error}"
        raise ValidationFailed.at(path, without_passwords(problem), "update or uninstall it") from error
    return part
