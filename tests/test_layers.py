"""The floors hold: a file imports from lower floors, on its own floor from files listed before it; floor 3 is pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from routewright._core.attempts.record import Attempt
from routewright._core.call import Call

pytestmark = pytest.mark.xdist_group("layers")  # one process reads the files
SRC = Path(__file__).parent.parent / "src" / "routewright"

FLOORS = [
    ["errors", "data"],
    ["wire"],
    ["protocols"],
    ["_core", "_runtime"],
    ["_engine", "backends"],
    ["_setup"],
    (
        "settings storage guardrail catalogue policies tools webhook trace console ledger cache _assembly "
        "router agent testing"
    ).split(),
    ["server", "integrations", "ui", "serve", "cli", "__main__", "__init__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
CORE_ORDER = (
    "addresses money catalogue/prices routing/logarithms routing/quality sse tokens/images tokens/estimate "
    "request/compatibility request/rules structured_output crypto trace/filter analytics/rollup analytics/report "
    "analytics/comparison analytics/estimate "
    "write_batch guardrails/detectors guardrails/custom guardrails/texts request/read catalogue/models model_selector "
    "routing/request_options routing/pool routing/forecast attempts/statistics attempts/health policy permissions "
    "routing/inputs routing/rebase routing/constraints prompt_caches routing/scoring publication routing/plan "
    "routing/order routing/board routing/budget routing/refusal routing/decide routing/decision routing/shadow "
    "routing/what_if "
    "idempotency cache/request_key cache/comparators cache/question cache/calibration cache/guards attempts/faults "
    "attempts/timeouts attempts/retry attempts/breaker alerts outage attempts/journal webhooks/signature "
    "agent/calculator agent/request agent/machine limits guardrails/screen policy_table guardrails/capture "
    "attempts/record attempts/fallback attempts/machine trace/spans trace/decision_record accounts/keys "
    "accounts/terms snapshot_delta "
    "webhooks/outbox webhooks/endpoint accounts/holds accounts/purses accounts/payer accounts/state "
    "accounts/settlement accounts/log accounts/eviction accounts/ledger accounts/wait_queue call routing/choice "
    "routing/simulation outcome agent/record catalogue/price_list"
).split()
ENGINE_ORDER = (
    "context request_input storage retention webhooks capture counting answer "
    "hooks prompt_caches shared_limits declarations outages fleet trace_writer readiness policies "
    "trace_log admission decide "
    "discovery guardrails calibration part cache tool_calls classify provider_exchange execute hedge route many steps "
    "stream prepared checkpoints run turns agent"
).split()
"""``route`` imports all that the pipeline goes through; only what starts a pipeline imports ``route``."""
PURE = set(
    "__future__ base64 binascii bisect.bisect_left bisect.bisect_right bisect.insort collections.Counter "
    "cryptography.exceptions.InvalidTag cryptography.hazmat.primitives.ciphers.aead.AESGCM "
    "collections.OrderedDict collections.abc collections.defaultdict collections.deque datetime.UTC datetime.date "
    "datetime.datetime functools.cached_property functools.partial "
    "datetime.time datetime.timedelta decimal difflib enum fnmatch.fnmatchcase functools.lru_cache hashlib.blake2b "
    "hashlib.sha256 heapq.merge heapq.nsmallest ipaddress unicodedata ipaddress "
    "hmac itertools json math msgspec numbers numpy operator re routewright struct sys.float_info typing uuid.UUID "
    "zlib.adler32".split()
)
"""What the wire and the core may import: modules, or names in them."""
FOR_SCHEMAS = {("wire/plain", "html.escape"), ("wire/plain", "pydantic_core.core_schema")} | {
    ("wire/docstrings", name) for name in ("ast", "functools.cache", "inspect", "sys")
}
"""What notebooks, pydantic and JSON schemas need besides."""
OUTSIDE = {"now", "today", "utcnow", "random", "load", "save", "loadtxt", "savetxt", "fromfile", "tofile", "memmap"}
"""Time, chance and files, as attributes of what those may import."""
BUILT_IN = {"open", "print", "input", "breakpoint", "eval", "exec", "__import__"}
PUBLIC = set(
    "errors protocols router agent trace console cache ledger webhook catalogue policies guardrail settings storage "
    "tools".split()
)
"""The modules of the top that users import, and that the reference documents: at most twenty."""
PRIVATE = re.compile(r"_(?!_|replace$|asdict$|fields$).*")
"""Attributes that are no business of others; those of named tuples are."""
OUTER = ("integrations", "server", "ui", "serve", "cli")
"""They use the library as a user does."""
SEEN = {*PUBLIC, "wire", "testing", "_runtime"}
"""What they may import: the modules of users, and the ground."""
INSIDE = {
    ("cli/catalogue", "_core.catalogue.price_list"): "imports price lists, which nothing else reads",
    ("cli/catalogue", "_setup.config"): "checks what it writes as a file is checked",
    ("cli/catalogue", "_setup.input_file"): "names the place in the file",
    ("cli/litellm", "_core.money"): "converts prices as the import of price lists does",
    ("cli/litellm", "_setup.input_file"): "names what cannot be read in the file",
    ("cli/litellm", "backends.providers.hosts"): "knows which vendors have a provider",
    ("cli/models", "backends.providers.features"): "shows how a model is called",
    ("cli/models", "backends.providers.hosts"): "names the variables of its vendor",
    ("cli/store", "backends.storage"): "makes, checks, upgrades, copies and saves stores, which nothing else does",
    ("serve/config", "_setup.config"): "its file has the tables of the other files",
    ("serve/config", "_setup.input_file"): "reads it as those are read",
    ("serve/parts", "backends.providers.environment"): "gives those providers more leave",
    ("serve/prepare", "backends.providers.environment"): "tells the variables of the environment's providers",
    ("server/exchange", "backends.clock"): "watches for a client's end with the deadlines of the loop, without a task",
}
"""What they import besides, and why."""
FIELDS = {
    name
    for record in (Call, Attempt)
    for name in (*record.__struct_fields__, *vars(record.__mro__[1]))
    if not name.startswith("__")
}
"""Of the two records of a request."""
MOST_SQL_LINES = 60
"""Of a function."""
OWN_TIMEOUTS = {"fail_after", "move_on_after", "fail_at", "move_on_at", "wait_for", "timeout_at"}


@cache
def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


def called(node: ast.Call) -> str:
    """The last part of the name of what a call calls."""
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def files_of(floor: str) -> dict[str, Path]:
    """The files of a floor by their names in its order, as ``request/rules``."""
    found = {path.relative_to(SRC / floor).with_suffix("").as_posix(): path for path in (SRC / floor).rglob("*.py")}
    return {name: path for name, path in sorted(found.items()) if path.stem != "__init__"}


def assert_in_order(floor: str, order: list[str]) -> None:
    """A file of a floor imports from its own floor only files that are listed before it."""
    files = files_of(floor)
    assert sorted(files) == sorted(order), "the order of a floor names each of its files once"
    for name, path in files.items():
        before = order[: order.index(name)]
        for imported in imports(path):
            if imported.startswith(f"routewright.{floor}."):
                there = "/".join(imported.split(".")[2:])
                assert there in before, f"{floor}/{name} imports {there}, which does not come before it"


def name_of(path: Path) -> str:
    return path.relative_to(SRC).with_suffix("").as_posix().removesuffix("/__init__")


@cache
def imports(path: Path) -> list[str]:
    """Modules that a file imports, at run time or for types alone; of other packages with the imported names."""
    found: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found += _from(node, path.relative_to(SRC).parent.parts)
    return found


def _from(node: ast.ImportFrom, package: tuple[str, ...]) -> Iterator[str]:
    module = node.module.split(".") if node.module else []
    if not node.level and module[0] != "routewright":
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
        return
    parts = [*package[: len(package) - node.level + 1], *module] if node.level else module[1:]
    for alias in node.names:
        inner = SRC.joinpath(*parts, alias.name)
        is_module = inner.is_dir() or inner.with_suffix(".py").is_file()
        yield ".".join(("routewright", *parts, *([alias.name] if is_module else [])))


def room_of(name: str) -> str:
    return name.split("/")[0] or "__init__"


def test_a_file_imports_only_from_below() -> None:
    for path in modules():
        here = room_of(name_of(path)) if name_of(path) != "." else "__init__"
        for imported in imports(path):
            if not imported.startswith("routewright."):
                continue
            there = imported.split(".")[1]
            assert there in FLOOR, f"{name_of(path)} imports {imported}, which stands on no floor: add it to FLOORS"
            if here == there:
                continue
            below = FLOOR[there] < FLOOR[here]
            rooms = FLOORS[FLOOR[here]]
            before = FLOOR[there] == FLOOR[here] >= 6 and rooms.index(there) < rooms.index(here)
            assert below or before, f"{name_of(path)} reaches up to {imported}"


def test_no_import_makes_a_circle() -> None:
    files = {f"routewright.{name_of(path)}".replace("/", "."): path for path in modules()}
    graph = {name: {*imported_by(path)} & files.keys() - {name, "routewright"} for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def imported_by(path: Path) -> Iterator[str]:
    """The modules of ours that a file needs to be imported, or to be type-checked."""
    for node in outside_functions(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            for module in _from(node, path.relative_to(SRC).parent.parts):
                inside = [f"{module}.{alias.name}" for alias in node.names if exists(f"{module}.{alias.name}")]
                yield from inside or [module]


@cache
def exists(module: str) -> bool:
    there = SRC.parent.joinpath(*module.split("."))
    return there.is_dir() or there.with_suffix(".py").exists()


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs, or a type checker reads, when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from outside_functions(node)


def test_the_core_is_in_order() -> None:
    assert_in_order("_core", CORE_ORDER)


def test_the_engine_is_in_order() -> None:
    assert_in_order("_engine", ENGINE_ORDER)


@pytest.mark.parametrize("floor", ["wire", "_core"])
def test_wire_and_core_are_pure(floor: str) -> None:
    for here, path in files_of(floor).items():
        for imported in imports(path):
            is_pure = any(f"{imported}.".startswith(f"{pure}.") for pure in PURE)
            assert is_pure or (f"{floor}/{here}", imported) in FOR_SCHEMAS, f"{floor}/{here} imports {imported}"
            assert OUTSIDE.isdisjoint(imported.split(".")), f"{floor}/{here} imports {imported}"


@pytest.mark.parametrize("floor", ["wire", "_core"])
def test_wire_and_core_use_no_clock_chance_or_files(floor: str) -> None:
    for here, path in files_of(floor).items():
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute):
                assert node.attr not in OUTSIDE, f"{floor}/{here} reaches for {ast.unparse(node)}"
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                assert node.id not in BUILT_IN, f"{floor}/{here} reaches for {node.id}"


RECORDS = {"Call": {"call"}, "Attempt": {"attempt", "served"}}
"""The two records of a request, and the names that objects of theirs have by convention."""
RECORD_FILES = {"routewright._core.call", "routewright._core.attempts.record"}
WRITERS = {
    "_core/call",
    "_core/attempts/record",
    "_core/attempts/machine",  # makes attempts
    "_engine/route",  # puts in what deciding, admission, guardrails and cache return
    "_engine/execute",  # performs the attempts
    "_engine/provider_exchange",  # takes the times of their chunks
}
"""The files that write the records of a request: at most six, named in ``life-of-a-call.md``."""


METHODS = {
    "_engine/decide": {"renew", "limit"},
    "_engine/route": {"decide", "refuse", "pass_guardrails"},
    "_engine/many": {"limit", "pass_guardrails"},
    "_engine/execute": {"settle", "doubt"},
    "_engine/provider_exchange": {"take"},
    "_engine/trace_log": {"end", "record_wait"},
}
"""The methods that change a record, by the file that calls them on one. The trace writer and the storages, which know
no record, ``shorten`` and ``void`` what they are given to keep."""


def test_six_files_write_the_records_of_a_request() -> None:
    assert {name_of(path) for path in knowing() if any(written_by(path))} == WRITERS
    page = (SRC.parents[1] / "docs/explanation/life-of-a-call.md").read_text("utf-8")
    assert [name for name in sorted(WRITERS) if f"`{name}.py`" not in page] == []


def test_few_files_call_what_changes_a_record() -> None:
    changing = {function.name for path in knowing() for function in methods_of_records(path) if any(writes(function))}
    calls: dict[str, set[str]] = {}
    for path in knowing():
        if name_of(path) in ("_core/call", "_core/attempts/record"):
            continue
        for node in nodes_of(path):
            match node:
                case ast.Call(ast.Attribute(owner, name)) if name in changing and is_record(owner, set()):
                    calls.setdefault(name_of(path), set()).add(name)
    assert calls == METHODS


def knowing() -> list[Path]:
    """The files that know the records."""
    files = {f"routewright.{name_of(path)}".replace("/", "."): path for path in modules()}
    return [path for name, path in files.items() if RECORD_FILES & {name, *imports(path)}]


def methods_of_records(path: Path) -> Iterator[ast.FunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef) and node.name in RECORDS:
            yield from (each for each in node.body if isinstance(each, ast.FunctionDef))


def written_by(path: Path) -> Iterator[str]:
    """Fields of a ``Call`` or ``Attempt`` that a file assigns: of ``self`` in these classes, else of what is named or
    annotated as one."""
    for method in methods_of_records(path):
        yield from writes(method)
    for function in (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        arguments = [*function.args.args, *function.args.kwonlyargs]
        records = {each.arg for each in arguments if each.annotation and ast.unparse(each.annotation) in RECORDS}
        yield from writes(function, partial(is_record, records=records))


def is_self(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id == "self"


def writes(function: ast.AST, is_owner: Callable[[ast.expr], bool] = is_self) -> Iterator[str]:
    """Fields of the records that a function assigns; by default those of ``self``."""
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute) and each.attr in FIELDS and is_owner(each.value):
                    yield ast.unparse(each)


def is_record(owner: ast.expr, records: set[str]) -> bool:
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name in records or name in RECORDS["Call"] | RECORDS["Attempt"]


def test_every_time_out_goes_through_the_clock() -> None:
    for path in modules():
        here = name_of(path)
        if here == "backends/clock":
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute):
                assert node.attr not in OWN_TIMEOUTS, f"{here} uses {node.attr}: take Clock.deadline"
            if isinstance(node, ast.Call) and called(node).endswith("CancelScope"):
                assert "deadline" not in {keyword.arg for keyword in node.keywords}, f"{here}: take Clock.deadline"


def test_locks_are_renewed_in_forked_children() -> None:
    for path in modules():
        if name_of(path) == "_runtime/fork":
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and called(node).endswith("Lock"):
                made = f"{name_of(path)} makes {ast.unparse(node)}"
                # the lock of a thread, which is not there in the child
                assert made == "_runtime/worker makes threading.RLock()", f"{made}: take fork.Guard"


@pytest.mark.parametrize("room", OUTER)
def test_outer_packages_reach_for_no_private_attribute(room: str) -> None:
    for path in sorted((SRC / room).rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
                owner = ast.unparse(node.value)
                assert owner in ("self", "cls"), f"{name_of(path)} reaches for {owner}.{node.attr}: give it a name"


def test_outer_packages_import_only_what_users_import() -> None:
    found = set[tuple[str, str]]()
    for path in modules():
        here = name_of(path)
        if room_of(here) not in OUTER:
            continue
        for imported in imports(path):
            module = imported.removeprefix("routewright.")
            if not imported.startswith("routewright.") or module.split(".")[0] in {*SEEN, *OUTER}:
                continue
            inside = {(here, known) for file, known in INSIDE if file == here and f"{module}.".startswith(f"{known}.")}
            assert inside, f"{here} imports {imported}: serve it from the module where a user would look for it"
            found |= inside
    assert found == INSIDE.keys(), "drop the exceptions that nothing needs any more"


def test_the_top_holds_what_users_import() -> None:
    there = {path.stem for path in SRC.glob("*.py")}
    assert {name for name in there if not name.startswith("_")} == PUBLIC
    assert len(PUBLIC) <= 20
    reference = "".join(path.read_text("utf-8") for path in sorted((SRC.parents[1] / "docs/reference").glob("*.md")))
    for name in sorted(PUBLIC):
        assert re.search(rf"`routewright\.{name}\b", reference), f"the reference does not say what {name} holds"
    assert "`routewright._" not in reference, "what the reference documents has no underscore"


def test_names_of_one_floor_differ_by_more_than_their_number() -> None:
    for floor in FLOOR:
        names = Counter({path.stem for path in (SRC / floor).rglob("*") if path.is_dir() or path.suffix == ".py"})
        nouns = Counter(name.removesuffix("s") for name in names if not name.endswith("ss"))
        assert [noun for noun, count in nouns.items() if count > 1] == [], floor


def test_no_file_has_a_leftover_name() -> None:
    for path in modules():
        assert path.stem not in {"utils", "common", "helpers", "handlers", "misc", "base", "v2"}, path


def test_no_function_in_sql_is_long() -> None:
    scripts = [path.read_text("utf-8") for path in SRC.rglob("*.sql")]
    functions = re.findall(r"^CREATE OR REPLACE FUNCTION (\w+)(.*?\$\$.*?\$\$;)$", "\n".join(scripts), re.M | re.S)
    assert len(functions) > 30
    assert [name for name, body in functions if body.count("\n") >= MOST_SQL_LINES] == []
    assert sum(script.count("\n") for script in scripts) <= 1_000
