"""A fork at the worst moment: while other threads hold locks or run late imports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PREAMBLE = """
    import os, signal, sys, threading, time
    from routewright import Model, Pricing, Router, Settings, CallableProvider
    from routewright._runtime import fork

    TIGHT = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=1_500, tokenizer="o200k_base")

    def use(router):
        answer = router.blocking.route("hi")
        with router.blocking.stream("hi") as stream:
            assert "".join(stream.text()) == answer.output
        assert router.replay(router.blocking.trace(answer.trace_id)).model == answer.decision.model
        router.blocking.feedback(answer.trace_id, 1.0)
        router.blocking.close()

    def in_child(run):
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for a lock would wait for ever
            try:
                run()
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        return os.waitpid(child, 0)[1]
"""


def run_script(script: str) -> str:
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(script)
    flags = ["-W", "error", "-W", "ignore::DeprecationWarning:__main__"]  # 3.12: fork in a process with threads
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_child_works_although_other_threads_held_every_lock() -> None:
    code = """
        router = Router.sandbox({"hi": "hello"})
        router.blocking.route("hi")
        counting = Router(providers=[CallableProvider(lambda call: "x", models=[TIGHT])])
        counting.decide("hi")
        held, go_on = threading.Event(), threading.Event()

        def hold():
            locks = [thing.lock for thing in fork._renewables if isinstance(thing, fork.Guard)]
            for lock in locks:
                if lock is not fork.importing.lock:
                    lock.acquire()
            held.set()
            go_on.wait()
            for lock in locks:
                if lock is not fork.importing.lock:
                    lock.release()

        def work():
            use(router)
            assert counting.decide("word " * 400).input.tokens.counted
            use(Router.sandbox())

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        assert in_child(work) == 0
        go_on.set()
        thread.join()
        use(router)
        print(len(fork._renewables) > 10)
    """
    assert run_script(code) == "True"


def test_a_fork_waits_for_what_is_imported_late() -> None:
    code = """
        import importlib.abc

        started, go_on = threading.Event(), threading.Event()

        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "tiktoken":
                    started.set()
                    go_on.wait(5)
                return None

        sys.meta_path.insert(0, Slow())
        router = Router(providers=[CallableProvider(lambda call: "x", models=[TIGHT])])

        def count():
            assert router.decide("word " * 400).input.tokens.counted

        thread = threading.Thread(target=count)
        thread.start()
        assert started.wait(10)
        threading.Timer(0.05, go_on.set).start()  # while the fork waits
        assert in_child(count) == 0
        thread.join()
        print("ok")
    """
    assert run_script(code) == "ok"


@pytest.mark.full
def test_a_fork_while_token_tables_are_built_leaves_the_child_to_build_its_own() -> None:
    code = """
        from routewright.backends import tokens

        build, started, go_on = tokens._build, threading.Event(), threading.Event()

        def slow(encoding):
            if threading.current_thread() is thread:
                started.set()
                go_on.wait(10)
            return build(encoding)

        tokens._build = slow
        router = Router(providers=[CallableProvider(lambda call: "x", models=[TIGHT])])

        def count():
            assert router.decide("word " * 400).input.tokens.counted

        thread = threading.Thread(target=count)
        thread.start()
        assert started.wait(10)
        assert in_child(count) == 0
        go_on.set()
        thread.join()
        print("ok")
    """
    assert run_script(code) == "ok"


def test_traces_queued_at_a_fork_are_written_by_the_parent() -> None:
    code = """
        from routewright.errors import StorageUnavailable

        class Away:
            async def apply(self, account, writes):
                raise StorageUnavailable("away")

            async def aclose(self):
                pass

            read = scan = sweep = aclose

        router = Router.sandbox(storage=Away())
        router.blocking.route("hi")
        assert router.trace_counts.waiting == 1

        def go_on():
            assert router.trace_counts.waiting == 0
            router.blocking.route("hi")
            assert router.trace_counts.waiting == 1

        assert in_child(go_on) == 0
        print(router.trace_counts.waiting)
        router.blocking.close()
    """
    assert run_script(code) == "1"


def test_a_child_follows_a_file_of_policies_from_its_first_use_on() -> None:
    code = """
        import json, logging, os, tempfile
        from routewright.policies import PolicyFile

        path = os.path.join(tempfile.mkdtemp(), "policies.json")

        def write(model):
            with open(path + ".new", "w") as file:
                file.write(json.dumps({"policies": [{"name": "desk", "models": [model]}]}))
            os.replace(path + ".new", path)

        class Taken(logging.Handler):
            def emit(self, record):
                if "are in force" in record.getMessage():
                    taken.set()

        taken = threading.Event()
        log = logging.getLogger("routewright.policies")
        log.setLevel(logging.DEBUG)
        log.addHandler(Taken())
        write("openai/gpt-5.4")
        router = Router.sandbox(policies=PolicyFile(path, every_s=0.05))
        assert router.decide("Hello", policy_id="desk").model == "openai/gpt-5.4"

        def work():
            taken.clear()
            assert router.decide("Hello", policy_id="desk").model == "openai/gpt-5.4"
            write("openai/gpt-6-luna")
            assert taken.wait(15)
            assert router.decide("Hello", policy_id="desk").model == "openai/gpt-6-luna"

        assert in_child(work) == 0
        router.blocking.close()
    """
    run_script(code)


@pytest.mark.parametrize("kind", ["stream", pytest.param("steps", marks=pytest.mark.full)])
def test_a_child_that_drops_a_call_leaves_its_bill_to_the_parent(kind: str, tmp_path: Path) -> None:
    code = f"""
        import gc
        from routewright import Caller, Delta, Finish, SqliteStorage, Usage
        from routewright.router import StepDone
        from routewright.wire import Account
        from routewright.testing import ScriptedProvider
        from routewright.wire import LedgerRows, PutAccount, Stands

        ONE = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000)
        ANSWER = [Delta("an answer"), Usage(100, 50), Finish("stop")]
        storage = SqliteStorage({str(tmp_path / "traces.db")!r})
        router = Router(providers=[ScriptedProvider([ANSWER] * 2, models=[ONE])], storage=storage)
        terms = Account(name="acme", created_at="2026-11-01T00:00:00.000Z", plan="unlimited", monthly_nanos=10**9)
        run = router._parts.worker.run
        run(storage.apply, "acme", [PutAccount(terms)])
        options = {{"caller": Caller("acme"), "params": {{"max_output_tokens": 100}}, "idempotency_key": "k"}}

        def reserved():
            now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
            return max(purse.reserved_nanos for purse in run(storage.read, "acme", Stands(now, None)).purses)

        def charged():
            async def scan():
                return await storage.scan("acme", LedgerRows(), after=None, limit=10)

            return [row.charge_nanos for row in run(scan)]

        if {kind == "stream"}:
            call = router.blocking.stream("hi", **options)
            next(iter(call)), next(iter(call))
        else:
            call = router.steps("hi", **options)
            call.next()

        def drop():
            global call
            del call
            gc.collect()
            router.blocking.route("hi", caller=Caller())
            router.blocking.flush()

        assert in_child(drop) == 0
        assert (reserved() > 0, charged()) == (True, [])
        if {kind == "stream"}:
            list(call)
        else:
            call.feed(ANSWER)
            assert isinstance(call.next(), StepDone)
        print(reserved(), charged())
        router.blocking.close()
    """
    assert run_script(code) == "0 [300000]"


def test_a_child_that_exits_by_an_error_leaves_the_parents_call_alone(tmp_path: Path) -> None:
    code = f"""
        from routewright import Caller, Delta, Finish, SqliteStorage, Usage
        from routewright.router import StepDone
        from routewright.wire import Account
        from routewright.wire import LedgerRows, PutAccount, Stands

        ONE = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000)
        storage = SqliteStorage({str(tmp_path / "traces.db")!r})
        router = Router(providers=[CallableProvider(lambda call: "x", name="a", models=[ONE])], storage=storage)
        run = router._parts.worker.run
        terms = Account(name="acme", created_at="2026-11-01T00:00:00.000Z", plan="unlimited", monthly_nanos=10**9)
        run(storage.apply, "acme", [PutAccount(terms)])

        def books():
            async def scan():
                return await storage.scan("acme", LedgerRows(), after=None, limit=10)

            now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
            found = run(storage.read, "acme", Stands(now, None))
            return max(purse.reserved_nanos for purse in found.purses), [row.charge_nanos for row in run(scan)]

        with router.steps("hi", caller=Caller("acme"), params={{"max_output_tokens": 100}}) as steps:
            steps.next()
            held = books()
            assert held[0] > 0 and not held[1]
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                sys.exit(7)  # the context is left on the way out
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert books() == held
            steps.feed([Delta("an answer"), Usage(100, 50), Finish("stop")])
            assert isinstance(steps.next(), StepDone)
        print(*books())
        router.blocking.close()
    """
    assert run_script(code) == "0 [300000]"


def test_the_calls_of_a_forked_child_are_charged_to_the_run_around_them(tmp_path: Path) -> None:
    code = f"""
        from routewright import RouterError, SqliteStorage
        provider = CallableProvider(lambda call: "x", models=[TIGHT])
        router = Router(providers=[provider], storage=SqliteStorage({str(tmp_path / "store.db")!r}))

        def call():
            for _ in range(9):
                try:
                    router.blocking.route("hi", params={{"max_output_tokens": 20}})
                except RouterError as error:
                    print(type(error).__name__, error.detail["level"], flush=True)
                    return

        with router.blocking.run(total_budget_usd=0.0004):
            assert in_child(call) == 0
            call()
    """
    assert run_script(code) == "QuotaExhausted agent_run\nQuotaExhausted agent_run"
