"""Writes the parts of the documentation that follow from the code: ``python docs/_generate.py``.

Tables stand between ``<!-- generated: NAME -->`` and ``<!-- end -->``. Output below blocks and commands is renewed as
well, see ``_blocks.py``. A test holds every page to what this would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_args

if __name__ == "__main__":  # then only this folder can be imported from
    sys.path.insert(0, str(Path(__file__).parent.parent))

from docs import _agents, _doors, _events
from docs._blocks import NOON, ROOT, Shown, pages, run
from docs._http import http_reference
from docs._openapi import openapi
from docs._schemas import FOLDER as SCHEMAS
from docs._schemas import schemas
from docs._table import merged, table
from msgspec import Struct

import routewright
from routewright import Catalogue, Decision, ExecutionLimits, Model, RateLimits, Router, RouterError, Settings, errors
from routewright._core.accounts.terms import PLANS
from routewright._core.attempts.faults import ENDINGS, FAULTS, Rule
from routewright._core.request.rules import NUMBERS
from routewright._core.routing.pool import FEATURES
from routewright._core.routing.scoring import WEIGHTS, Weights
from routewright._core.trace.filter import COMPARE, FLAGS, METADATA, TEXTS
from routewright._core.trace.filter import NUMBERS as NUMBERS_OF_FILTERS
from routewright._setup.config import ParamsEntry, PolicyEntry, Strict, entry_of
from routewright.backends.providers.endpoint import Endpoint
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.backends.providers.http import HttpProvider
from routewright.cli.command import EXIT_CODES
from routewright.cli.serve import FLAGS as FLAGS_OF_SERVE
from routewright.integrations.semconv import ATTRIBUTES, HISTOGRAMS
from routewright.router import RequestLike
from routewright.serve.config import (
    VARIABLES,
    AdminEntry,
    CaptureEntry,
    RetentionEntry,
    ServeFile,
    SettingsEntry,
    TelemetryEntry,
    TlsEntry,
    table_of,
)
from routewright.server import openai, responses
from routewright.server.http_limits import ConnectionLimits, HttpLimits
from routewright.server.metrics import FIGURES
from routewright.server.routes import NOT_OFFERED
from routewright.settings import CacheSettings, WebhookSettings
from routewright.testing import SCENARIOS, FakeClock
from routewright.testing.faulty import Play
from routewright.wire import (
    Account,
    AccountStanding,
    Budget,
    CacheOpts,
    CacheReport,
    Caller,
    Content,
    Credit,
    Difference,
    FallbackCandidate,
    FallbackReport,
    Figure,
    Goal,
    Incident,
    Key,
    KeyStanding,
    LatencyDay,
    LatencyReport,
    LatencyRow,
    LedgerRow,
    LedgerSum,
    NewKey,
    Policy,
    PolicyComparison,
    PolicyDiff,
    PolicyDifference,
    PolicyFallback,
    PolicyGuardrail,
    PolicyRecord,
    PolicyShare,
    PolicyState,
    PolicyVersion,
    PolicyWeights,
    PolicyWhen,
    Purse,
    ShareComparison,
    Span,
    Strategy,
    Trace,
    TraceItem,
    TtlBucket,
    UsageReport,
    UsageRow,
    UsageTotals,
    VersionFigures,
    WeightShift,
)
from routewright.wire.docstrings import field_docs, prose, summary

OPENAPI = ROOT / "src/routewright/server/openapi.json"
GOALS: tuple[Goal, ...] = get_args(Goal)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_NAME = re.compile(r"\w+")
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_CONTRACT = "Summarise this contract in ten points.\n\n" + 3_000 * (
    "The supplier delivers the goods to the buyer within thirty days of the order, free of charge. "
)
_WISHES = {
    "reasoning": "efforts",
    "reasoning_none": "`none`",
    "reasoning_tokens": "`max_tokens`",
    "parallel_tool_calls": "`parallel_tool_calls`",
    "flex": "`flex`",
    "priority": "`priority`",
    "verbosity": "`verbosity`",
    "cache_control": "`cache_control`",
    "file_url": "documents by URL",
}
"""Features that few vendors have."""
_NEEDS = [name for name in FEATURES if name not in _WISHES and name not in ("http_url", "reasoning_tools")]
"""Features that few vendors lack."""
_Lacking = list[tuple[Model, Collection[str]]]
"""The models of a vendor with what each does not take."""
_CODE = 100 * "def area(width: float, height: float) -> float:\n    return width * height\n\n\n"
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class Sample(NamedTuple):
    """A request that the table of picks asks."""

    name: str
    said: str
    request: RequestLike


SAMPLES = (
    Sample("short chat", "*Why is the sky blue?*", "Why is the sky blue?"),
    Sample("long document", f"a summary of a contract of {len(_CONTRACT):,} characters", _CONTRACT),
    Sample(
        "coding task with tools",
        f"{len(_CODE):,} characters of code in which to find a fault, with one tool declared",
        {
            "messages": [
                {"role": "system", "content": "You are a careful engineer."},
                {"role": "user", "content": f"A test fails. Find the fault, then run the tests.\n\n{_CODE}"},
            ],
            "tools": [{"type": "function", "function": {"name": "run_tests", "parameters": _SCHEMA}}],
        },
    ),
    Sample(
        "image question",
        "*What is in this picture?*, with the address of one",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is in this picture?"},
                    {"type": "image_url", "image_url": {"url": "https://example.com/cat.jpg"}},
                ],
            }
        ],
    ),
)

FURTHER_NAMES = {
    "routewright.backends.providers.callable": "HostedProvider",
    "routewright.backends.providers.http": "HttpRequest",
    "routewright.agent": "decode_run",
    "routewright.cache": (
        "BlockingResponseCache CacheExplanation HashedEmbedder JsonEquality MemoryCache NearEntry NormalisedEquality "
        "NumericEquality OpenAIEmbedder ResponseCache SqliteCache StaticEmbedder open_cache"
    ),
    "routewright.catalogue": "model_called undated",
    "routewright.console": "BlockingConsole SECRET SomeLimits limits_of secret_path",
    "routewright.guardrail": "DenyList PatternGuardrail",
    "routewright.ledger": "BlockingLedger",
    "routewright.policies": "BlockingPolicyStore PolicyFile PolicyStore read_policies",
    "routewright.router": (
        "BlockingPrepared BlockingRouter BlockingStream CALLER_EXTRA InputTokens Options PolicyCheck Prepared "
        "RequestLike RouterRun StepCall StepDone StepWait Steps Subscription WhyNot decode_request"
    ),
    "routewright.integrations.langchain": "ChatRoutewright",
    "routewright.integrations.openai_agents": "RouterModel RouterProvider",
    "routewright.integrations.otel": "OpenTelemetry",
    "routewright.integrations.pydantic_ai": "RouterModel RouterModelSettings",
    "routewright.integrations.sdk": "router_client",
    "routewright.server": "AccessLog Admin App Exchange HttpLimits Observer create_admin create_app sse_response",
    "routewright.server.metrics": "Metrics",
    "routewright.settings": "CacheSettings SystemClock WebhookSettings",
    "routewright.storage": "MemoryCoordination Rollups check_batch check_digests ids_of selects",
    "routewright.trace": "BlockingTraceStore",
    "routewright.webhook": "StandardWebhookSigner",
    "routewright.wire": (
        "Account AccountStanding Allow Bill Block CacheOpts CacheReport Content Credit FallbackReport Incident Key "
        "KeyStanding LatencyDay LatencyReport LedgerRow LedgerSum NewKey Page PolicyComparison PolicyDiff "
        "PolicyDifference PolicyFallback PolicyGuardrail PolicyRecord PolicyShare PolicyState PolicyVersion "
        "PolicyWeights PriceChange PriceTier Purse Redact Redaction ToolDelta TraceItem UsageReport WeightShift"
    ),
    "routewright.wire.account": "Secret",
}
"""Public names besides those of ``routewright`` and the errors."""
FRAMEWORK_NAMES = {"routewright.integrations.google_adk": "RouterLlm"}
"""Those of modules that cannot be imported beside the others."""
POLICY_PARTS: dict[str, tuple[type[Strict], type[Struct]]] = {
    "## `[[policies]]`": (PolicyEntry, Policy),
    "## `weights`": (entry_of(PolicyWeights), PolicyWeights),
    "## `fallback`": (entry_of(PolicyFallback), PolicyFallback),
    "## `[[policies.guardrails]]`": (entry_of(PolicyGuardrail), PolicyGuardrail),
    "## `when`": (entry_of(PolicyWhen), PolicyWhen),
}
"""The tables of a policy file that have a table here, and the struct that each becomes."""

POLICY_PARTS_OF_REQUESTS: dict[str, type[Strict]] = {
    "params": ParamsEntry,
    "budget": entry_of(Budget),
    "cache": entry_of(CacheOpts),
}
"""Those that the reference of the request explains."""

REPORTS: tuple[type[Struct], ...] = (
    UsageReport,
    UsageRow,
    UsageTotals,
    CacheReport,
    TtlBucket,
    FallbackReport,
    FallbackCandidate,
    LatencyReport,
    LatencyRow,
    LatencyDay,
    PolicyComparison,
    VersionFigures,
    Figure,
    ShareComparison,
    Difference,
)
"""The shapes of analytics."""

LEDGER: tuple[type[Struct], ...] = (LedgerRow, LedgerSum)
"""The shapes of the ledger."""

STORED_POLICIES: tuple[type[Struct], ...] = (
    PolicyRecord,
    PolicyShare,
    PolicyVersion,
    PolicyDiff,
    PolicyDifference,
    WeightShift,
)
"""The shapes of policies in the storage, but for the state that two of them make."""

ACCOUNTS: tuple[type[Struct], ...] = (
    Caller,
    Account,
    RateLimits,
    Key,
    NewKey,
    Credit,
    AccountStanding,
    KeyStanding,
    Purse,
    Incident,
)
"""The shapes of accounts and keys."""


@cache
def decide(sample: int, goal: Goal, strategy: Strategy) -> Decision:
    """What is picked for a sample on the day of the facts."""
    return _router().decide(SAMPLES[sample].request, goal=goal, strategy=strategy)


@cache
def _router() -> Router:
    return Router.sandbox(settings=Settings(clock=FakeClock(NOON)))


def picks() -> str:
    """The picks of every goal and strategy."""
    said = "".join(f"- {sample.name}: {sample.said};\n" for sample in SAMPLES).removesuffix(";\n")
    samples = [sample.name for sample in SAMPLES]
    rows = [
        (strategy, goal, *(f"`{model}`" for model in _models(goal, strategy)))
        for strategy in STRATEGIES
        for goal in GOALS
    ]
    return (
        f"{said}.\n\n{table(('strategy', 'goal', *samples), merged(rows, 1))}\n"
        f"These models, best first:\n\n{_named_above()}"
    )


def _models(goal: Goal, strategy: Strategy) -> list[str]:
    return [decide(place, goal, strategy).model for place in range(len(SAMPLES))]


def _named_above() -> str:
    """The models that the first table picks, with the numbers behind the picks for the short chat."""
    picked = {model for goal in GOALS for strategy in STRATEGIES for model in _models(goal, strategy)}
    chat = decide(0, "cost", "balanced")
    numbers = {candidate.model: candidate for candidate in chat.candidates}
    prices = {model.id: model.pricing_per_1m for model in Catalogue().models}
    rows = []
    for model in sorted(picked, key=lambda model: -numbers[model].quality):
        price, seen = prices[model], numbers[model]
        assert price is not None
        assert seen.cost_usd is not None
        paid = f"${price.input_usd:g} / ${price.output_usd:g}"
        rows.append((f"`{model}`", f"{seen.quality:.2f}", paid, f"${seen.cost_usd:.5f}", f"{seen.latency_s:.1f} s"))
    return table(("model", "quality", "price in / out per 1M", "short chat costs", "and takes"), rows)


def weights() -> str:
    """The weight table."""
    rows = [(strategy, goal, *map(str, WEIGHTS[strategy][goal])) for strategy in STRATEGIES for goal in GOALS]
    return table(("strategy", "goal", *Weights._fields), rows)


def error_table() -> str:
    """The errors a caller can see, in the order of their statuses."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RouterError)]
    rows = [
        (str(kind.status), f"`{kind.code}`", f"`{kind.__name__}`", "yes" if kind.retryable else "no", summary(kind))
        for kind in sorted(kinds, key=lambda kind: (kind.status, inspect.getsourcelines(kind)[1]))
        if kind is not RouterError
    ]
    return table(("status", "code", "class", "retryable", "when"), rows)


def name_table() -> str:
    """What the package gives by name, errors aside."""
    public = ((name, getattr(routewright, name)) for name in routewright.__all__)
    rows = [(f"`{name}`", summary(each)) for name, each in public if not _is_error(each)]
    return table(("name", "what it is"), [*rows, ("errors", "[a page of their own](errors.md)")])


def further_name_table() -> str:
    """Public names that are imported from their own modules."""
    for module, names in FURTHER_NAMES.items():
        missing = [name for name in names.split() if not hasattr(import_module(module), name)]
        assert not missing, f"{module} lacks {missing}"
    rows = [
        (f"`{module}`", _coded(names.split())) for module, names in sorted((FURTHER_NAMES | FRAMEWORK_NAMES).items())
    ]
    return table(("module", "names"), rows)


def _is_error(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, Exception) and each is not routewright.ProviderFault


def fault_table() -> str:
    """What follows from each kind of fault."""
    head = ("kind", "same model again", "next model", "counts against", "billed", "`reason` in events")
    return table(head, [(f"`{kind}`", *_rule_cells(rule), f"`{rule.reason}`") for kind, rule in FAULTS.items()])


def _rule_cells(rule: Rule) -> tuple[str, str, str, str]:
    again = "once, to mend it" if rule.repair else _yes(rule.retry)
    whom = "its key" if rule.opens_credential else "the model" if rule.blames else "nobody"
    return again, _yes(rule.fall_back), whom, "yes" if rule.billed else "where an answer had begun"


def execution_table() -> str:
    """The limits of carrying a request out."""
    defaults, docs = ExecutionLimits(), field_docs(ExecutionLimits)
    rows = [
        (f"`{name}`", prose(docs[name]), f"{getattr(defaults, name):g}") for name in ExecutionLimits.__struct_fields__
    ]
    return table(("field", "meaning", "default"), rows)


def ending_table() -> str:
    """What a finish reason means."""
    rows = [(f"`{means}`", _coded(words.split())) for means, words in ENDINGS.items()]
    return table(("means", "finish reasons"), rows)


def cell_table() -> str:
    """What can happen to a call, by what it is taken for."""
    cells: dict[tuple[str, str], list[str]] = {}
    for cell in SCENARIOS.values():
        cells.setdefault((_taken_for(cell.plain), _taken_for(cell.streamed)), []).append(cell.name)
    return table(("plain call", "streamed call", "faults"), [(*taken, _coded(names)) for taken, names in cells.items()])


def _taken_for(play: Play) -> str:
    if play.kind is not None:
        return f"`{play.kind}`"
    return "an answer" if play.finish == "stop" else f"an answer, ended by `{play.finish}`"


def span_table() -> str:
    """What the spans of a trace hold: first what all have, then what each kind has besides."""
    kinds: tuple[type[Struct], ...] = get_args(Span)
    common = kinds[0].__bases__[0]
    rows = _span_rows("all", common)
    for kind in kinds:
        rows += _span_rows(f"`{kind.__struct_config__.tag}`", kind)
    return table(("span", "field", "type", "meaning"), merged(rows, 1))


def _span_rows(name: str, kind: type) -> list[tuple[str, ...]]:
    docs = {field: prose(said) for field, said in field_docs(kind).items()}
    types = {field: kind_of.removesuffix(" | UnsetType") for field, kind_of in kind.__annotations__.items()}
    return [(name, f"`{field}`", f"`{kind_of}`", docs.get(field, "")) for field, kind_of in types.items()]


def filter_table() -> str:
    """The keys of a filter."""
    rows = [(f"`{key}`", "= !=", _coded(words) or "any text") for key, words in TEXTS.items()]
    rows += [(f"`{key}`", "= !=", "`true`, `false`") for key in FLAGS]
    rows += [(f"`{key}`", " ".join(COMPARE), "a number") for key in NUMBERS_OF_FILTERS]
    rows.append((f"`{METADATA}<key>`", " ".join(COMPARE), "any text; a number behind `>= <= > <`"))
    return table(("key", "operators", "values"), merged(rows))


def trace_table() -> str:
    """What a trace holds."""
    rows = _rows(TraceItem) + _rows(Trace)
    rows += [(f"`content.{name[1:]}", *others) for name, *others in _rows(Content)]
    return table(("field", "type", "meaning"), rows)


def analytics_tables() -> str:
    """What the reports hold."""
    return _nested_tables(REPORTS)


def ledger_tables() -> str:
    """What the ledger holds."""
    return _nested_tables(LEDGER)


def account_tables() -> str:
    """Who calls, and on what terms."""
    return _whole_tables(ACCOUNTS)


def stored_policy_tables() -> str:
    """What the storage knows of policies."""
    return f"{_nested_tables(STORED_POLICIES)}\n{_whole_tables([PolicyState])}"


def _whole_tables(kinds: Iterable[type[Struct]]) -> str:
    return "\n".join(f"### `{kind.__name__}`\n\n{summary(kind)}\n\n{_whole_table(kind)}" for kind in kinds)


def _whole_table(kind: type[Struct]) -> str:
    """The fields of a struct, and what it says besides."""
    docs = {field: prose(said) for field, said in field_docs(kind).items()}
    rows = [(_in_both(name, kind), f"`{of}`", docs.get(name, "")) for name, of in kind.__annotations__.items()]
    rows += [
        (f"`{name}`", f"`{each.fget.__annotations__['return']}`", summary(each))
        for name, each in vars(kind).items()
        if isinstance(each, property) and f"{name.removesuffix('usd')}nanos" not in kind.__annotations__
    ]
    return table(("field", "type", "meaning"), rows)


def _in_both(path: str, kind: type[Struct]) -> str:
    """A field, with the one that has the same in dollars."""
    dollars = f"{path.removesuffix('nanos')}usd"
    same = path.endswith("_nanos") and hasattr(kind, dollars.rpartition(".")[2])
    return f"`{path}`, `{dollars.rpartition('.')[2]}`" if same else f"`{path}`"


def _nested_tables(kinds: tuple[type[Struct], ...]) -> str:
    """A table for each struct, with the fields of those that it alone holds."""
    inner = {each.__name__: each for each in kinds if _holders(each, kinds) == 1}
    shown = [each for each in kinds if each.__name__ not in inner]
    return "\n".join(
        f"### `{kind.__name__}`\n\n{summary(kind)}\n\n{table(('field', 'type', 'meaning'), _nested(kind, inner, ''))}"
        for kind in shown
    )


def _holders(kind: type[Struct], kinds: tuple[type[Struct], ...]) -> int:
    """How many fields of the structs are of this kind."""
    return sum(kind.__name__ in _NAME.findall(of) for each in kinds for of in each.__annotations__.values())


def _nested(kind: type[Struct], inner: dict[str, type[Struct]], at: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    docs = field_docs(kind)
    for field, of in kind.__annotations__.items():
        if field.endswith("_usd") and f"{field[:-4]}_nanos" in kind.__annotations__:
            continue
        held = next((inner[name] for name in _NAME.findall(of) if name in inner), None)
        said = prose(docs.get(field, "")) or ("" if held is None else summary(held))
        rows.append((_in_both(f"{at}{field}", kind), f"`{of}`", said))
        if held is not None:
            alone = of.removesuffix(" | None") == held.__name__
            rows += _nested(held, inner, f"{at}{field}." if alone else f"{at}{field}[].")
    return rows


def _rows(kind: type[Struct]) -> list[tuple[str, ...]]:
    docs = {field: prose(said) for field, said in field_docs(kind).items()}
    types = {field: of.replace("wire.", "") for field, of in kind.__annotations__.items()}
    return [(f"`{field}`", f"`{of}`", docs.get(field, "")) for field, of in types.items()]


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def policy_tables() -> str:
    """The keys of a policy file, a table for each kind of table in it."""
    tables = [f"{title}\n\n{_key_table(entry, kind)}" for title, (entry, kind) in POLICY_PARTS.items()]
    others = "".join(
        f"- [`{name}`](route-request.md#{name}): {_coded(entry.model_fields)}\n"
        for name, entry in POLICY_PARTS_OF_REQUESTS.items()
    )
    return "\n".join([*tables, f"## Tables as in a request\n\n{others}"])


def _key_table(entry: type[Strict], kind: type[Struct]) -> str:
    said = field_docs(kind)
    rows = [
        (
            f"`{name}`",
            _type(entry, name, kind),
            prose(said[name]),
            _default(field.default, required=field.is_required()),
        )
        for name, field in entry.model_fields.items()
    ]
    return table(("key", "type", "meaning", "default"), rows)


def _type(entry: type[Strict], name: str, kind: type[Struct]) -> str:
    """What a key takes: a number's range, words, or the kind of value."""
    if allowed := NUMBERS.get(kind, {}).get(name):
        return str(allowed).removeprefix("a ")
    schema = entry.model_json_schema()["properties"][name]
    kinds = [each for each in schema.get("anyOf") or schema.get("oneOf") or [schema] if each.get("type") != "null"]
    return " or ".join(map(_words, kinds))


def _words(schema: dict[str, Any]) -> str:
    if "oneOf" in schema:
        return " or ".join(map(_words, schema["oneOf"]))
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        items = schema["items"]
        return f"array of {_words(items)}" + ("s" if "enum" not in items else "")
    return {"string": "string", "boolean": "true or false"}.get(schema.get("type", ""), "table")


def _default(value: object, *, required: bool) -> str:
    if required:
        return "required"
    return "" if value in (None, "") else f"`{value}`"


def _entry_at(path: str) -> type[Strict]:
    """The table of the configuration of a server that stands there."""
    entry: type[Strict] | None = ServeFile
    for name in path.split("."):
        assert entry is not None
        entry = table_of(entry.model_fields[name])
    assert entry is not None
    return entry


SERVE_PARTS: dict[str, tuple[type[Strict], str, type]] = {
    "## The top of the file": (ServeFile, "", ServeFile),
    "## `[tls]`": (TlsEntry, "tls", TlsEntry),
    "## `[admin]`": (AdminEntry, "admin", AdminEntry),
    "## `[telemetry]`": (TelemetryEntry, "telemetry", TelemetryEntry),
    "## `[http]`": (_entry_at("http"), "http", HttpLimits),
    "## `[connections]`": (_entry_at("connections"), "connections", ConnectionLimits),
    "## `[settings]`": (SettingsEntry, "settings", SettingsEntry),
}
"""The tables of the configuration of a server, where each stands, and what says the meaning of its keys."""

SETTINGS_PARTS: dict[str, tuple[type[Strict], type]] = {
    "cache": (_entry_at("settings.cache"), CacheSettings),
    "webhooks": (_entry_at("settings.webhooks"), WebhookSettings),
    "retention": (RetentionEntry, RetentionEntry),
    "capture": (CaptureEntry, CaptureEntry),
}
"""The tables within ``[settings]``."""


def serve_tables() -> str:
    """The keys of the configuration of a server."""
    parts = [f"{title}\n\n{_serve_table(*each)}" for title, each in SERVE_PARTS.items()]
    rows = []
    for name, (entry, says) in SETTINGS_PARTS.items():
        rows.append((f"`[settings.{name}]`", _about(says), ""))
        rows += [(key, meaning, default) for key, meaning, default, _ in _serve_rows(entry, f"settings.{name}", says)]
    return "\n".join([*parts, f"## Tables of `[settings]`\n\n{table(('key', 'meaning', 'default'), rows)}"])


def _serve_table(entry: type[Strict], at: str, says: type) -> str:
    rows = _serve_rows(entry, at, says)
    if not any(flag for *_, flag in rows):
        return f"{_about(says)}\n\n" + table(("key", "meaning", "default"), [row[:3] for row in rows])
    return f"{_about(says)}\n\n" + table(("key", "meaning", "default", "flag"), rows)


def _about(says: type) -> str:
    return re.sub(r" \([^)]*\)", "", summary(says))


def _serve_rows(entry: type[Strict], at: str, says: type) -> list[tuple[str, str, str, str]]:
    said, rows = field_docs(says), []
    for name, field in entry.model_fields.items():
        path = f"{at}.{name}".lstrip(".")
        if table_of(field) is None:
            flag = f"`{FLAGS_OF_SERVE[path]}`" if path in FLAGS_OF_SERVE else ""
            meaning = said[name].replace("``", "`")
            assert VARIABLES[f"ROUTEWRIGHT_{path.replace('.', '_').upper()}"] == path
            rows.append((f"`{name}`", meaning, _told(field.default), flag))
    return rows


def _told(default: object) -> str:
    """A default as TOML writes it."""
    if default is None or default == "":
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`{list(default)}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    return f"`{default:_}`" if isinstance(default, int) and default > 9_999 else f"`{default:g}`"


def plan_table() -> str:
    """What the plans allow."""
    rows = [(f"`{name}`", *_limit_cells(name, limits)) for name, limits in PLANS.items()]
    return table(("plan", "requests a minute", "tokens a minute", "calls at a time"), rows)


def _limit_cells(plan: str, limits: RateLimits) -> list[str]:
    none = "as its contract says: `limits=`" if plan == "enterprise" else "no limit"
    told = (limits.requests_per_min, limits.tokens_per_min, limits.concurrency)
    return [none if limit is None else f"{limit:,}" for limit in told]


def exit_table() -> str:
    """Exit codes of the command."""
    return table(("code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])


def vendor_table() -> str:
    """Hosts that are known by name: what switches them on, and what their models take."""
    models = [model.provider for model in Catalogue().models]
    rows = []
    for host in ENDPOINTS.values():
        lacking = _lacking(host)
        wishes = [f"{words}{mark}" for name, words in _WISHES.items() if (mark := _taken(lacking, name)) is not None]
        needs = [f"`{name}`{mark}" for name in _NEEDS if (mark := _refused(lacking, name)) is not None]
        urls = "yes" if host.fetches_urls else ""
        regions = _coded(host.regions)
        rows.append(
            (
                f"`{host.name}`",
                _variables(host),
                regions,
                str(models.count(host.name)),
                urls,
                ", ".join(wishes),
                ", ".join(needs),
            )
        )
    return table(("name", "variable", "regions", "models", "fetches URLs", "takes", "does not take"), rows)


def _variables(host: Endpoint) -> str:
    """What is set for a host to be found."""
    if not host.needs_key:
        return f"`{host.url_variable}`"
    keys = " or ".join(f"`{name}`" for name in host.key_variables)
    return keys if host.base_url else f"{keys}, and `{host.url_variable}`"


def _lacking(vendor: Endpoint) -> _Lacking:
    """The models of a vendor with what each does not take."""
    variable = vendor.key_variables[:1] or (vendor.url_variable or "",)
    environ = dict.fromkeys((*variable, vendor.url_variable or ""), "https://localhost")
    (provider,) = providers_from_environment(environ)
    assert isinstance(provider, HttpProvider)
    known = [model for model in Catalogue().models if model.provider == vendor.name]
    models = known or [Model(id=f"{vendor.name}/plain"), Model(id=f"{vendor.name}/thinks", reasoning=True)]
    return [(model, provider.unsupported(model)) for model in models]


def _taken(lacking: _Lacking, feature: str) -> str | None:
    """Nothing if all models of a vendor that could take a feature do, "(some)" if some do, None if none does."""
    asked = [words for model, words in lacking if model.reasoning or not feature.startswith("reasoning")]
    return _mark([feature not in words for words in asked])


def _refused(lacking: _Lacking, feature: str) -> str | None:
    return _mark([feature in words for _, words in lacking])


def _mark(answers: list[bool]) -> str | None:
    if not any(answers):
        return None
    return "" if all(answers) else " (some)"


def _coded(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def figure_table() -> str:
    """What Prometheus is told."""
    rows = [(f"`{each.name}`", each.kind, _coded(each.labels), each.help) for each in FIGURES.values()]
    return table(("name", "kind", "labels", "meaning"), rows)


def attribute_table() -> str:
    """What spans and figures of OpenTelemetry are told with."""
    rows = [(each.on, _code(each.name), each.help) for each in ATTRIBUTES.values()]
    return table(("of", "name", "meaning"), rows)


def histogram_table() -> str:
    """The figures of OpenTelemetry."""
    rows = [(_code(each.name), f"`{each.unit}`", each.help) for each in HISTOGRAMS.values()]
    return table(("name", "unit", "meaning"), rows)


class VendorCall(NamedTuple):
    """The tables of one door."""

    honoured: Iterable[str]
    passed: Iterable[str]
    refused: dict[str, tuple[str, str]]


def _door_table(door: VendorCall) -> str:
    """What becomes of each field that a vendor's client may send."""
    rows = [
        (_names(door.honoured), "honoured"),
        (_names(door.passed), "sent as they are to the vendor's models; where another serves, ignored and named"),
        *((f"`{name}`", f"refused: {problem}; {hint}") for name, (problem, hint) in door.refused.items()),
        ("all others", "ignored, and named in `X-Routewright-Ignored`"),
    ]
    return table(("field", "what becomes of it"), rows)


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(fields))


def not_offered() -> str:
    """What vendors have that is not served."""
    return table(("vendor", "below `/v1`"), [(vendor, _names(names)) for vendor, names in NOT_OFFERED.items()])


PARTS: dict[str, Callable[[], str]] = {
    "chat-door": lambda: _door_table(
        VendorCall(_doors.OF_COMPLETIONS, openai.ChatCall.passthrough, openai.ChatCall.refusals)
    ),
    "responses-door": lambda: _door_table(
        VendorCall(_doors.OF_RESPONSES, responses.ResponseCall.passthrough, responses.ResponseCall.refusals)
    ),
    "anthropic-door": lambda: _door_table(VendorCall(_doors.OF_MESSAGES, _doors.MESSAGES_PASSED, {})),
    "not-offered": not_offered,
    **_agents.PARTS,
    **_events.PARTS,
    "accounts": account_tables,
    "stored-policies": stored_policy_tables,
    "analytics": analytics_tables,
    "cells": cell_table,
    "endings": ending_table,
    "errors": error_table,
    "exits": exit_table,
    "faults": fault_table,
    "figures": figure_table,
    "filter-keys": filter_table,
    "execution": execution_table,
    "http": http_reference,
    "ledger": ledger_tables,
    "names": name_table,
    "further-names": further_name_table,
    "otel-attributes": attribute_table,
    "otel-metrics": histogram_table,
    "picks": picks,
    "plans": plan_table,
    "policy-file": policy_tables,
    "serve": serve_tables,
    "spans": span_table,
    "trace": trace_table,
    "vendors": vendor_table,
    "weights": weights,
}


def with_parts(text: str) -> str:
    """A page with its generated parts as they should be."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", text)


def with_output(text: str, found: Iterable[Shown]) -> str:
    """A page with the output of its blocks and commands as it is now."""
    for each in sorted(found, reverse=True):
        if not each.agrees:
            text = text[: each.start] + _cut(each) + text[each.start + len(each.shown) :]
    return text


def _cut(found: Shown) -> str:
    """What was printed, with lines left out where the page leaves lines out."""
    head, dots, tail = found.shown.partition("...\n")
    lines = found.printed.splitlines(keepends=True)
    if not dots:
        return found.printed
    before, after = head.count("\n"), tail.count("\n")
    return "".join([*lines[:before], dots, *(lines[-after:] if after else [])])


def main() -> None:
    """Renew every page, the OpenAPI document, and the schemas of files."""
    OPENAPI.write_bytes(openapi() + b"\n")
    for name, text in schemas().items():
        SCHEMAS.joinpath(name).write_text(text, "utf-8")
    for page in pages():
        page.write_text(with_parts(page.read_text("utf-8")), "utf-8")
        page.write_text(with_output(page.read_text("utf-8"), run(page)), "utf-8")
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
