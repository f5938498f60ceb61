"""``RedisCoordination``: news between machines, and shared rate limits.

One thread of each process sends all pending requests, as one script for each account, whose keys share a hash slot. The
script admits calls by the server's clock. If it refuses, it returns the blocking entries, from which
``_core/limits`` computes the wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from msgspec import msgpack
from msgspec.structs import astuple

from routewright._core.limits import Window, limit_error
from routewright._runtime.fork import Guard, renew_in_children
from routewright._runtime.loop import Reply, Threads, give
from routewright.backends.clock import SystemClock
from routewright.backends.coordination.memory import HEAR_S
from routewright.backends.redis import Server
from routewright.errors import InternalError, RouterError, StorageUnavailable, ValidationFailed
from routewright.protocols import Clock
from routewright.wire import WINDOW_S, Heard, Notice, Taken, Takes, WindowState
from routewright.wire.problems import shown

UNITS = 1 << 20
"""A second in the script's whole numbers: floats hold each of them exactly, and so do differences of them."""
WINDOW = int(WINDOW_S * UNITS)
IDLE_S = 2.0
"""Idle time after which the thread ends."""
RETRY_S = 0.5
"""Pause between retries while the server is unavailable."""
MOST_AT_ONCE = 256
MOST_UNSENT = 10_000
BLOCK_S = 1.0
"""How long a read of news blocks."""
LOOK_S = 0.1
"""The poll interval in virtual time."""
NEWS = "rw:news"
MOST_NEWS = 1_000
SEEN_S = 60
PROCESSES = f"""
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - {SEEN_S})
redis.call('EXPIRE', KEYS[1], {SEEN_S})
return redis.call('ZCARD', KEYS[1])
"""
"""Counts the processes that listened for news within ``SEEN_S``, this one included."""
SCRIPT = """
-- KEYS: of each party its window, then its slots. A window has an entry for each script that admitted something, by
-- number: time, requests, tokens. 'h' and 'n' are the first and last number, 'r' and 't' the sums, 'l' the last time.
local now, length, lease, steps = unpack(cmsgpack.unpack(ARGV[1]))
local call, clock, windows, answers = redis.call, redis.call('TIME'), {}, {}
if now < 0 then now = clock[1] * 1048576 + math.floor(clock[2] * 1.048576) end

local function opened(party)
  local w = windows[party]
  if w then return w end
  w = {key = KEYS[2 * party - 1], slots_key = KEYS[2 * party], new_requests = 0, new_tokens = 0}
  local state = call('HMGET', w.key, 'h', 'n', 'r', 't', 'l')
  for place, start in ipairs({1, 0, 0, 0, 0}) do state[place] = tonumber(state[place] or start) end
  w.first, w.last, w.requests, w.tokens, w.at = unpack(state)
  if w.at > now + length then w.first, w.requests, w.tokens, w.at = w.last + 1, 0, 0, 0 end  -- by a clock ahead of this
  w.now = math.max(now, w.at)
  while w.first <= w.last do
    local at, requests, tokens = cmsgpack.unpack(call('HGET', w.key, w.first))
    if at > w.now - length then break end
    call('HDEL', w.key, w.first)
    w.first, w.requests, w.tokens = w.first + 1, w.requests - requests, w.tokens - tokens
  end
  call('ZREMRANGEBYSCORE', w.slots_key, '-inf', now)
  call('ZREMRANGEBYSCORE', w.slots_key, now + lease + 1048576, '+inf')  -- by such a clock
  w.slots, windows[party] = call('ZCARD', w.slots_key), w
  return w
end

local function hold(w, id)
  w.slots = w.slots + call('ZADD', w.slots_key, now + lease, id)
  call('PEXPIRE', w.slots_key, math.floor(lease / 1048.576) + 1000)
end

local function fits(used, amount, limit)  -- as in _core/limits.py
  if amount < 1 or limit < 0 then return amount == 0 or limit < 0 end
  return used + amount <= limit or (used == 0 and limit > 0)
end

local function facts(w, tokens, most_requests, most_tokens)  -- with the entries that have to leave before one more fits
  local result, requests, left, number = {w.now, w.slots, w.requests, w.tokens, w.at, 0}, 0, 0, w.first
  if not fits(w.requests, 1, most_requests) then requests = w.requests + 1 - most_requests end
  if not fits(w.tokens, tokens, most_tokens) then left = w.tokens + math.min(tokens - most_tokens, 0) end
  while number <= w.last and (requests > 0 or left > 0) do
    local at, r, t = cmsgpack.unpack(call('HGET', w.key, number))
    result[#result + 1] = {at, r, t}
    number, requests, left = number + 1, requests - r, left - t
  end
  return result
end

local function take(id, tokens, slots, parties)
  local answer, admitted = {1}, true
  for _, party in ipairs(parties) do
    local w = opened(party[1])
    admitted = admitted and fits(w.requests, 1, party[2]) and fits(w.tokens, tokens, party[3])
      and fits(w.slots, slots, party[4])
  end
  for _, party in ipairs(parties) do
    local w = opened(party[1])
    if admitted then
      w.requests, w.tokens, w.at = w.requests + 1, w.tokens + tokens, w.now
      w.new_requests, w.new_tokens = w.new_requests + 1, w.new_tokens + tokens
      if slots == 1 then hold(w, id) end
      answer[#answer + 1] = {w.now, w.slots, w.requests, w.tokens, w.at, w.last + 1}
    else
      answer[1], answer[#answer + 1] = 0, facts(w, tokens, party[2], party[3])
    end
  end
  answers[#answers + 1] = answer
end

local function change(kind, id, by_tokens, by_requests, parties)
  for _, party in ipairs(parties) do
    local w = opened(party[1])
    if kind == 'beat' then hold(w, id) else w.slots = w.slots - call('ZREM', w.slots_key, id) end
    local at, requests, tokens = cmsgpack.unpack(call('HGET', w.key, party[2]) or cmsgpack.pack(0))
    if at == party[3] and party[2] >= w.first then  -- it still counts
      call('HSET', w.key, party[2], cmsgpack.pack(at, requests + by_requests, tokens + by_tokens))
      w.requests, w.tokens = w.requests + by_requests, w.tokens + by_tokens
    end
  end
end

for _, step in ipairs(steps) do
  if step[1] == 'take' then take(unpack(step, 2)) else change(unpack(step)) end
end
for _, w in pairs(windows) do
  if w.new_requests > 0 then
    w.last = w.last + 1
    call('HSET', w.key, w.last, cmsgpack.pack(w.at, w.new_requests, w.new_tokens))
  end
  call('HSET', w.key, 'h', w.first, 'n', w.last, 'r', w.requests, 't', w.tokens, 'l', w.at)
  call('PEXPIRE', w.key, math.floor(length / 1048.576) + 1000)
end
return cmsgpack.pack(answers)
"""
_log = logging.getLogger(__name__)


class _Step(NamedTuple):
    """A step of the script for one call."""

    kind: Literal["take", "end", "free", "beat"]
    """``free`` releases its slot, ``beat`` renews it."""
    takes: Takes
    reply: Reply[Taken] | None = None
    """The reply to ``take``."""
    of: Taken | Reply[Taken] | None = None
    """The call that ``end`` ends."""
    tokens: int = 0
    """Corrections of tokens and requests."""
    requests: int = 0
    until: float = inf
    """Time after which it need not be sent, since its slot has expired."""

    def encoded(self, names: dict[str, int]) -> Any:
        """Encode it for the script, with the places of its parties among the keys. None: nothing to do."""
        takes = self.takes
        parties = takes.parties
        taken = self.of.result if isinstance(self.of, Reply) else self.of
        if not parties or (self.reply is not None and self.reply.is_left) or (self.kind == "end" and not taken):
            return None
        rows: Any = [(0, -1)] * len(parties) if taken is None else taken.places
        if self.reply is not None:
            rows = [[-1 if limit is None else limit for limit in astuple(limits)] for _, limits in parties]
        places = [(names.setdefault(name, len(names) + 1), *row) for (name, _), row in zip(parties, rows, strict=True)]
        corrections = (self.tokens, self.requests) if self.reply is None else (takes.tokens, takes.slots)
        return self.kind, takes.id, *corrections, places


_WAKE = _Step("end", Takes("", "", (), 0, 0, 0.0))


class _Script(NamedTuple):
    """The steps of one account."""

    account: str
    names: dict[str, int]
    """The place of each party among the keys."""
    steps: list[_Step]
    arguments: list[Any]

    def list_keys(self) -> list[str]:
        """The windows and slots of all parties. The braces put an account into one hash slot."""
        tag = quote(self.account, safe="")
        parties = [quote(name, safe=":") for name in self.names]
        return [f"rw:{{{tag}}}:{kind}:{party}" for party in parties for kind in ("window", "slots")]


class RedisCoordination:
    """News between machines, and shared rate limits and slots, in Redis or Valkey.

        router = Router(storage=storage, coordination=RedisCoordination("redis://redis.internal", processes=8))

    While the server is unavailable, each process uses its part of every limit: by the number of processes that were
    seen in the last minute before, or ``processes``, if that is more. ``lease_s``: the slots of a dead process are free
    after this time. URLs are those of ``open_coordination``. ``clock``: with a ``FakeClock`` its time counts instead of
    the server's, and everything runs in the caller's thread.
    """

    def __init__(self, url: str, *, processes: int = 1, lease_s: float = 30.0, clock: Clock | None = None) -> None:
        if type(processes) is not int or processes < 1:
            raise ValidationFailed.at("processes", f"is {shown(processes)}", "use a whole number above 0")
        self._least = processes
        self._lease_s = lease_s
        self._clock = clock or SystemClock()
        self._inline = self._clock.virtual
        self._server = Server(url, inline=self._inline)
        self._news = Threads("news of Redis", 8)
        self._guard = Guard()
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"RedisCoordination({self._server!r}, processes={self.processes})"

    @property
    def processes(self) -> int:
        """Number of processes that share it: those seen when it was last reachable, at least the configured number."""
        return max(self._least, self._seen)

    def renew(self) -> None:
        """Start without holds: the parent's calls continue there."""
        self._name = token_hex(8)
        self._seen = 1
        self._waiting: SimpleQueue[_Step] = SimpleQueue()
        self._unsent: deque[_Step] = deque()
        """Steps that the server did not receive."""
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._slots: dict[str, tuple[Takes, float]] = {}
        """Slots of this process, and when their calls should end."""
        self._beats_at = self._retry_at = 0.0

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``)."""
        fields: dict[Any, Any] = {"topic": notice.topic, "said": notice.message}
        await self._server.run(lambda client: client.xadd(NEWS, fields, maxlen=MOST_NEWS))

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, of the last thousand (``protocols.Coordination``)."""
        if self._slots and self._thread is None:  # another Router closed it, but calls are running
            self._put(_WAKE)
        self._seen = await self._server.run(partial(_count_processes, self._name))
        if after is None:
            newest = await self._server.run(lambda client: client.xrevrange(NEWS, count=1))
            return Heard((), _parse_number(newest[0][0]) if newest else 0)
        block = None if self._inline else int(BLOCK_S * 1000)
        until = self._clock.monotonic() + HEAR_S
        ask = partial(self._server.call, partial(_read_since, after, block), BLOCK_S)
        while not (heard := ask() if self._inline else await self._news.run(ask)).notices:
            if self._clock.monotonic() >= until:
                break
            await self._clock.sleep(LOOK_S if self._inline else 0.0)
        return heard

    async def take(self, takes: Takes) -> Taken:
        """Count a call (``protocols.CountingCoordination``)."""
        reply = Reply[Taken](awaited=not self._inline)
        try:
            self._put(_Step("take", takes, reply))
            return await reply.wait()
        except BaseException as error:
            reply.is_left = True
            if not isinstance(error, RouterError):  # cancelled: return what it has taken or will take
                self._put(_undo(takes, reply))
            raise

    def end(self, taken: Taken, tokens: int | None, *, void: bool = False) -> None:
        """End a call (``protocols.CountingCoordination``)."""
        by = 0 if tokens is None else tokens - taken.takes.tokens
        with suppress(RuntimeError):  # no thread can be started now: the next call tries again
            self._put(_Step("end", taken.takes, None, taken, by, -void))

    async def aclose(self) -> None:
        """Try once to send pending steps, then end the thread and close the connections. The next use restarts both."""
        with self._guard.lock:
            if (thread := self._thread) is not None:
                self._is_closing = True
                self._waiting.put(_WAKE)
        if thread is not None:
            await self._news.run(thread.join)
        self._server.close()

    def _put(self, step: _Step) -> None:
        with self._guard.lock:
            if self._inline:
                self._do([step])
                return
            self._waiting.put(step)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="routewright-redis", daemon=True)
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        while (steps := self._next()) is not None:
            try:
                self._do(steps)
            except Exception as error:  # a defect fails these calls, but not the thread
                _log.exception("RedisCoordination failed")
                replies = [step.reply for step in steps if step.reply is not None and not step.reply.is_delivered]
                for reply in replies:
                    reply.error = InternalError(f"RedisCoordination failed with {type(error).__name__}")
                give(replies)
            del steps

    def _next(self) -> list[_Step] | None:
        """The next steps; empty if slots must be renewed or steps sent again. None ends the thread."""
        steps: list[_Step] = []
        now = time.monotonic()
        until = min(now + IDLE_S, self._beats_at if self._slots else inf, self._retry_at if self._unsent else inf)
        with suppress(Empty):
            steps.append(self._waiting.get(timeout=0.0 if self._is_closing else max(0.0, until - now)))
            while len(steps) < MOST_AT_ONCE:
                steps.append(self._waiting.get_nowait())
        with self._guard.lock:
            is_busy = steps or self._unsent or not self._waiting.empty()
            if not is_busy and (self._is_closing or not self._slots):
                self._thread, self._is_closing = None, False
                return None
        return steps

    def _do(self, steps: list[_Step]) -> None:
        """Run steps in one round trip, with one script for each account, and answer them."""
        # A round trip for each call would make Redis the slowest part of a route, and one script for all of them would
        # touch keys of several hash slots, which a cluster refuses. So one thread sends what has gathered, as one
        # script for each account. The script reads and takes in one step: two commands would let two machines take the
        # same last place (P3: no window of 60 s admits more than its limit). A script may run without its answer
        # arriving. Its calls are not sent again, because they would count twice: they fail, the engine admits them by
        # this process's share of the limits, and their slots are released by later steps (P4: a slot is held only while
        # a call is in flight). Those wait for RETRY_S between attempts, so an outage costs no processor time. See
        # test_processes_together_never_exceed_a_limit_in_any_window, test_concurrent_calls_share_a_round_trip,
        # test_an_unacknowledged_end_counts_once and test_ends_are_retried_until_their_lease_expires.
        now = self._clock.monotonic()
        scripts: dict[str, _Script] = {}
        replies = {step.reply: step.takes for step in steps if step.reply is not None}
        for step in steps:
            if step.kind == "end":
                self._slots.pop(step.takes.id, None)
        if now >= self._beats_at:
            self._beats_at = now + self._lease_s / 3
            self._slots = {name: slot for name, slot in self._slots.items() if now < slot[1]}
            steps = [*(_Step("beat", takes) for takes, _ in self._slots.values()), *steps]
        unsent = [self._unsent.popleft() for _ in range(min(MOST_AT_ONCE, len(self._unsent)))]
        steps = [*(step for step in unsent if now < step.until), *steps]
        for step in steps:
            script = scripts.setdefault(step.takes.account, _Script(step.takes.account, {}, [], []))
            if (arguments := step.encoded(script.names)) is not None:
                script.steps.append(step)
                script.arguments.append(arguments)
        header = (round(self._clock.time() * UNITS) if self._inline else -1, WINDOW, int(self._lease_s * UNITS))
        sent = [script for script in scripts.values() if script.steps]
        calls = [(script.list_keys(), msgpack.encode((*header, script.arguments))) for script in sent]
        try:
            answers = self._server.evaluate(SCRIPT, calls) if calls else []
        except StorageUnavailable as error:
            answers = [error] * len(calls)
        for script, answer in zip(sent, answers, strict=True):
            self._answer(script.steps, answer)
        for lost in give(replies):  # nobody is there to give it back
            self._waiting.put(_undo(replies[lost], lost))
        is_away = any(isinstance(answer, StorageUnavailable) for answer in answers)
        self._retry_at = self._clock.monotonic() + RETRY_S if is_away else 0.0
        if is_away and self._is_closing:
            self._unsent.clear()

    def _answer(self, steps: list[_Step], answer: Any) -> None:
        """Process the result of a script: for each call whether it was admitted, and the facts of each party, which are
        time, slots, requests, tokens, time of the last entry, number of this call's entry, and the first entries.

        A failed script may have run, or run later, so slots are released, possibly twice; tokens stay counted.
        """
        calls = [(step.takes, step.reply) for step in steps if step.reply is not None]
        if isinstance(answer, StorageUnavailable):
            for _, reply in calls:
                reply.error = answer
            until = self._clock.monotonic() + self._lease_s
            for step in steps if not self._inline and len(self._unsent) < MOST_UNSENT else ():
                if step.kind != "beat":
                    self._unsent.append(_Step("free", step.takes, until=min(until, step.until)))
            return
        for (takes, reply), (admitted, *facts) in zip(calls, msgpack.decode(answer), strict=True):
            now = max(fact[0] for fact in facts) / UNITS
            windows: list[Any] = []
            states: list[WindowState] = []
            for (name, limits), (_, slots, requests, tokens, last, _, *rows) in zip(takes.parties, facts, strict=True):
                window = Window()
                window.fill(requests, tokens, slots, last / UNITS, [(at / UNITS, *rest) for at, *rest in rows])
                windows.append((name, window, limits))
                states += window.states(limits, now) if admitted else ()
            if not admitted:
                reply.error = limit_error(windows, takes.tokens, now, self._clock.time(), slots=bool(takes.slots))
                continue
            reply.result = Taken(takes, tuple(states), tuple([(fact[5], fact[0]) for fact in facts]))
            if takes.slots:
                self._slots[takes.id] = takes, self._clock.monotonic() + takes.lasts_s


def _undo(takes: Takes, taken: Reply[Taken]) -> _Step:
    return _Step("end", takes, None, taken, -takes.tokens, -1)


def _count_processes(name: str, client: Any) -> int:
    return int(client.eval(PROCESSES, 1, f"{NEWS}:processes", name))


def _read_since(after: int, block_ms: int | None, client: Any) -> Heard:
    streams = client.xread({NEWS: f"{after // UNITS}-{after % UNITS}"}, block=block_ms)
    entries = streams[0][1] if streams else ()
    notices = [Notice(fields[b"topic"].decode(), fields[b"said"].decode()) for _, fields in entries]
    return Heard(tuple(notices), _parse_number(entries[-1][0]) if entries else after)


def _parse_number(entry: bytes) -> int:
    """The id of a stream's entry, milliseconds and a counter, as one number."""
    ms, counter = entry.split(b"-")
    return int(ms) * UNITS + int(counter)
