"""What the owner of the process may plug in. Any object that fits will do; nobody has to inherit.

Each protocol says in its docstring what an implementer must keep. The contract suites in ``routewright.testing``
check the same sentences against your own objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, overload, runtime_checkable

from msgspec import Struct

from .wire import (
    Account,
    AgentState,
    AllAccounts,
    Ask,
    CacheCount,
    CacheCounts,
    CacheEntry,
    CacheMatch,
    CacheSelection,
    CacheStats,
    Caller,
    Chunk,
    Claim,
    Counted,
    CurrentRetention,
    Deliveries,
    Delivery,
    Durability,
    Endpoint,
    Endpoints,
    Environment,
    Events,
    FallbackCount,
    FallbackCounts,
    Feature,
    FeedbackByTrace,
    FunctionSpec,
    Grant,
    GroupedUsage,
    Heard,
    Incident,
    Incidents,
    Key,
    KeyByDigest,
    Keys,
    LatencyCount,
    LatencyCounts,
    LearnedModel,
    LearnedSince,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    LedgerSumsOfAll,
    Left,
    Model,
    Notice,
    PolicyVersion,
    PolicyVersions,
    PutEvent,
    PutFeedback,
    Replay,
    RollupKeys,
    RouteRequest,
    RunLimit,
    SetRetention,
    Short,
    Snapshot,
    SnapshotById,
    Stage,
    Standing,
    Stands,
    StoredEvent,
    Taken,
    Takes,
    Trace,
    TraceById,
    TraceItem,
    TraceItems,
    Traces,
    UpstreamCall,
    UsageCounts,
    Verdict,
    WebhookAnswer,
    Write,
    Written,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Vector: TypeAlias = "Sequence[float] | NDArray[Any]"
"""An embedding."""


class Deadline(Protocol):
    """A time limit for what is awaited inside. It belongs to the task that enters it.

    When the time comes, the task is cancelled where it waits, again and again until it leaves. Leaving swallows this
    cancellation and sets ``expired``. Where nested ones have both run out, the outer one expires. A body that ends in
    another way, with a result or an error of its own, ends so, and ``expired`` stays False. So it does where somebody
    else cancels the task too: a cancellation from elsewhere passes through."""

    @property
    def expired(self) -> bool:
        """True once it was left because its time ran out."""

    def move(self, at: float) -> None:
        """Put the time off, or forward, while inside. One that has run out stays so."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Clock(Protocol):
    """Where time comes from. Every wait and every time-out goes through it, so that a fake one can drive them all."""

    @property
    def virtual(self) -> bool:
        """True where time stands still unless an event loop moves it: background work then runs in the caller's loop,
        since no thread can wait for such a clock."""

    def time(self) -> float:
        """Unix seconds, for what is shown and stored."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less still lets other tasks run."""

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> Deadline:
        """Make one that runs out at ``at`` on the ``monotonic`` scale; infinity never does.

        With ``shield`` the scopes and deadlines around it cannot cancel it: for clean-up that must finish, but not
        take forever. A deadline may cancel natively, which anyio's shields inside it do not keep out; with ``scoped``
        it is a cancel scope, which they do."""


class Rng(Protocol):
    """The seeded source of chance."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def getrandbits(self, k: int, /) -> int:
        """An integer of ``k`` random bits."""


@runtime_checkable
class Provider(Protocol):
    """Something that can answer a call: a vendor's API, a function, a test double.

    One object serves many calls at once, from any event loop and thread. ``open`` raises ``ProviderFault`` on entry or
    while iterating, and nothing else for a fault of the provider's; it ends with exactly one ``Finish``, with ``Usage``
    before it where known. Under a budget, a call that is cut off after its context was entered, or whose fault says
    ``answered``, is taken to have cost the most it can; a fault on entry costs nothing. The context it returns may be
    entered and left in different tasks, so it must not keep a cancel scope or task group open over a ``yield``. Leaving
    it early frees the connection.

    On asyncio an attempt that runs out of time is cancelled natively, which anyio's shields do not keep out. A provider
    whose code cleans up in such shields sets ``needs_scope = True``: its attempts run in a cancel scope, which costs
    some microseconds each. One with a number as ``max_retries`` has its models tried again so often where the request
    and its policy do not say how often. One with several keys may count as ``refused_keys`` those that its vendor
    refused when they were last asked: its models are then shown as degraded."""

    @property
    def name(self) -> str:
        """The provider part of its models' ids."""

    def models(self) -> Sequence[Model]:
        """Say what it can serve. Empty: every catalogue model whose provider is ``name``. Ids that the catalogue
        knows need nothing else; others come with price, window, modalities, and ``quality`` or ``like``."""

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Start one call. A provider that cannot stream yields one ``Delta``."""

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""


@runtime_checkable
class ParticularProvider(Provider, Protocol):
    """A provider that does not take all that a request may ask for. Such requests are not sent to it."""

    def unsupported(self, model: Model) -> Collection[Feature]:
        """What one of its models does not take. Asked once a model."""


@runtime_checkable
class RegionalProvider(Provider, Protocol):
    """A provider whose calls are all served from one region, if it says which."""

    @property
    def region(self) -> str | None:
        """The region, as policies name it. None: nobody knows."""


@runtime_checkable
class DiscoveringProvider(Provider, Protocol):
    """A provider whose server knows which models there are. It is asked before the first decision, and now and again
    as long as the Router lives, in the Router's own thread."""

    @property
    def discovers(self) -> bool:
        """False: there is nothing to ask."""

    async def discover(self) -> None:
        """Ask the server. From then on ``models()`` gives what it said. Raises ``ProviderFault``, and then ``models()``
        gives what it did before."""


class Response(Protocol):
    """An HTTP answer whose body is read as it comes. Raises ``ProviderFault`` where the connection fails."""

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
    """Sends HTTP requests. One pool an event loop; no redirects, no retries."""

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send one request. Leaving the context before the body's end closes the connection."""

    async def aclose(self) -> None:
        """Close every pool. Twice is once."""


@runtime_checkable
class Guardrail(Protocol):
    """Looks at what goes to a model or comes from one, and says what may pass.

    One object serves many calls at once, from any event loop and thread. Verdicts and names of rules never hold what
    was found. What ``check`` raises, or gives that is no verdict, fails the call with ``InternalError``: what cannot be
    checked does not pass."""

    @property
    def name(self) -> str:
        """What its spans are called."""

    @property
    def stages(self) -> Collection[Stage]:
        """Where it is asked: ``input``, ``output`` or both."""

    @property
    def holds(self) -> int | None:
        """The most characters that a finding in an answer can have, and so what a stream holds back for it. None: only
        a whole answer can be judged, so a stream gives nothing before its end."""

    def check(self, text: str, stage: Stage) -> Verdict | Awaitable[Verdict]:
        """Say what may pass of one text: ``Allow()``, ``Redact`` with its parts, or ``Block``. Where it has to wait, it
        may be ``async``. Of a streamed answer it is shown windows, one after the other, which begin with a word."""


@runtime_checkable
class Cache(Protocol):
    """Stores and finds answers (contract 6); the engine decides whether to serve them.

    Safe to use from any event loop and thread. An entry whose time is over, or that was removed, is never given. What
    it raises is a miss: no call fails because of its cache. One whose ``get`` and ``put`` never wait says
    ``waits = False``, and is then asked without a time limit. One whose searches are slow while it starts says so by
    ``is_starting``, and is not left alone for it. One that shares what was learned between processes has
    ``async learned(space: str, new: Sequence[Observation], after: int) -> tuple[Sequence[Observation], int]``: it adds
    the new ones and returns those of other users of the cache since ``after``, and where they end. One that has no
    search says ``exact = True``. One that several processes share may have ``async lead(key: bytes, seconds: float) ->
    bool``: True for the first who asks, until ``seconds`` have passed or it has asked for none. It makes the call, and
    the others wait for its answer."""

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request, without its embedding. ``now`` in Unix seconds."""

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """Entries of a partition with the most similar embeddings, the most similar first, without these. Never one of
        another partition, or that had no embedding."""

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer, in place of one with the same key. Where there is no room, others go."""

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and say how many. They are never given again once this returns."""

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count what is kept of an account; None: of all."""

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""


@runtime_checkable
class Embedder(Protocol):
    """Makes a vector of a text, near to those of texts that mean the same. Safe to use from any thread.

    What it raises makes the call a miss, and after some failures in a row it is left alone for a while."""

    @property
    def name(self) -> str:
        """Tells its vectors from those of others, its version included."""

    def embed(self, text: str) -> Vector | Awaitable[Vector]:
        """The embedding, of any length but always the same. Where it has to wait, it may be ``async``; if not, it is
        called in a worker thread for long texts."""


class AnswerComparator(Protocol):
    """Says whether a cached answer would have done in place of a live one."""

    def compare(self, question: str, cached: str, live: str) -> bool | Awaitable[bool | None] | None:
        """True: it would. None: this comparator cannot tell, so the next is asked."""


class Redactor(Protocol):
    """Makes of a text of a prompt or an answer what may be kept of it. Called in any thread, once for each text.

    What it raises, or gives that is no text, keeps the text out of the trace, and harms no call."""

    def __call__(self, text: str, /) -> str:
        """Give what may be kept."""


class TokenCounter(Protocol):
    """Counts tokens of the vocabularies ``o200k_base`` and ``cl100k_base``, in any thread. One that takes long to begin
    may have ``load(encoding)``, which is called in a thread before a server is ready."""

    def count(self, text: str, encoding: str) -> int:
        """Exact number of tokens of ``text``, special tokens taken as plain text. One that no text of these bytes can
        have is taken for the nearest that it can."""


class WebhookTransport(Protocol):
    """Sends webhooks. Used in one event loop. The default connects to public addresses only, and to no proxy."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        """POST once and return the status, whatever it is; redirects are not followed. Raises ``OSError`` where there
        is no answer, with a message that the endpoint's owner may read. The caller cancels it after 10 s."""

    async def aclose(self) -> None:
        """Close the connections."""


class QualityPredictor(Protocol):
    """Says how well each model would answer one request. The default is the catalogue's column."""

    def predict(self, request: RouteRequest, models: Sequence[Model]) -> Sequence[float] | None:
        """One quality in 0..1 per model, in order; None: use the catalogue's. Called on the hot path: no I/O.

        What it raises fails the call with ``InternalError``: to fall back on the catalogue, return None."""


@runtime_checkable
class Coordination(Protocol):
    """News for other processes: which models are left alone. Nothing depends on its arrival.

    Safe to call from any event loop and thread. Raises ``StorageUnavailable`` where it cannot be reached."""

    async def announce(self, notice: Notice) -> None:
        """Publish news to all who listen."""

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, the ``last`` of the news before. Waits for some, and gives up with none after some
        seconds. None: at once none, and where the news are now."""

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""


@runtime_checkable
class CountingCoordination(Coordination, Protocol):
    """A coordination that counts rate limits and slots for all processes that share it, by one clock, and keeps what
    ``Accounts`` promises of them. A process that dies holds its slots for a lease at most."""

    @property
    def processes(self) -> int:
        """How many share it. While it is away, each has its part of every limit."""

    async def take(self, takes: Takes) -> Taken:
        """Take all of it, or nothing, as when it is cancelled. Raises ``RateLimited`` and ``StorageUnavailable``."""

    def end(self, taken: Taken, tokens: int | None, *, void: bool = False) -> None:
        """Give a slot back, and correct the tokens to those that were used; None: nobody knows. ``void``: give back all
        that was taken. Never fails nor waits."""


@runtime_checkable
class Storage(Protocol):
    """One atomic door to everything that is kept (contract 1). Kinds of write and query are in ``wire/storage.py``.

    Safe to call from any event loop and thread. What ``apply`` returned from is there for every later ``read``.
    A trace stays as it was written, whatever becomes of the object that was given or read; the roll-ups change with it
    or not at all. Nothing of one account is ever seen through another's name. Every method raises ``UnsupportedWrite``
    for a kind that it does not know, and ``StorageUnavailable`` for what may succeed later. One that carries news
    between processes has a ``coordination``, which all who use it take unless they are given another."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none, in order. Raises ``PreconditionFailed`` where one does not find what it expects."""

    @overload
    async def read(self, account: str, query: TraceById) -> Trace | None: ...
    @overload
    async def read(self, account: str, query: FeedbackByTrace) -> PutFeedback | None: ...
    @overload
    async def read(self, account: str, query: SnapshotById) -> Snapshot | None: ...
    @overload
    async def read(self, account: str, query: PolicyVersions) -> list[PolicyVersion]: ...
    @overload
    async def read(self, account: str, query: LearnedSince) -> list[LearnedModel]: ...
    @overload
    async def read(self, account: str, query: CurrentRetention) -> SetRetention: ...
    @overload
    async def read(self, account: str, query: RollupKeys) -> list[str]: ...
    @overload
    async def read(self, account: str, query: UsageCounts) -> GroupedUsage: ...
    @overload
    async def read(self, account: str, query: CacheCounts) -> list[CacheCount]: ...
    @overload
    async def read(self, account: str, query: FallbackCounts) -> list[FallbackCount]: ...
    @overload
    async def read(self, account: str, query: LatencyCounts) -> list[LatencyCount]: ...
    @overload
    async def read(self, account: str, query: Stands) -> Standing: ...
    @overload
    async def read(self, account: str, query: LedgerSums) -> list[LedgerSum]: ...
    @overload
    async def read(self, account: str, query: LedgerSumsOfAll) -> list[LedgerSum]: ...
    @overload
    async def read(self, account: str, query: KeyByDigest) -> Key | None: ...
    @overload
    async def read(self, account: str, query: Keys) -> list[Key]: ...
    @overload
    async def read(self, account: str, query: AllAccounts) -> list[Account]: ...
    @overload
    async def read(self, account: str, query: Incidents) -> list[Incident]: ...
    @overload
    async def read(self, account: str, query: AgentState) -> bytes | None: ...
    @overload
    async def read(self, account: str, query: Endpoints) -> list[Endpoint]: ...
    async def read(self, account: str, query: Any) -> Any:
        """Answer a query; None where what it asks for is not there. Yours may take ``Query`` and give ``Any``."""

    @overload
    async def scan(self, account: str, query: TraceItems, *, after: str | None, limit: int) -> list[TraceItem]: ...
    @overload
    async def scan(self, account: str, query: Traces, *, after: str | None, limit: int) -> list[Trace]: ...
    @overload
    async def scan(self, account: str, query: LedgerRows, *, after: str | None, limit: int) -> list[LedgerRow]: ...
    @overload
    async def scan(self, account: str, query: Events, *, after: str | None, limit: int) -> list[StoredEvent]: ...
    @overload
    async def scan(self, account: str, query: Deliveries, *, after: str | None, limit: int) -> list[Delivery]: ...
    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        """Up to ``limit`` things, newest first by their ``key``, from just behind the key ``after``. Of a limit below
        1 none."""

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``now`` in Unix seconds), over all accounts. Says how many things.

        Removed traces stay in the roll-ups. Snapshots go that no trace names any more, some time after."""

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""


class TraceDraft(Protocol):
    """A trace that is made when somebody reads it. Safe to read from any thread."""

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
    def rows(self) -> Sequence[LedgerRow]:
        """What its attempts cost, to be booked with it."""

    @property
    def environment(self) -> Environment:
        """The trace's environment."""

    @property
    def snapshot_ids(self) -> tuple[str, str, str | None] | None:
        """The catalogue, health and policy that its decision input names; None if it has none."""

    @property
    def text_bytes(self) -> int:
        """About how much memory its content takes."""

    @property
    def line(self) -> object:
        """The shortest form that it can be made from again, for the storages of this package; None: there is none."""

    @property
    def trace(self) -> Trace:
        """Make the trace, a new one each time."""

    @property
    def wordless(self) -> Trace:
        """Make it without its content, which a redactor may take its time for."""

    @property
    def counted(self) -> Counted:
        """What the analytics count of it, at a fraction of the cost."""

    @property
    def is_void(self) -> bool:
        """It charges nothing."""

    def void(self, is_void: bool) -> None:
        """Charge nothing, since another call was answered and billed in its place; or, tried again, what it cost."""


class Facts(Struct, eq=False):
    """What a call came to, for ``Accounts.settle``."""

    id: str
    """The call's, which is its trace's."""
    caller: Caller
    created_at: str
    """RFC 3339: when it came. Its month pays."""
    trace: TraceDraft | None = None
    rows: Sequence[LedgerRow] = ()
    """What its attempts cost. Without rows it is charged nothing."""
    tokens: int | None = None
    """Used, in place of those that were taken of its rate limits. None: nobody knows."""
    run: RunLimit | None = None
    run_nanos: int | None = None
    """What its run is to count, where that may be more than the rows say."""
    claim: Claim | None = None
    result: bytes | None = None
    """The answer to keep under its idempotency key for 24 hours. None: it failed, and the key is free."""
    events: Sequence[PutEvent] = ()
    event_ids: Sequence[str] = ()
    """Three, for thresholds of the month that it crosses."""
    snapshots: Sequence[Snapshot] = ()
    """Those that its trace names."""
    durability: Durability = "committed"


@runtime_checkable
class Accounts(Protocol):
    """Limits, budgets and idempotency keys (contract 7): each call takes what it may need in one step before it runs,
    and gives back what it did not use when it ends. ``storage.accounts`` is one.

    Safe to call from any event loop and thread. In no window of 60 seconds, open at its beginning, more than a limit is
    admitted; ``spent + reserved`` stays within every budget; an idempotency key has one call that runs, or one answer.
    What a process holds that dies is taken back after a lease, and an ``expired`` row says of its money that nobody
    knows. Raises ``StorageUnavailable`` where it cannot be asked; then nothing is held, nor by a call that is
    cancelled."""

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """Take all that a call asks for, or nothing. Raises ``AuthenticationFailed`` for a revoked key,
        ``IdempotencyKeyReused``, ``RateLimited``, and ``RouterTimeoutError`` where its key was held for too long."""

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """End a call: book it, keep its answer and its trace, emit its events, all or nothing. It outlives a power cut
        when this returns. Settling a call twice books it once; a call without a grant is booked all the same."""

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """Reserve more for a call that runs, if there is room now."""

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """End a call that came to nothing. Never fails nor waits. Its request stays counted; ``tokens`` as in
        ``Facts``."""

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """What a caller may still spend, from memory. None: this process does not know yet, or not any more."""

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """The same from the newest state."""


@runtime_checkable
class LimitingStorage(Storage, Protocol):
    """A storage that keeps accounts. Without, callers that have no limits are served, and no others."""

    @property
    def accounts(self) -> Accounts:
        """Its limits, budgets and idempotency keys."""


@runtime_checkable
class LocalStorage(Storage, Protocol):
    """A storage in a file of this machine. What is secret about it stands in a file beside it."""

    @property
    def path(self) -> Path:
        """Where it is."""


@runtime_checkable
class ImmediateStorage(Storage, Protocol):
    """A storage none of whose methods ever waits, so that nothing has to queue in front of it."""

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None:
        """Keep a trace, as ``PutTrace`` does, and under ``SYSTEM_ACCOUNT`` the snapshots that its decision names."""


class ToolContext(Struct, kw_only=True):
    """The run and step of a tool call. A function with a parameter of this type receives it."""

    run_id: str
    """The run's trace id."""
    step: int
    caller: Caller
    deadline: float
    """When the tool's time is over, on the clock's monotonic scale. It begins once the call is approved."""
    left_nanos: int | None = None
    """Nano-dollars that the tool may spend. None: nothing limits it."""
    metadata: Mapping[str, Any] = {}
    """The run's."""
    spent_usd: float = 0.0
    """What the tool has spent. Set it as you spend: it counts even if the tool then fails or times out."""
    trace_id: str | None = None
    """Set it to the trace of what the tool did, to show that below its step."""
    limit: RunLimit | None = None
    """The run's budget, for model calls that are part of the run."""


class ToolFailed(Exception):
    """Raise it in a tool to tell the model what went wrong. Of any other exception the model sees only the type; its
    traceback is logged."""


@runtime_checkable
class Tool(Protocol):
    """What an agent can do. Safe to run many times at once.

    Optional attributes: ``needs_approval``, True if each call needs a yes of ``Agent(approve=)``, and is left to the
    client without one; ``validated(arguments)``, which replaces the check against the schema: it returns the arguments
    for ``approve`` and ``run``, or raises ``ToolFailed``."""

    @property
    def spec(self) -> FunctionSpec:
        """Name, description and JSON schema of the arguments, for the model."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """The result: a text, or what JSON can hold. The arguments fit the schema. Raises
        ``ToolFailed``; it is cancelled when the step's time is over."""


@runtime_checkable
class SearchBackend(Protocol):
    """Searches the web for the built-in tool ``web_search``."""

    async def search(self, query: str, limit: int) -> Sequence[SearchResult]:
        """The best results, at most ``limit``. Raises ``ToolFailed``."""


class SearchResult(Struct, frozen=True):
    """One page that was found."""

    title: str
    url: str
    snippet: str


class Executed(Struct, frozen=True, kw_only=True):
    """The outcome of a program."""

    output: str
    """What it printed, errors included, cut off at the sandbox's limit."""
    exit_code: int | None
    """None: it was ended, for ``reason``."""
    reason: str | None = None
    """``timeout``, ``memory`` or ``output``."""


@runtime_checkable
class CodeSandbox(Protocol):
    """Runs Python that a model wrote, for the built-in tool ``code_exec``."""

    async def execute(self, code: str, timeout_s: float) -> Executed:
        """Run a program and end it, and all it started, in time. Raises ``ToolFailed``."""

    async def aclose(self) -> None:
        """Free what it holds."""
