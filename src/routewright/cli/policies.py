"""The command ``policies``: ``check``."""

from __future__ import annotations

from typing import Any

import msgspec

from routewright._core.check import PolicyCheck
from routewright.catalogue import Catalogue
from routewright.config import policies_of, read_policy_document
from routewright.router import Router
from routewright.wire import Policy

from .blocks import Line
from .exits import NOBODY_FITS, OK
from .options import Arguments
from .policies_page import check_page
from .request import request_of
from .screen import Screen

_PROMPT = "Hello"
_WHOLE_CATALOGUE = "no provider is configured: checked against the whole catalogue"


def run_policies(args: Arguments, screen: Screen) -> int:
    """Check a file of policies, and give the exit code. Raises ``RouterError`` for a file or request that is not
    valid."""
    if args.prompt is None and args.file is None and args.request is None:
        args.prompt = _PROMPT
    request = request_of(args, ())
    document = read_policy_document(args.policy_file)
    with document.naming():
        policies = policies_of(document)
        router = _router(args, policies, screen)
    found = router.check_policies(request)
    if args.json:
        screen.json({"policies": [_json(each) for each in found]})
    else:
        screen.show(*check_page(found))
    fails = any(not each.servable or (args.strict and each.breaks_without) for each in found)
    return NOBODY_FITS if fails else OK


def _router(args: Arguments, policies: list[Policy], screen: Screen) -> Router:
    """A Router under the policies, whose words are held against its models. Without a key it is the sandbox's."""
    catalogue = None if args.catalogue is None else Catalogue.load(args.catalogue)
    router = (Router.sandbox if args.sandbox else Router)(catalogue=catalogue, policies=policies)
    if all(model.availability.status == "unavailable" for model in router.models()):
        screen.say(Line(_WHOLE_CATALOGUE, "dim"))
        router = Router.sandbox(catalogue=catalogue, policies=policies)
    router.policies()
    return router


def _json(check: PolicyCheck) -> dict[str, Any]:
    told = {"servable": check.servable, "breaks_without": check.breaks_without}
    return {**msgspec.to_builtins(check), **told}
