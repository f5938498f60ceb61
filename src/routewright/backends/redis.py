"""Runs commands in Redis or Valkey: one server, a cluster, or the master of sentinels.

The driver is synchronous and runs in threads, so it works the same on asyncio, trio and several loops.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from routewright._runtime.fork import Guard
from routewright._runtime.loop import Threads
from routewright.errors import StorageUnavailable, ValidationFailed, require_extra

with require_extra("redis", __name__):
    from redis import Redis, RedisError, cluster, sentinel
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisClusterException
    from redis.retry import Retry

T = TypeVar("T")
_digest = lru_cache(lambda script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest())
TIMEOUT_S = 0.25
"""Timeout of each connect and each reply."""
HINT = (
    "write redis://host:6379/0, redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/service, "
    "with rediss for TLS; the password may stand in REDIS_PASSWORD, or in a file: ?password_file=/path"
)


class Server:
    """Raises only ``StorageUnavailable``, without passwords. ``inline``: runs in the caller's thread."""

    def __init__(self, url: str, *, inline: bool) -> None:
        try:
            self._url = parts = urlsplit(url)
            hosts = [urlsplit(f"//{address}") for address in parts.netloc.rpartition("@")[2].split(",")]
            scheme = parts.scheme.partition("+")[0]
            self._kind = parts.scheme[len(scheme) + 1 :]
            self._path = parts.path.strip("/")
            self._options = parse_qs(parts.query, strict_parsing=bool(parts.query))
            is_single = len(hosts) == 1 and (self._path or "0").isdecimal()
            is_valid = {"": is_single, "cluster": not self._path, "sentinel": bool(self._path)}[self._kind]
            port = 26379 if self._kind == "sentinel" else 6379
            self._hosts = [(address.hostname or "", address.port or port) for address in hosts]
        except (ValueError, AttributeError, KeyError):  # their messages may contain the password
            is_valid = False
        is_known = is_valid and scheme in ("redis", "rediss") and self._options.keys() <= {"password_file"}
        is_known = is_known and "@" not in parts.path + parts.fragment  # a password with / or # in it
        if not is_known or not all(host for host, _ in self._hosts):
            raise ValidationFailed.at("url", "is not an address of Redis", HINT)
        self._address = f"{parts.scheme}://{','.join(f'{host}:{port}' for host, port in self._hosts)}"
        self._inline = inline
        self._clients: dict[float, Any] = {}
        self._guard = Guard()
        self._threads = Threads("calls to Redis", 8)

    def __repr__(self) -> str:
        return repr(self._address)

    async def run(self, ask: Callable[[Any], T]) -> T:
        """Call a function with the client, in a thread."""
        return self.call(ask) if self._inline else await self._threads.run(self.call, ask)

    def call(self, ask: Callable[[Any], T], blocks_s: float = 0.0) -> T:
        """Call a function with the client, in this thread. ``blocks_s``: additional timeout."""
        try:
            with self._guard.lock:
                client = self._clients.get(blocks_s) or self._clients.setdefault(blocks_s, self._connect(blocks_s))
            return ask(client)
        except (RedisError, RedisClusterException, OSError) as error:
            raise self._fault_of(error) from None

    def evaluate(self, script: str, calls: Sequence[tuple[Sequence[str], bytes]]) -> list[Any]:
        """Run a script for each keys and argument in one round trip. Returns results or ``StorageUnavailable``."""
        # cluster pipelines do not support EVALSHA
        command = ("EVAL", script) if self._kind == "cluster" else ("EVALSHA", _digest(script))

        def send(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for keys, argument in calls:
                    pipe.execute_command(*command, len(keys), *keys, argument)
                results = pipe.execute(raise_on_error=False)
            for index, (keys, argument) in enumerate(calls):
                if isinstance(results[index], NoScriptError):  # restarted
                    results[index] = client.eval(script, len(keys), *keys, argument)
            return [self._fault_of(result) if isinstance(result, Exception) else result for result in results]

        return self.call(send)

    def close(self) -> None:
        """Close the connections. The next use opens new ones."""
        with self._guard.lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _connect(self, blocks_s: float) -> Any:
        common: dict[str, Any] = {"socket_timeout": TIMEOUT_S + blocks_s, "socket_connect_timeout": TIMEOUT_S}
        common["retry"] = Retry(NoBackoff(), 0)  # unanswered commands may have run
        if self._url.scheme.startswith("rediss"):
            common["ssl"] = True
        password = unquote(self._url.password or "") or None
        for name in self._options.get("password_file", ()) if password is None else ():
            password = Path(name).read_text("utf-8").partition("\n")[0].strip()
        user = unquote(self._url.username or "") or None
        credentials = common | {"username": user, "password": password or os.environ.get("REDIS_PASSWORD") or None}
        kind: Any = {"": Redis, "cluster": cluster.RedisCluster, "sentinel": sentinel.Sentinel}[self._kind]
        if self._kind == "cluster":
            return kind(startup_nodes=[cluster.ClusterNode(*address) for address in self._hosts], **credentials)  # type: ignore[no-untyped-call]
        if self._kind == "sentinel":
            return kind(self._hosts, sentinel_kwargs=common, **credentials).master_for(self._path)
        return kind(*self._hosts[0], int(self._path or 0), **credentials)

    def _fault_of(self, error: Exception) -> StorageUnavailable:
        fault = StorageUnavailable(f"{self._address} cannot be used now: {type(error).__name__}")
        fault.__cause__ = error  # its message may contain anything
        return fault
