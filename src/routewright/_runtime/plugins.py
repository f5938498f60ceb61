"""Providers and storages of other packages, by the names of their entry points (``docs/how-to/own-provider.md``).

Entry points are only read for a name that is not built in."""

from __future__ import annotations

import re
from typing import Literal, TypeVar
from urllib.parse import unquote

from routewright.errors import Problem, ValidationFailed
from routewright.wire.account import HIDDEN, without_passwords
from routewright.wire.problems import listed, shown

T = TypeVar("T")
Group = Literal["routewright.providers", "routewright.storages"]


def make_plugin(path: str, group: Group, kind: type[T], name: str, *args: object, **options: object) -> T | None:
    """Call an entry point, which returns an object of a ``kind``. None: no installed package has it. Raises
    ``ValidationFailed`` at ``path``, naming the package; the entry point's own passes. Both without the passwords of
    the URL in ``args``."""
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
    except ValidationFailed as error:
        problems = error.problems
    except (Exception, SystemExit) as error:
        problem = f"{name!r} of the package {packages[0]} fails: {type(error).__name__}: {error}"
        problems = [Problem(path, problem, "update or uninstall it")]
    else:
        return part
    url = str(args[0]) if args else ""
    texts = [[_without_secrets(text, url) for text in problem] for problem in problems]
    raise ValidationFailed.of(*(Problem(*problem) for problem in texts))  # without the cause, which may quote the URL


def _without_secrets(text: str, url: str) -> str:
    """Replace the password of a URL, or else its user, and the values of its query wherever they are in a text."""
    secrets = re.findall(r"[?&][^=&]*=([^&#]+)", url)
    user_info = re.match(r"[^:]*:/*(?:[^:]*:)?(.+)@", url, re.DOTALL)
    if user_info is not None:
        secrets.append(user_info[1])
    for secret in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return without_passwords(text)
