"""The configuration file of ``routewright serve``, and which environment variable says what."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Any, Literal, get_type_hints

import pydantic
from msgspec import Struct
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from routewright._core.attempts.limits import ExecutionLimits
from routewright.config import STRICT, Name, Strict, Switch
from routewright.contrib.semconv import Version
from routewright.server.limits import ConnectionLimits, HttpLimits
from routewright.settings import Limits, Settings
from routewright.wire import Durability, Environment

LogLevel = Literal["debug", "info", "warning", "error"]
SECRETS = frozenset({"tls.key_password"})
"""Keys whose values are never shown."""


def _from(least: int, most: int) -> AfterValidator:
    def check(value: int) -> int:
        if not least <= value <= most:
            raise PydanticCustomError("range", "must be from {least} to {most}", {"least": least, "most": most})
        return value

    return AfterValidator(check)


def _above_0(value: float) -> float:
    if not 0 < value < float("inf"):
        raise PydanticCustomError("range", "must be above 0")
    return value


def _prefix(path: str) -> str:
    if path and (not path.startswith("/") or path.endswith("/") or not path.isascii() or not path.isprintable()):
        raise PydanticCustomError("prefix", "must begin with a slash and not end with one, as /llm")
    return path


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:  # it would trust nobody, or with a star whoever sends the header
        raise PydanticCustomError("network", "must be an address, or a network as 10.0.0.0/8") from None
    return text


Port = Annotated[int, STRICT, _from(0, 65_535)]
Whole = Annotated[int, STRICT, _from(1, 1 << 40)]
Number = Annotated[float, STRICT, AfterValidator(_above_0)]
Days = Number | Literal["forever"]


def _entry(name: str, limits: type[Struct]) -> type[Strict]:
    """The table of a file that gives a struct of numbers; what each may be, the struct says itself."""
    kinds = {int: Annotated[int, STRICT], float: Annotated[float, STRICT]}
    hints = get_type_hints(limits)
    defaults = dict(zip(limits.__struct_fields__, limits.__struct_defaults__, strict=True))
    fields: dict[str, Any] = {each: (kinds[hints[each]], default) for each, default in defaults.items()}
    return pydantic.create_model(name, __base__=Strict, __doc__=limits.__doc__, **fields)


HttpEntry = _entry("HttpEntry", HttpLimits)
ConnectionsEntry = _entry("ConnectionsEntry", ConnectionLimits)
ExecutionEntry = _entry("ExecutionEntry", ExecutionLimits)


class TlsEntry(Strict):
    """TLS. Without a certificate the server speaks plain HTTP."""

    cert: Name | None = None
    """File of the certificate, with those that lead to its root, as PEM."""
    key: Name | None = None
    """File of its private key, where that is not in the same file."""
    key_password: Name | None = None
    """Opens the private key. It is better off in the environment."""


class AdminEntry(Strict):
    """The listener for health checks and metrics. It asks for no key."""

    port: Port | None = None
    """Where it listens; of several workers the first, and each further one a port higher. Without it there is none."""
    host: Name = "127.0.0.1"
    """Whom it is open to: this machine alone, unless another address is named."""


class TelemetryEntry(Strict):
    """OpenTelemetry. Spans and figures of calls go by OTLP to where `OTEL_EXPORTER_OTLP_ENDPOINT` says."""

    otel: Switch = False
    """Export them. It needs the extra `otel`."""
    semconv: Version = "1.44"
    """The version of the semantic conventions whose names they have."""


class RetentionEntry(Strict):
    """How long traces are kept. Without the table it is as the store was told before: 30 days, and 1."""

    production_days: Days = 30
    """Days, or `"forever"`."""
    sandbox_days: Days = 1
    """The same of the sandbox."""


class CaptureEntry(Strict):
    """What is said in calls is kept in traces, behind the built-in redactor. Without the table none of it is."""

    prompts: Switch = True
    """Keep what is asked."""
    answers: Switch = True
    """Keep what is answered."""


class SettingsEntry(Strict):
    """How the Router works inside."""

    default_max_output_tokens: Whole = Limits().default_max_output_tokens
    """Output cap where money or tokens are limited and a request names none."""
    durability: Durability = Settings().durability
    """When an answer is given: `buffered`, at once, its trace within 50 ms; `committed`, with its trace on the disk."""
    lease_s: Number = Settings().lease_s
    """After so long what a worker held that died is free again."""
    traceparent_to: tuple[Name, ...] = ()
    """Providers that are sent the header `traceparent` of calls that had one; `"*"` is all."""
    rollup_keys: tuple[Name, ...] = ()
    """Metadata that usage reports can group by: at most 8 keys."""
    stale_after_days: Whole | Literal["never"] = Settings().stale_after_days or "never"
    """Days after which prices are said to be old, or `"never"`."""
    retention: RetentionEntry | None = None
    """See below."""
    capture: CaptureEntry | None = None
    """See below."""
    execution: ExecutionEntry = ExecutionEntry()  # type: ignore[valid-type]
    """See below."""


class ServeFile(Strict):
    """The configuration of a server."""

    host: Name = "127.0.0.1"
    """The address to listen at. One that other machines reach needs TLS, or `insecure_bind`."""
    port: Port = 8080
    """The port; 0 takes any that is free."""
    insecure_bind: Switch = False
    """Speak plain HTTP at an address that other machines reach: for a proxy in front that ends TLS."""
    root_path: Annotated[str, AfterValidator(_prefix)] = ""
    """What a proxy puts in front of all paths, as `/llm`."""
    trusted_proxies: tuple[Annotated[Name, AfterValidator(_network)], ...] = ()
    """Addresses, or networks, of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""
    workers: Annotated[int, STRICT, _from(1, 256)] = 1
    """Processes that answer. Rate limits hold over all of them."""
    environment: Environment | Literal["both"] = "both"
    """Whose keys are taken: live ones, test ones, or both."""
    store: Name = "sqlite:///routewright.db"
    """The store: a file as `routewright.db`, its URL, or `memory:`, which ends with the server."""
    policies: Name | None = None
    """File of policies. Changes of it are taken within two seconds."""
    catalogue: Name | None = None
    """File of models and prices that is put over the bundled ones."""
    graceful_timeout_s: Number = 30
    """When the server ends, or takes a new configuration, requests may take so long to end by themselves."""
    log_level: LogLevel = "info"
    """What is logged at least."""
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
    """The table that a key holds; None: it holds a value."""
    kinds = getattr(field.annotation, "__args__", (field.annotation,))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Strict)), None)


VARIABLES: dict[str, str] = {f"ROUTEWRIGHT_{path.upper().replace('.', '_')}": path for path, _ in keys_of(ServeFile)}
"""What each environment variable says, by the path of its key in a file."""
