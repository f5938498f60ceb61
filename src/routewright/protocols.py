"""Protocols for everything a program may plug in. Any object that fits will do; inheriting is not needed. The optional
attributes are those of the classes named ``Base...``, with their defaults.

The docstrings state what an implementation must guarantee. The contract suites in ``tests/contracts`` check it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, TypeVar, cast, overload, runtime_checkable

from msgspec import Struct

from . import wire

if TYPE_CHECKING:
    from numpy.typing import NDArray

Vector: TypeAlias = "Sequence[float] | NDArray[Any]"
"""An embedding."""


class Deadline(Protocol):
    """A time limit for the block inside. It belongs to the task that enters it.

    When the time is up, the task is cancelled wherever it waits, repeatedly until it leaves the block. Leaving swallows
    this cancellation and sets ``expired``. If nested deadlines have both run out, the outer one expires. If the body
    returns, or raises an error of its own, ``expired`` stays False. A cancellation from elsewhere always passes."""

    @property
    def expired(self) -> bool:
        """True after the block was left because the time ran out."""

    def move(self, at: float) -> None:
        """Change the time, from inside. A deadline that has run out stays expired."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Clock(Protocol):
    """The source of time. Every wait and time-out goes through it, so a fake clock drives them all."""

    @property
    def virtual(self) -> bool:
        """True if only an event loop moves the time. Background work then runs in the caller's loop, since no thread
        can wait for such a clock."""

    def time(self) -> float:
        """Unix seconds, for display and storage."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less still lets other tasks run."""

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> Deadline:
        """Make a deadline that runs out at ``at`` on the ``monotonic`` scale; infinity never does.

        With ``shield`` the scopes and deadlines around it cannot cancel it: for clean-up that must finish in bounded
        time. A deadline may cancel natively, which ignores anyio's shields inside it; with ``scoped`` it is a cancel
        scope, which respects them."""


class Rng(Protocol):
    """A seeded source of random numbers."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def getrandbits(self, k: int, /) -> int:
        """An integer of ``k`` random bits."""


@runtime_checkable
class Provider(Protocol):
    """Answers calls: a vendor's API, a function, a test double.

    One object serves many calls at once, from any event loop and thread. ``open`` reports every failure of the provider
    as ``ProviderFault``, on entry or while iterating. An answer ends with exactly one ``Finish``, with ``Usage`` before
    it if known. Under a budget, a call that is cut off after its context was entered, or whose fault says ``answered``,
    counts with the most it can cost; a fault on entry costs nothing. The context may be entered and left in different
    tasks, so it must not keep a cancel scope or task group open over a ``yield``. Leaving it early frees the
    connection. ``BaseProvider`` has the optional attributes."""

    @property
    def name(self) -> str:
        """The provider part of its models' ids."""

    def models(self) -> Sequence[wire.Model]:
        """The models it serves. Empty: every catalogue model whose provider is ``name``. A model in the catalogue needs
        only its id; others need price, window, modalities, and ``quality`` or ``like``."""

    def open(self, call: wire.UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[wire.Chunk]]:
        """Start one call. A provider that cannot stream yields one ``Delta``."""

    async def aclose(self) -> None:
        """Free resources. Safe to call twice."""


class BaseProvider:
    """What a provider may leave out."""

    needs_scope: bool = False
    """True if it cleans up in anyio's shields, which the native cancellation of asyncio ignores: its attempts then run
    in a cancel scope, at some microseconds each."""
    whole: bool = False
    """True if it cannot stream."""
    max_retries: int | None = None
    """How often its models are retried if neither request nor policy says."""
    region: str | None = None
    """The region that serves all its calls, as policies name it. None: unknown."""
    fetches_urls: bool | Literal["callers"] = False
    """Whether it may be sent URLs of images and files. True: those in requests of the process itself. ``"callers"``:
    also those in requests of callers with a key, as is safe if the URLs are fetched outside of the owner's network."""
    caller_extra: Collection[str] | None = None
    """Names of the fields that callers with a key may send it in ``params.extra``. None: those that most hosts ignore
    or take without a risk."""

    @property
    def keys(self) -> int | None:
        """How many keys it has. None: unknown."""
        return None

    @property
    def refused_keys(self) -> int:
        """How many of its keys the vendor refused when last used; above 0 its models are shown as degraded, and the
        provider logs refusals itself."""
        return 0

    @property
    def discovers(self) -> bool:
        """True if its server lists its models (``DiscoveringProvider``)."""
        return False

    def unsupported(self, model: wire.Model) -> Collection[wire.Feature]:
        """The features that a model does not support: requests that need one are not sent to it. Called once per
        model."""
        return ()


@runtime_checkable
class DiscoveringProvider(Provider, Protocol):
    """A provider whose server lists its models. The Router asks before the first decision and from time to time, in its
    own thread."""

    @property
    def discovers(self) -> bool:
        """False if there is nothing to ask."""

    async def discover(self) -> None:
        """Ask the server, and return its list from ``models()`` from now on. Raises ``ProviderFault``; ``models()``
        then stays as it was."""


class Response(Protocol):
    """An HTTP response whose body is streamed. Raises ``ProviderFault`` if the connection fails."""

    @property
    def status(self) -> int:
        """The status code."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, decompressed."""

    async def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body; more raises ``ProviderFault("malformed")``."""


class Transport(Protocol):
    """Sends HTTP requests, with one pool per event loop. It follows no redirects and does not retry."""

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send one request. Leaving the context before the body's end closes the connection."""

    async def aclose(self) -> None:
        """Close every pool. Safe to call twice."""


@runtime_checkable
class Guardrail(Protocol):
    """Checks texts that go to a model or come from one.

    One object serves many calls at once, from any event loop and thread. Verdicts and rule names must not contain the
    text that was found. If ``check`` raises, or returns anything but a verdict, the call fails with
    ``InternalError``."""

    @property
    def name(self) -> str:
        """The name in spans."""

    @property
    def stages(self) -> Collection[wire.Stage]:
        """When it is called: ``input``, ``output`` or both."""

    @property
    def holds(self) -> int | None:
        """The length in characters of the longest possible finding: a stream holds back so much. None: only a whole
        answer can be judged, so a stream yields nothing before the end."""

    def check(self, text: str, stage: wire.Stage) -> wire.Verdict | Awaitable[wire.Verdict]:
        """Judge one text: ``Allow()``, ``Redact`` with the parts, or ``Block``. May be ``async``. A streamed answer
        arrives as successive windows, each starting at a word."""


@runtime_checkable
class Cache(Protocol):
    """Stores and finds answers (contract 6); the engine decides whether to serve them.

    Safe to use from any event loop and thread. It never returns an expired or removed entry. An error counts as a miss;
    no call fails because of its cache. ``BaseCache`` has the optional attributes."""

    async def get(self, key: bytes, now: float) -> wire.CacheEntry | None:
        """The entry of exactly this request, without its embedding. ``now`` in Unix seconds."""

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[wire.CacheMatch]:
        """The entries of a partition with the most similar embeddings, most similar first, without the embeddings.
        Entries without an embedding are never returned."""

    async def put(self, entry: wire.CacheEntry) -> None:
        """Keep an answer, replacing one with the same key. May evict others."""

    async def remove(self, which: wire.CacheSelection) -> int:
        """Remove entries and return their number. They are never returned afterwards."""

    async def stats(self, account: str | None, now: float) -> wire.CacheStats:
        """Count the entries of an account; None: of all accounts."""

    async def aclose(self) -> None:
        """Free resources. Safe to call twice."""


class BaseCache:
    """What a cache may leave out."""

    waits: bool = True
    """False if ``get`` and ``put`` never wait: they are called without a time limit."""
    exact: bool = False
    """True if there is no similarity search."""
    learned: (
        Callable[[str, Sequence[wire.Observation], int], Awaitable[tuple[Sequence[wire.Observation], int]]] | None
    ) = None
    """``async learned(space, new, after)`` shares observations between processes. Adds the new ones; returns those of
    other users since ``after``, and their end."""
    lead: Callable[[bytes, float], Awaitable[bool]] | None = None
    """``async lead(key, seconds)``: True for the first process to ask, until ``seconds`` pass or it asks with 0. That
    process makes the call, and the others wait for its answer."""

    @property
    def is_starting(self) -> bool:
        """True while searches are slow because it starts; it is then not paused for being slow."""
        return False


@runtime_checkable
class Embedder(Protocol):
    """Turns a text into a vector; texts with the same meaning get similar vectors. Safe to use from any thread.

    An error makes the call a cache miss. After several errors in a row the embedder is not called for a while."""

    @property
    def name(self) -> str:
        """Identifies the vector space, version included."""

    def embed(self, text: str) -> Vector | Awaitable[Vector]:
        """The embedding; all must have one length. May be ``async``; otherwise it runs in a worker thread for long
        texts."""


class AnswerComparator(Protocol):
    """Judges whether a cached answer could have replaced a live one."""

    def compare(self, question: str, cached: str, live: str) -> bool | Awaitable[bool | None] | None:
        """True if it could. None: undecided, so the next comparator is called."""


class Redactor(Protocol):
    """Removes from a prompt or answer what must not be stored. Called in any thread, once per text.

    If it raises, or returns anything but a text, the text is left out of the trace; the call goes on."""

    def __call__(self, text: str, /) -> str:
        """Return the text to store."""


class TokenCounter(Protocol):
    """Counts tokens of the vocabularies ``o200k_base`` and ``cl100k_base``, in any thread. ``BaseTokenCounter`` has
    the optional method."""

    def count(self, text: str, encoding: str) -> int:
        """Exact number of tokens of ``text``, with special tokens taken as plain text. A number that a text of this
        length cannot have is replaced by the nearest possible one."""


class BaseTokenCounter:
    """What a token counter may leave out."""

    def load(self, encoding: str) -> object:
        """Prepare for a vocabulary; called in a thread before a server is ready."""


class WebhookTransport(Protocol):
    """Sends webhooks, in one event loop. The default connects to public addresses only, without proxies."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> wire.WebhookAnswer:
        """POST once and return the status, whatever it is. Follows no redirects. Raises ``OSError`` if there is no
        answer, with a message for the endpoint's owner. The caller cancels it after 10 s."""

    async def aclose(self) -> None:
        """Close the connections."""


class QualityPredictor(Protocol):
    """Predicts how well each model would answer a request. The default is the catalogue's column."""

    def predict(self, request: wire.RouteRequest, models: Sequence[wire.Model]) -> Sequence[float] | None:
        """One quality in 0..1 per model, in order; None: use the catalogue's. Called on the hot path: no I/O.

        An error fails the call with ``InternalError``; return None to fall back on the catalogue."""


@runtime_checkable
class Coordination(Protocol):
    """Carries notices between processes, such as which models are paused. Delivery is best effort.

    Safe to call from any event loop and thread. Raises ``StorageUnavailable`` if it cannot be reached."""

    async def announce(self, notice: wire.Notice) -> None:
        """Publish a notice to all listeners."""

    async def hear(self, after: int | None) -> wire.Heard:
        """The notices since ``after``, the ``last`` of the previous result. Waits some seconds for the first. With None
        it returns at once, without notices and with the present position."""

    async def aclose(self) -> None:
        """Free resources. Safe to call twice."""


@runtime_checkable
class CountingCoordination(Coordination, Protocol):
    """Counts rate limits and slots for all processes that share it, by one clock, with the guarantees of ``Accounts``.
    A process that dies holds its slots for at most a lease."""

    @property
    def processes(self) -> int:
        """The number of processes that share it. While it is unreachable, each has an equal part of every limit."""

    async def take(self, takes: wire.Takes) -> wire.Taken:
        """Take everything or nothing; nothing if cancelled. Raises ``RateLimited`` and ``StorageUnavailable``."""

    def end(self, taken: wire.Taken, tokens: int | None, *, void: bool = False) -> None:
        """Return a slot, and correct the tokens to the number used; None: unknown. ``void`` returns everything taken.
        Never fails or waits."""


@runtime_checkable
class Storage(Protocol):
    """Atomic storage for everything that is kept (contract 1). ``wire/storage.py`` has the kinds of write and query.

    Safe to call from any event loop and thread. After ``apply`` returns, every ``read`` sees its writes. Stored traces
    do not change with the objects passed or returned. Roll-ups change together with their traces. No account sees data
    of another. Every method raises ``UnsupportedWrite`` for an unknown kind, and ``StorageUnavailable`` for a failure
    that may pass. ``BaseStorage`` has the optional attributes."""

    async def apply(self, account: str, writes: Sequence[wire.Write]) -> list[wire.Written]:
        """Apply all or none, in order. Raises ``PreconditionFailed`` if a write's expectation does not hold."""

    @overload
    async def read(self, account: str, query: wire.TraceById) -> wire.Trace | None: ...
    @overload
    async def read(self, account: str, query: wire.FeedbackByTrace) -> wire.PutFeedback | None: ...
    @overload
    async def read(self, account: str, query: wire.FeedbackByTraces) -> list[wire.PutFeedback]: ...
    @overload
    async def read(self, account: str, query: wire.SnapshotById) -> wire.Snapshot | None: ...
    @overload
    async def read(self, account: str, query: wire.SnapshotsById) -> list[wire.Snapshot]: ...
    @overload
    async def read(self, account: str, query: wire.PolicyVersions) -> list[wire.PolicyVersion]: ...
    @overload
    async def read(self, account: str, query: wire.PolicyRecords) -> list[wire.PolicyRecord]: ...
    @overload
    async def read(self, account: str, query: wire.LearnedSince) -> list[wire.LearnedModel]: ...
    @overload
    async def read(self, account: str, query: wire.CurrentRetention) -> wire.SetRetention: ...
    @overload
    async def read(self, account: str, query: wire.RollupKeys) -> list[str]: ...
    @overload
    async def read(self, account: str, query: wire.UsageCounts) -> wire.GroupedUsage: ...
    @overload
    async def read(self, account: str, query: wire.CacheCounts) -> list[wire.CacheCount]: ...
    @overload
    async def read(self, account: str, query: wire.FallbackCounts) -> list[wire.FallbackCount]: ...
    @overload
    async def read(self, account: str, query: wire.LatencyCounts) -> list[wire.LatencyCount]: ...
    @overload
    async def read(self, account: str, query: wire.Stands) -> wire.Standing: ...
    @overload
    async def read(self, account: str, query: wire.LedgerSums) -> list[wire.LedgerSum]: ...
    @overload
    async def read(self, account: str, query: wire.KeyByDigest) -> wire.Key | None: ...
    @overload
    async def read(self, account: str, query: wire.Keys) -> list[wire.Key]: ...
    @overload
    async def read(self, account: str, query: wire.AllAccounts) -> list[wire.Account]: ...
    @overload
    async def read(self, account: str, query: wire.Incidents) -> list[wire.Incident]: ...
    @overload
    async def read(self, account: str, query: wire.AgentState) -> bytes | None: ...
    @overload
    async def read(self, account: str, query: wire.Endpoints) -> list[wire.Endpoint]: ...
    async def read(self, account: str, query: Any) -> Any:
        """Answer a query; None if there is no such thing. An implementation may take ``Query`` and return ``Any``."""

    @overload
    async def scan(
        self, account: str, query: wire.TraceItems, *, after: str | None, limit: int
    ) -> list[wire.TraceItem]: ...
    @overload
    async def scan(
        self, account: str, query: wire.Decisions, *, after: str | None, limit: int
    ) -> list[wire.DecisionRecord]: ...
    @overload
    async def scan(self, account: str, query: wire.Traces, *, after: str | None, limit: int) -> list[wire.Trace]: ...
    @overload
    async def scan(
        self, account: str, query: wire.LedgerRows, *, after: str | None, limit: int
    ) -> list[wire.LedgerRow]: ...
    @overload
    async def scan(
        self, account: str, query: wire.Events, *, after: str | None, limit: int
    ) -> list[wire.StoredEvent]: ...
    @overload
    async def scan(
        self, account: str, query: wire.Deliveries, *, after: str | None, limit: int
    ) -> list[wire.Delivery]: ...
    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        """Up to ``limit`` items, newest first by ``key``, starting behind the key ``after``. None for a limit below
        1."""

    async def sweep(self, now: float) -> int:
        """Remove expired items of all accounts and return their number. ``now`` in Unix seconds.

        Removed traces stay in the roll-ups. Snapshots that no trace names are removed some time later."""

    async def aclose(self) -> None:
        """Free resources. Safe to call twice."""


class BaseStorage:
    """What a storage may leave out."""

    accounts: Accounts | None = None
    """Limits, budgets and idempotency keys (``LimitingStorage``)."""
    coordination: Coordination | None = None
    """Carries notices between processes, for all who use the storage."""
    takes_drafts: bool = False
    """True if ``PutTrace`` may have a ``TraceDraft``, whose trace is then never built."""

    @property
    def has_endpoints(self) -> bool:
        """False if no endpoint of webhooks is registered."""
        return True


class TraceDraft(Protocol):
    """A trace that is built when first read. Safe to read from any thread."""

    @property
    def id(self) -> str:
        """The trace's id."""

    @property
    def key(self) -> str:
        """The trace's key."""

    @property
    def rollup_keys(self) -> Sequence[str]:
        """As in ``PutTrace``."""

    @property
    def rows(self) -> Sequence[wire.LedgerRow]:
        """The ledger rows of its attempts, booked with it."""

    @property
    def environment(self) -> wire.Environment:
        """The trace's environment."""

    @property
    def snapshot_ids(self) -> tuple[str, str, str | None] | None:
        """The ids of the catalogue, health and policy in its decision input; None if it has none."""

    @property
    def text_bytes(self) -> int:
        """About how much memory its content takes."""

    @property
    def line(self) -> object:
        """The shortest form to rebuild it from, for the storages of this package; None if there is none."""

    @property
    def trace(self) -> wire.Trace:
        """The trace, built anew each time."""

    @property
    def wordless(self) -> wire.Trace:
        """The trace without its content, so that no redactor has to run."""

    @property
    def counted(self) -> wire.Counted:
        """The figures that the analytics count, at a fraction of the cost."""

    @property
    def is_void(self) -> bool:
        """True if it charges nothing."""

    def void(self, is_void: bool) -> None:
        """Charge nothing, since another call was answered and billed in its place; False reverts that."""


class Facts(Struct, eq=False):
    """The outcome of a call, for ``Accounts.settle``."""

    id: str
    """The id of the call and of its trace."""
    caller: wire.Caller
    created_at: str
    """RFC 3339: when the call arrived. Its day, week and month pay."""
    trace: TraceDraft | None = None
    rows: Sequence[wire.LedgerRow] = ()
    """The costs of its attempts. Without rows it is charged nothing."""
    tokens: int | None = None
    """Tokens used, to correct those taken from rate limits. None: unknown."""
    run: wire.RunLimit | None = None
    tags: wire.Tags = ()
    run_nanos: int | None = None
    """The amount counted for its run, if it may exceed the rows."""
    claim: wire.Claim | None = None
    result: bytes | None = None
    """The answer to keep under its idempotency key for 24 hours. None: it failed, and the key is free."""
    events: Sequence[wire.PutEvent] = ()
    event_id: Callable[[int], str] | None = None
    """Makes the id of the event for a threshold of the month, in percent, that it crosses. None: it emits none."""
    snapshots: Sequence[wire.Snapshot] = ()
    """The snapshots that its trace names."""
    durability: wire.Durability = "committed"


@runtime_checkable
class Accounts(Protocol):
    """Limits, budgets and idempotency keys (contract 7). A call takes the most it may need in one step before it runs,
    and returns the rest when it ends. ``storage.accounts`` is one.

    Safe to call from any event loop and thread. No window of 60 seconds, open at its start, admits more than the limit.
    ``spent + reserved`` stays within every budget. An idempotency key has one running call or one answer. What a dead
    process holds is released after a lease, and an ``expired`` row records that its cost is unknown. Raises
    ``StorageUnavailable`` if it cannot be reached. After that error, or a cancellation, the call holds nothing."""

    async def admit(self, ask: wire.Ask) -> wire.Grant | wire.Replay | wire.Short:
        """Take all that a call asks for, or nothing. Raises ``AuthenticationFailed`` for a revoked key,
        ``IdempotencyKeyReused``, ``RateLimited``, and ``RouterTimeoutError`` if its key was held for too long."""

    async def settle(self, grant: wire.Grant | None, facts: Facts) -> Sequence[wire.StoredEvent]:
        """End a call: book it, keep its answer and trace, and emit its events, all or nothing. The result is durable
        when this returns. Settling twice books once. A call without a grant is booked, too."""

    async def widen(self, grant: wire.Grant, nanos: int) -> bool:
        """Reserve more for a running call, if there is room now."""

    def release(self, grant: wire.Grant, tokens: int | None = 0) -> None:
        """End a call without a result. Never fails or waits. Its request stays counted; ``tokens`` as in ``Facts``."""

    def left(self, caller: wire.Caller, run: wire.RunLimit | None = None) -> wire.Left | None:
        """The money a caller may still spend, from memory. None: unknown to this process."""

    async def look(self, caller: wire.Caller, run: wire.RunLimit | None = None) -> wire.Left:
        """As ``left``, from the newest state."""

    def spent_shares(self, caller: wire.Caller) -> Mapping[wire.Period, int] | None:
        """Millionths spent of the present day's, week's and month's limit of a caller, from memory: of its key or its
        account, whichever is more. Without a limit there is no entry. None: unknown to this process."""


@runtime_checkable
class LimitingStorage(Storage, Protocol):
    """A storage that keeps accounts. With any other storage only callers without limits are served."""

    @property
    def accounts(self) -> Accounts:
        """Its limits, budgets and idempotency keys."""


@runtime_checkable
class LocalStorage(Storage, Protocol):
    """A storage in a file on this machine. Its secrets are in a file beside it."""

    @property
    def path(self) -> Path:
        """The path of the file."""


@runtime_checkable
class ImmediateStorage(Storage, Protocol):
    """A storage whose methods never wait, so that writes need no queue."""

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[wire.Snapshot]) -> None:
        """Keep a trace, as ``PutTrace`` does, and its snapshots under ``SYSTEM_ACCOUNT``."""


class ToolContext(Struct, kw_only=True):
    """The run and step of a tool call. A function with a parameter of this type receives it."""

    run_id: str
    """The run's trace id."""
    step: int
    caller: wire.Caller
    deadline: float
    """When the tool's time ends, on the clock's monotonic scale. It starts after the approval."""
    left_nanos: int | None = None
    """Nano-dollars that the tool may spend. None: unlimited."""
    metadata: Mapping[str, Any] = {}
    """The metadata of the run."""
    spent_usd: float = 0.0
    """Set by the tool as it spends: counted even if the tool then fails or times out."""
    trace_id: str | None = None
    """Set by the tool to a trace of its own, to show that below the step."""


class ToolFailed(Exception):
    """Raised by a tool to tell the model what went wrong. Of other exceptions the model sees only the type; the
    traceback is logged."""


@runtime_checkable
class Tool(Protocol):
    """A tool of an agent. Safe to run many times at once. ``BaseTool`` has the optional attributes."""

    @property
    def spec(self) -> wire.FunctionSpec:
        """Name, description and JSON schema of the arguments, for the model."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """The result: a text or a JSON value. The arguments fit the schema. Raises ``ToolFailed``; cancelled when the
        step's time is up."""


class BaseTool:
    """What a tool may leave out."""

    needs_approval: bool = False
    """True if ``Agent(approve=)`` must approve each call; without it, the call is left to the client."""
    validated: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """``validated(arguments)``, in place of the check against the schema: it returns the arguments for ``approve`` and
    ``run``, or raises ``ToolFailed``."""

    @property
    def in_thread(self) -> Literal["waiting", "running"] | None:
        """The state of its thread after a cancelled ``run`` of this task."""
        return None


@runtime_checkable
class SearchBackend(Protocol):
    """Searches the web for the built-in tool ``web_search``."""

    async def search(self, query: str, limit: int) -> Sequence[SearchResult]:
        """The best results, at most ``limit``. Raises ``ToolFailed``."""


class SearchResult(Struct, frozen=True):
    """One page found by a search."""

    title: str
    url: str
    snippet: str


class Executed(Struct, frozen=True, kw_only=True):
    """The outcome of a program."""

    output: str
    """Standard output and errors, cut at the sandbox's limit."""
    exit_code: int | None
    """None: it was stopped, for ``reason``."""
    reason: str | None = None
    """``timeout``, ``memory`` or ``output``."""


@runtime_checkable
class CodeSandbox(Protocol):
    """Runs Python that a model wrote, for the built-in tool ``code_exec``."""

    async def execute(self, code: str, timeout_s: float) -> Executed:
        """Run a program; stop it and its children when the time is up. Raises ``ToolFailed``."""

    async def aclose(self) -> None:
        """Free resources."""


Base = TypeVar("Base")


class _Filled:
    """The optional attributes of an object that does not inherit them."""

    __slots__ = ("_defaults", "_part")

    def __init__(self, part: object, defaults: object) -> None:
        self._part = part
        self._defaults = defaults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name, getattr(self._defaults, name))


def options_of(part: object, base: type[Base]) -> Base:
    """The optional attributes of what a program plugs in: its own, and those of ``base`` where it has none."""
    filled: Any = part if isinstance(part, base) else _Filled(part, base())
    return cast("Base", filled)
