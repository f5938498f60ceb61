"""The configuration of ``routewright serve``: its keys, and where the value of each comes from.

A flag goes before an environment variable, a variable before the file, and the file before the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from ipaddress import ip_network
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from routewright._setup.config import STRICT, Name, Strict, Switch, entry_of, validate
from routewright._setup.input_file import read
from routewright.errors import Problem, renaming
from routewright.server.http_limits import ConnectionLimits, HttpLimits
from routewright.settings import CacheSettings, ExecutionLimits, Limits, Settings, WebhookSettings
from routewright.wire import Durability, Environment
from routewright.wire.problems import did_you_mean

LogLevel = Literal["debug", "info", "warning", "error"]
CONFIG = "ROUTEWRIGHT_CONFIG"
"""The variable that names the file if ``--config`` does not."""
OTHERS = {CONFIG, *(f"ROUTEWRIGHT_{name}" for name in "PROVIDERS SECRET SECRET_BEFORE KEY URL".split())}
"""Our variables that configure something else. The last two are for clients, in our examples."""
SECRETS = {"tls.key_password"}
"""Keys whose values are never shown."""


def _require(condition: str, is_valid: Callable[[Any], bool]) -> AfterValidator:
    """Refuse values that do not hold, in these words."""

    def check(value: object) -> object:
        if not is_valid(value):
            raise PydanticCustomError("range", f"must {condition}")
        return value

    return AfterValidator(check)


def _between(minimum: int, maximum: int) -> AfterValidator:
    return _require(f"be from {minimum} to {maximum}", lambda value: minimum <= value <= maximum)


def _is_prefix(path: str) -> bool:
    return not path or (path[0] == "/" and path[-1] != "/" and path.isascii() and path.isprintable())


def _is_host_name(text: str) -> bool:
    return not {*text} & {*":/@ "}


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:  # uvicorn would trust nobody; with a star, whoever sends the header
        return False
    return True


Port = Annotated[int, STRICT, _between(0, 65_535)]
Whole = Annotated[int, STRICT, _between(1, 1 << 40)]
Number = Annotated[float, STRICT, _require("be above 0", lambda value: 0 < value < float("inf"))]
Amount = Annotated[float, STRICT, _require("be 0 or above", lambda value: 0 <= value < float("inf"))]
Share = Annotated[float, STRICT, _require("be a number from 0 to 1", lambda value: 0 <= value <= 1)]
Days = Number | Literal["forever"]
Prefix = Annotated[str, _require("begin with a slash and not end with one, as /llm", _is_prefix)]
HostName = Annotated[Name, _require("be a name alone, as ops.example.com", _is_host_name)]
Network = Annotated[Name, _require("be an address, or a network as 10.0.0.0/8", _is_network)]


HttpEntry = entry_of(HttpLimits)
ConnectionsEntry = entry_of(ConnectionLimits)
ExecutionEntry = entry_of(ExecutionLimits)
CachingEntry = entry_of(
    CacheSettings,
    without=("embedder", "comparators"),
    judge_usd_a_day=(Amount, CacheSettings().judge_usd_a_day),
    low_hit_rate=(Share, CacheSettings().low_hit_rate),
)
WebhooksEntry = entry_of(
    WebhookSettings,
    without=("transport",),
    max_attempts=(
        Annotated[int, STRICT, _require("be 1 to 6", lambda value: 1 <= value <= 6)],
        WebhookSettings().max_attempts,
    ),
)


class TlsEntry(Strict):
    """TLS. Without a certificate the server speaks plain HTTP."""

    cert: Name | None = None
    """File of the certificate and its chain, in PEM."""
    key: Name | None = None
    """File of the private key, unless `cert` contains it."""
    key_password: Name | None = None
    """The password of the private key. It belongs in the environment."""


class AdminEntry(Strict):
    """The listener for health checks and metrics, which need no key."""

    port: Port | None = None
    """The port, which all workers share. Without it there is no listener."""
    host: Name = "127.0.0.1"
    """The address to listen at."""
    ui: Switch = False
    """Serve [the page for operators](../how-to/page.md), which needs a key, at `/ui`."""
    hosts: tuple[HostName, ...] = ()
    """Host names of the page, such as `ops.example.com`. IP addresses and `localhost` need no entry."""


class TelemetryEntry(Strict):
    """OpenTelemetry. Spans and metrics of calls go to `OTEL_EXPORTER_OTLP_ENDPOINT` by OTLP over HTTP, or over gRPC if
    `OTEL_EXPORTER_OTLP_PROTOCOL` is `grpc`."""

    otel: Switch = False
    """Export them. It needs the extra `otel`."""


class RetentionEntry(Strict):
    """How long traces are kept. Without the table the store keeps its last setting."""

    production_days: Days = 30
    """Days, or `"forever"`."""
    sandbox_days: Days = 1
    """The same for the sandbox."""


class CaptureEntry(Strict):
    """Keeps prompts and answers in traces, behind the built-in redactor. Without the table neither is kept."""

    prompts: Switch = True
    """Keep prompts."""
    answers: Switch = True
    """Keep answers."""


class SettingsEntry(Strict):
    """[Settings](settings.md) of the Router."""

    default_max_output_tokens: Whole = Limits().default_max_output_tokens
    """Output cap of requests that name none, where money or tokens are limited."""
    durability: Durability = Settings().durability
    """`buffered`: traces are written within 50 ms after the answer; `committed`: before it."""
    traceparent_to: tuple[Name, ...] = ()
    """Providers that receive the `traceparent` of calls; `"*"`: all."""
    rollup_keys: tuple[Name, ...] = ()
    """Keys of metadata that usage reports can group by, at most 8."""
    workload_keys: tuple[Name, ...] = ()
    """Keys of metadata whose values split calls into workloads, at most 8."""
    preload_tokens: Switch = Settings().preload_tokens
    """Load the vocabularies for counting tokens, 75 to 110 MB, before a worker is ready. Otherwise the first count
    delays all its requests by a quarter of a second."""
    warm_prefixes: Switch = Settings().warm_prefixes
    """Price the part of a prompt that is expected in a vendor's cache as cached."""
    stale_after_days: Whole | Literal["never"] = Settings().stale_after_days or "never"
    """Days after which prices are reported as old, or `"never"`."""
    retention: RetentionEntry | None = None
    """See below."""
    capture: CaptureEntry | None = None
    """See below."""
    cache: CachingEntry = CachingEntry()  # type: ignore[valid-type]
    """See below."""
    webhooks: WebhooksEntry = WebhooksEntry()  # type: ignore[valid-type]
    """See below."""
    execution: ExecutionEntry = ExecutionEntry()  # type: ignore[valid-type]
    """See below."""


class ServeFile(Strict):
    """The configuration of a server. These keys come before the tables."""

    host: Name = "127.0.0.1"
    """The address to listen at. If other machines can reach it, it needs TLS or `insecure_bind`."""
    port: Port = 8080
    """The port; 0: any free one."""
    insecure_bind: Switch = False
    """Allow plain HTTP at an address that other machines can reach, for a TLS proxy in front."""
    root_path: Prefix = ""
    """The prefix of all paths behind a proxy, such as `/llm`."""
    health: Switch = False
    """Serve `/healthz` and `/readyz` at this address too, without a key."""
    cors_origins: tuple[Name, ...] = ()
    """Origins of web pages that may call the server, such as `https://app.example.com`; `"*"`: all."""
    trusted_proxies: tuple[Network, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted."""
    workers: Annotated[int, STRICT, _between(1, 256)] = 1
    """Number of worker processes. They share rate limits."""
    environment: Environment | Literal["both"] = "both"
    """The keys that are accepted: live ones, test ones, or both."""
    store: Name = "sqlite:///routewright.db"
    """The store: a file such as `routewright.db`, its URL, the URL of [a database](../how-to/postgresql.md), or
    `memory:`, which ends with the server. The password of a database may be in `PGPASSWORD`, or in the file that
    `PGPASSFILE` names."""
    cache: Name = "memory:"
    """The response cache: a file such as `cache.db`, which all workers share, its URL, the URL of
    [Redis](../how-to/redis.md) or a database, or `memory:`, one per worker. The password of Redis may be in
    `REDIS_PASSWORD`."""
    coordination: Name = "memory:"
    """[The URL of Redis](../how-to/redis.md), through which several machines share rate limits and news. The
    password as for `cache`."""
    processes: Whole | None = None
    """Number of workers on all machines. While the coordination is unavailable, a worker admits every limit divided
    by this number, or by the number of workers last seen if that is larger. By default the `workers` of this server."""
    policies: Name | None = None
    """File of policies. Changes take effect within two seconds."""
    catalogue: Name | None = None
    """File of models and prices that extend or replace the bundled ones."""
    fetches_urls: tuple[Name, ...] = ()
    """Providers on your own machines, such as `vllm`, that may fetch images and files by URL. Their network must have
    [nothing to protect](../explanation/security.md). Vendors that fetch on their own machines need no entry."""
    caller_extra: tuple[Name, ...] = ()
    """Vendor fields that requests may send besides
    [the harmless ones](../explanation/security.md#fields-of-one-vendor), with the provider in front, such as
    `vllm.structured_outputs.choice`."""
    graceful_timeout_s: Number = 30
    """Seconds that running requests have to end when the server stops or replaces its workers."""
    log_level: LogLevel = "info"
    """The lowest level that is logged."""
    access_log: Switch = True
    """Write [a line of JSON](#the-access-log) to standard output for each request."""
    tls: TlsEntry = TlsEntry()
    """See below."""
    admin: AdminEntry = AdminEntry()
    """See below."""
    telemetry: TelemetryEntry = TelemetryEntry()
    """See below."""
    http: HttpEntry = HttpEntry()  # type: ignore[valid-type]
    """See below."""
    connections: ConnectionsEntry = ConnectionsEntry()  # type: ignore[valid-type]
    """See below."""
    settings: SettingsEntry = SettingsEntry()
    """See below."""


def keys_of(entry: type[Strict], before: str = "") -> Iterator[tuple[str, pydantic.fields.FieldInfo]]:
    """Every key that holds a value, by its path, as ``tls.cert``."""
    for name, field in entry.model_fields.items():
        table = table_of(field)
        if table is None:
            yield f"{before}{name}", field
        else:
            yield from keys_of(table, f"{before}{name}.")


def table_of(field: pydantic.fields.FieldInfo) -> type[Strict] | None:
    """The table that a key holds; None if it holds a value."""
    kinds = getattr(field.annotation, "__args__", (field.annotation,))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Strict)), None)


_KINDS = {path: str(field.annotation) for path, field in keys_of(ServeFile)}
VARIABLES = {f"ROUTEWRIGHT_{path.upper().replace('.', '_')}": path for path in _KINDS}
"""The path of the key that each environment variable sets."""
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_PARSERS: dict[str, Callable[[str], object]] = {
    "tuple": lambda text: [part.strip() for part in text.split(",")],
    "bool": lambda text: _BOOLEANS.get(text.lower(), text),
    "int": int,
    "float": float,
}
"""How the text of a variable is read, by the kind of its key."""


class Sources:
    """The configuration, read from all its sources. ``flags``: values by the paths of their keys; ``names``: the names
    of all flags. Raises ``ValidationFailed`` naming the flag, the variable, or file, line and key."""

    def __init__(
        self, flags: Mapping[str, Any], names: Mapping[str, str], environ: Mapping[str, str], config: str | None
    ) -> None:
        path = config or environ.get(CONFIG)
        self.document = read(path) if path else None
        self._names = names
        self._set_by: dict[str, str] = {}
        """The flag or variable behind a key. Other values are the document's, or defaults."""
        content: dict[str, Any] = {}
        if self.document is not None:
            with self.document.naming():
                validate(self.document.content, ServeFile)
            content = deepcopy(self.document.content)
        settings = [(VARIABLES[name], environ[name], name) for name in VARIABLES if environ.get(name)]
        for path, value, source in (*settings, *((key, value, names[key]) for key, value in flags.items())):
            if source == "ROUTEWRIGHT_PORT" and value.startswith(("tcp://", "udp://")):
                continue  # Kubernetes sets it for a service called routewright
            *tables, key = path.split(".")
            table = content
            for name in tables:
                table = table.setdefault(name, {})
            table[key] = _parse_value(path, value) if source in VARIABLES else value
            self._set_by[path] = source
        with self.naming():
            self.file = validate(content, ServeFile)
        known = {*VARIABLES, *OTHERS}
        unknown_names = sorted(name for name in environ if name.startswith("ROUTEWRIGHT_") and name not in known)
        hints = {name: did_you_mean(name, known) for name in unknown_names}
        self.unknown = tuple(f"{name} is unknown and ignored; {hint}" for name, hint in hints.items() if hint)
        """Variables that look like ours, with what they may mean."""

    def naming(self) -> AbstractContextManager[None]:
        """Let problems that are raised inside, with the paths of keys, name what was written where."""
        return renaming(self._rename)

    def _rename(self, problem: Problem) -> Problem:
        key = problem.path.partition("[")[0]
        if key in SECRETS:
            problem = problem._replace(problem=problem.problem.partition(", got ")[0])
        path = self._set_by.get(key) or self._names.get(key, problem.path)
        if key not in self._set_by and self.document is not None and _contains(self.document.content, key):
            path = f"{self.document.path}: {problem.path}"
        return problem._replace(path=path)


def _contains(content: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def _parse_value(path: str, text: str) -> object:
    """The text of a variable as a value of its key, or as it is: then the shape refuses it."""
    for kind, parse in _PARSERS.items():
        if kind in _KINDS[path]:
            try:
                return parse(text)
            except ValueError:
                pass
    return text
