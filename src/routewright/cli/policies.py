"""The command ``policies``: drafts, versions and shares in the store, and trying a draft before it is live."""

from __future__ import annotations

from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext, suppress
from getpass import getuser
from pathlib import Path

import msgspec
from msgspec.structs import fields as fields_of
from msgspec.structs import replace

from routewright.catalogue import Catalogue
from routewright.console import Console
from routewright.policies import PolicyFile, read_policies
from routewright.router import PolicyCheck, Router
from routewright.wire import Environment, JsonObject, Policy, PolicyRecord, PolicyVersion
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean
from routewright.wire.problems import listed as in_quotes

from .command import CATALOGUE, GATE_FAILED, NOBODY_FITS, OK, YES, arg, flag, refused, repeated, unconfirmed, verb
from .gate import condition
from .route import PROMPT, request_of
from .show import Line, Screen, fields, listing, percent, pick
from .simulation import ALL_ACCOUNTS, FILTER, comparison_page, simulation_page, since
from .store import IN_STORE, existing_store, named_store, new_store, store_verb

_NAME = arg("name NAME", "name of the policy")
_BY = arg("--by NAME", "who does it (default: your user name)")
_LIST = "name owner version share.version share.fraction drafted_at drafted_by changed_at changed_by note"
_WEIGHTS = "requests weights quality cost latency stability"
_VERSIONS = "version created_at by state note"


@store_verb(Console, "policies ls")
async def _ls(args: Namespace, screen: Screen, console: Console) -> None:
    """List the policies of the store: their owners, the versions in force, and the drafts."""
    records = [await _record_json(console, record) for record in await console.policies.list()]
    screen.listing("policies", records, _LIST, "the store has no policy; 'routewright policies draft FILE' adds one")


@store_verb(Console, "policies show", _NAME, arg("--version V", "a version (default: the draft, or what is in force)"))
async def _show(args: Namespace, screen: Screen, console: Console) -> None:
    """Show what is in force of a policy, and write its rules to standard output.

    They are a policy file in JSON: change it, and give it to 'routewright policies draft'."""
    record = await console.policies.get(args.name)
    rules = _as_in_file((await console.policies.find(args.version or args.name)).policy)
    shown = {**await _record_json(console, record), "policy": rules}
    if args.json:
        screen.json(shown)
        return
    screen.text(msgspec.json.format(msgspec.json.encode({"policies": [rules]})).decode() + "\n")
    screen.say(fields({**shown, "policy": None}))


@store_verb(
    Console,
    "policies draft",
    arg("policy_file FILE", "file of policies, TOML or JSON"),
    arg("name NAME", "only this policy of the file", nargs="?"),
    arg("--expect BASE", "refuse unless this is replaced: the time of a draft, or the version in force"),
    _BY,
    store=new_store,
)
async def _draft(args: Namespace, screen: Screen, console: Console) -> None:
    """Save the policies of a file as drafts.

    A draft serves nobody until it is published. It replaces a draft of yours, but one of somebody else only with
    --expect. This also creates the store if there is none."""
    policies = _read(args.policy_file, args.name)
    before = {record.name: record for record in await console.policies.list()}
    for name in (policy.name for policy in policies):
        base = before.get(name)
        if args.expect is None and (base is None or base.drafted_at is None or base.drafted_by == _who(args)):
            continue
        at = (base and base.drafted_at) or (await console.policies.find(name)).label
        if at != args.expect:
            present = f"the draft of {base.drafted_by or 'somebody'}, {at}" if base and base.drafted_at else at
            hint = f"merge what 'routewright policies show {name}' prints, then pass --expect {at}"
            raise refused("--expect", f"this would replace {present}", hint)
    records = [await console.policies.draft(policy, _who(args), expect=before.get(policy.name)) for policy in policies]
    drafts = [pick(record, "name owner drafted_at drafted_by") for record in records]
    names = ", ".join(record.name for record in records)
    screen.report({"policies": drafts}, note=f"drafted: {names}; 'routewright policies diff NAME' shows what changes")
    for record in records:
        if record.owner != "storage":
            screen.note(f"{record.name}: the name is owned by {record.owner}, so this draft cannot be published")


@store_verb(Console, "policies discard", _NAME)
async def _discard(args: Namespace, screen: Screen, console: Console) -> None:
    """Remove the draft of a policy.

    What is published stays."""
    await console.policies.discard(args.name)
    screen.report({"name": args.name, "discarded": True}, note=f"the draft of {args.name} is removed")


@store_verb(Console, "policies versions", _NAME)
async def _versions(args: Namespace, screen: Screen, console: Console) -> None:
    """List the versions of a policy, newest first."""
    record = await console.policies.get(args.name)
    states = {record.content: "in force"}
    if record.share is not None:
        states[record.share.content] = f"serves {percent(record.share.fraction)} by {record.share.by}"
    versions = [
        {"version": version.label, **pick(version, "created_at by note"), "state": states.get(version.content)}
        for version in await console.policies.versions(args.name)
    ]
    screen.listing("versions", versions, _VERSIONS, f"{args.name} was never published")


@store_verb(Console, "policies diff", _NAME, arg("--against V", "version to compare with (default: the one in force)"))
async def _diff(args: Namespace, screen: Screen, console: Console) -> None:
    """Show what the draft of a policy changes: its rules, and the weights that follow from them."""
    diff = await console.policies.diff(args.name, args.against)
    title = Line(f"the draft of {diff.name} against {diff.against or 'no version'}", "title")
    changes = listing(msgspec.to_builtins(diff.differences), "path before after")
    weights = [
        {"requests": shift.policy_class or "all", "weights": name, **msgspec.to_builtins(getattr(shift, name) or {})}
        for shift in diff.weights
        for name in ("before", "after")
    ]
    tables = (changes, Line(), listing(weights, _WEIGHTS))
    screen.report(diff, title, Line(), *tables, note="" if diff.differences else "nothing changes")


@store_verb(
    Console,
    "policies publish",
    _NAME,
    arg("--share FRACTION", "publish to a part of the traffic, such as 0.1", float),
    arg("--share-by KEY", "what gets the same version: account (default), or metadata.KEY"),
    arg("--note TEXT", "reason, stored with the version", default=""),
    _BY,
    CATALOGUE,
)
async def _publish(args: Namespace, screen: Screen, console: Console) -> None:
    """Publish the draft of a policy.

    With --share, the draft serves that part of the traffic beside the version in force; without it, a running share is
    completed. Running servers follow within five seconds."""
    author = (await console.policies.get(args.name)).drafted_by
    version = await console.policies.publish(args.name, by=_who(args), **pick(args, "note share share_by"))
    part = "" if args.share is None else f" {percent(args.share)} of the traffic"
    part += "" if author in ("", _who(args)) else f", drafted by {author}"
    _published(args, screen, version, f"serves{part}")


@store_verb(Console, "policies rollback", _NAME, arg("--to V", "version to return to (default: the one before)"), _BY)
async def _roll_back(args: Namespace, screen: Screen, console: Console) -> None:
    """End a running share, or else put the version before in force again.

    Running servers follow within five seconds."""
    version = await console.policies.roll_back(args.name, to=args.to, by=_who(args))
    _published(args, screen, version, "serves again")


@store_verb(Console, "policies retire", _NAME, YES, _BY)
async def _retire(args: Namespace, screen: Screen, console: Console) -> None:
    """Take a policy out of force, whoever owns its name.

    Requests that name it are refused from then on. Its versions and traces stay. Nothing is retired without --yes."""
    record = await console.policies.get(args.name)
    if not args.yes:
        raise unconfirmed(f"requests that name the policy {record.name}, which {record.owner} owns, would be refused")
    await console.policies.retire(args.name, by=_who(args))
    screen.report({"name": args.name, "retired": True}, note=f"{args.name} is retired")


@store_verb(
    Console,
    "policies simulate",
    arg("draft DRAFT", "draft or version of the store, or a file of policies"),
    arg("name NAME", "policy of the file, if it has several", nargs="?"),
    since("7d"),
    FILTER,
    ALL_ACCOUNTS,
    repeated("--fail-if CONDITION", "exit with 1 if it may hold, such as 'cost>+5%%'", condition),
)
async def _simulate(args: Namespace, screen: Screen, console: Console) -> int:
    """Decide stored traffic again under a draft, and show what changes.

    No model is called. A condition is cost, latency, refusals or rerouted, then > or <, and a percentage. It holds
    if the end of the 95 % interval does, and whenever the figure is unknown."""
    draft: str | Policy = args.draft
    if _is_file(args.draft):
        draft, *others = _read(args.draft, args.name)
        if others:
            raise refused("NAME", f"is missing, and {args.draft} has several policies", "name one of them")
    report = await console.simulate(draft, **pick(args, "since filter account"))
    failures = [failure for gate in args.fail_if if (failure := gate.failure(report))]
    screen.report({**report.to_dict(), "failures": failures}, *simulation_page(report))
    for failure in failures:
        screen.note(failure, "bad")
    return GATE_FAILED if failures else OK


@store_verb(
    Console,
    "policies compare",
    _NAME,
    since("7d"),
    ALL_ACCOUNTS,
    arg("--environment", "requests to compare", Environment, "production"),
)
async def _compare(args: Namespace, screen: Screen, console: Console) -> None:
    """Compare the versions of a policy that served."""
    comparison = await console.compare(args.name, **pick(args, "since account environment"))
    screen.report(comparison, *comparison_page(comparison))


def _published(args: Namespace, screen: Screen, version: PolicyVersion, outcome: str) -> None:
    record = {"version": version.label, **pick(version, "created_at by note")}
    screen.report({"name": args.name, **record}, note=f"{version.label} {outcome}")


async def _record_json(console: Console, record: PolicyRecord) -> JsonObject:
    """A record with the labels of its versions in place of their hashes."""
    labels = {version.content: version.label for version in await console.policies.versions(record.name)}
    share = record.share
    return {
        **pick(record, "name owner"),
        "version": labels.get(record.content or ""),
        "share": share and {"version": labels.get(share.content), **pick(share, "fraction by")},
        **pick(record, "drafted_at drafted_by changed_at changed_by note"),
    }


def _read(path: str, name: str | None) -> list[Policy]:
    """The policies of a file, or the one of this name. Raises ``ValidationFailed``."""
    policies = read_policies(path)
    names = [policy.name for policy in policies]
    if name is not None and name not in names:
        hint = did_you_mean(name, names) or f"it has {in_quotes(names)}"
        raise refused("NAME", f"{quoted(name)} is not in {path}", hint)
    return [policy for policy in policies if name in (None, policy.name)]


def _is_file(text: str) -> bool:
    """True for a path, which is not the name of a policy or version."""
    return "/" in text or Path(text).suffix.lower() in (".toml", ".json")


def _as_in_file(value: object) -> object:
    """As in a policy file: Python's names, and only what is set."""
    if isinstance(value, msgspec.Struct):
        rules = {field.name: (getattr(value, field.name), field.default) for field in fields_of(type(value))}
        return {name: _as_in_file(rule) for name, (rule, default) in rules.items() if rule != default}
    return [*map(_as_in_file, value)] if isinstance(value, list | tuple) else value


def _who(args: Namespace) -> str:
    """``--by``, or the name of the user."""
    with suppress(KeyError, OSError):  # a container may run as a user without a name
        return args.by if args.by is not None else getuser()
    return ""


@verb(
    "policies check",
    arg("which FILE | NAME", "file of policies, TOML or JSON, or the draft of a name in the store"),
    PROMPT,
    flag("--strict", "also fail for a policy that depends on one provider, or whose shadow is unknown"),
    flag("--sandbox", "assume a key for every provider"),
    CATALOGUE,
    *IN_STORE,
)
def _check_policies(args: Namespace, screen: Screen) -> int:
    """Show how each policy would route, and what breaks it.

    Decides a request under each policy as routing would, and again without each provider: who serves it, at
    what cost, and what breaks when a provider is lost. Nothing is called. Without a key the whole catalogue counts.

    The request is a short one, unless a PROMPT or @FILE is given, or what --request holds."""
    if args.prompt is None and args.request is None:
        args.prompt = "Hello"
    request = request_of(args, ())
    catalogue = Catalogue() if args.catalogue is None else Catalogue.load(args.catalogue)
    if _is_file(args.which):
        source: AbstractContextManager[list[Policy]] = PolicyFile(args.which).policies()
    else:
        with Console(existing_store(args), catalogue=catalogue).blocking as console:
            source = nullcontext([console.policies.check(args.which)])
    with source as policies:
        unknown = {policy.shadow or "" for policy in policies} - {"", *(policy.name for policy in policies)}
        policies = [replace(policy, shadow=None) for policy in policies]  # a note reports unknown ones
        router = (Router.sandbox if args.sandbox else Router)(catalogue=catalogue, policies=policies)
        if all(model.availability.status == "unavailable" for model in router.models()):
            screen.note("no provider is configured: checked against the whole catalogue")
            router = Router.sandbox(catalogue=catalogue, policies=policies)
        router.policies()  # raises ValidationFailed for selectors that match no model
    checks = router.check_policies(request)
    if unknown and named_store(args) is not None:
        with Console(existing_store(args)).blocking as console:
            unknown -= {record.name for record in console.policies.list()}
    notes = [f"unknown shadow {quoted(name)}; if it is a draft, add --store" for name in sorted(unknown)]
    for check in checks:
        if check.problem is not None:
            notes.append(f"{_label(check)}: {check.problem}")
        if not check.fallback_affordable:
            notes.append(f"{_label(check)}: the budget pays for no fallback after {check.model}")
        notes += [f"{_label(check)}: {end.model} is served until {end.deprecated_at[:10]}" for end in check.ends]
    records = [
        {**msgspec.to_builtins(check), "servable": check.servable, "breaks_without": check.breaks_without}
        for check in checks
    ]
    rows = [
        {**record, "policy": _label(check), "model": check.model or "nobody", "if_a_provider_is_lost": _loss(check)}
        for record, check in zip(records, checks, strict=True)
    ]
    table = listing(rows, "policy model fitting allowed estimated_cost_usd worst_cost_usd if_a_provider_is_lost")
    screen.report({"policies": records}, table, *([Line(), *map(Line, notes)] if notes else []))
    return NOBODY_FITS if any(not c.servable or (args.strict and (unknown or c.breaks_without)) for c in checks) else OK


def _label(check: PolicyCheck) -> str:
    return f"{check.policy}, {check.policy_class}" if check.policy_class else check.policy


def _loss(check: PolicyCheck) -> str:
    if check.breaks_without:
        return f"breaks without {', '.join(check.breaks_without)}"
    change = next((loss for loss in check.losses if loss.model != check.model), None)
    return "" if change is None else f"without {change.provider}: {change.model}"
