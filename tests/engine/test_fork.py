"""A fork at the worst moment: while other threads hold every lock there is, or import what is imported late."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PREAMBLE = """
    import os, signal, sys, threading, time
    from routewright import Model, Pricing, Router, Settings, CallableProvider, fork

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
            locks = [thing.lock for thing in fork._renewed if isinstance(thing, fork.Guard)]
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
        print(len(fork._renewed) > 10)
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
        threading.Timer(0.2, go_on.set).start()  # while the fork waits
        assert in_child(count) == 0
        thread.join()
        print("ok")
    """
    assert run_script(code) == "ok"


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


def test_traces_that_wait_at_a_fork_are_the_parents_to_write() -> None:
    code = """
        from routewright import StorageUnavailable

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
        from routewright import PolicyFile

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
        log = logging.getLogger("routewright.assembly")
        log.setLevel(logging.DEBUG)
        log.addHandler(Taken())
        write("openai/gpt-4.1")
        router = Router.sandbox(policies=PolicyFile(path, every_s=0.05))
        assert router.decide("Hello", policy_id="desk").model == "openai/gpt-4.1"

        def work():
            taken.clear()
            assert router.decide("Hello", policy_id="desk").model == "openai/gpt-4.1"
            write("openai/gpt-6-luna")
            assert taken.wait(15)
            assert router.decide("Hello", policy_id="desk").model == "openai/gpt-6-luna"

        assert in_child(work) == 0
        router.blocking.close()
    """
    run_script(code)
