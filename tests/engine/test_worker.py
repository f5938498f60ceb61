"""The background thread on real time, and the caller's own loop on virtual time."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import anyio
import anyio.lowlevel
import pytest

from routewright._runtime.worker import Job, Worker
from routewright.backends.clock import SystemClock
from routewright.errors import RouterClosed
from routewright.testing.clock import FakeClock

from .scripted_router import in_threads

BACKENDS = ["asyncio", "trio"]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def this_thread() -> threading.Thread:
    return threading.current_thread()


async def fail(error: BaseException) -> None:
    raise error


async def read_variable() -> str:
    await anyio.lowlevel.checkpoint()
    return variable.get()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(SystemClock())
    yield made
    made.close()


class Recorder:
    """A job that takes what was queued, and notices if it runs twice at a time."""

    def __init__(self, worker: Worker, delay: float) -> None:
        self.queue: deque[int] = deque()
        self.taken: list[int] = []
        self.runs = 0
        self.job = Job(worker, self.take, delay)
        self._running = False

    async def take(self) -> None:
        assert not self._running
        self._running = True
        self.runs += 1
        while self.queue:
            self.taken.append(self.queue.popleft())
            await anyio.lowlevel.checkpoint()
        self._running = False

    def put(self, item: int) -> bool:
        self.queue.append(item)
        return self.job.poke()


class TestThread:
    """Real time."""

    def test_unused_workers_start_no_thread(self) -> None:
        before = threading.active_count()
        workers = [Worker(SystemClock()) for _ in range(100)]
        jobs = [Job(worker, this_thread, 0.1) for worker in workers]
        assert threading.active_count() == before
        for worker in workers:
            worker.close()
        assert threading.active_count() == before
        assert len(jobs) == 100

    def test_all_work_runs_in_one_daemon_thread(self, worker: Worker) -> None:
        threads = {worker.run(this_thread) for _ in range(3)}
        assert len(threads) == 1
        thread = threads.pop()
        assert thread.daemon
        assert thread is not threading.current_thread()

    @pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), KeyboardInterrupt(), anyio.EndOfStream()])
    def test_run_raises_what_the_function_raises(self, worker: Worker, error: BaseException) -> None:
        with pytest.raises(type(error)) as caught:
            worker.run(fail, error)
        assert caught.value is error
        assert worker.run(this_thread).is_alive()

    def test_run_and_start_see_the_callers_context(self, worker: Worker) -> None:
        seen, done = list[str](), threading.Event()

        async def note() -> None:
            seen.append(await read_variable())
            done.set()

        token = variable.set("mine")
        try:
            assert worker.run(read_variable) == "mine"
            worker.start(note)
        finally:
            variable.reset(token)
        assert done.wait(10)
        assert seen == ["mine"]

    def test_jobs_and_daemons_run_in_an_empty_context(self, worker: Worker) -> None:
        seen, done = list[str](), threading.Semaphore(0)

        async def note() -> None:
            seen.append(await read_variable())
            done.release()

        token = variable.set("mine")
        try:
            Job(worker, note, 0.0).poke()
            worker.start_daemon(note)
        finally:
            variable.reset(token)
        assert done.acquire(timeout=10)
        assert done.acquire(timeout=10)
        assert seen == ["unset", "unset"]

    def test_run_in_the_background_thread_is_an_error_and_no_deadlock(self, worker: Worker) -> None:
        async def call_itself() -> None:
            worker.run(this_thread)

        with pytest.raises(RuntimeError, match="runs in the background already"):
            worker.run(call_itself)

    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals are sent to processes only")
    def test_keyboard_interrupt_of_the_wait_cancels_the_call(self, worker: Worker) -> None:
        cancelled, waiting = threading.Event(), threading.main_thread().ident
        assert waiting is not None

        async def hang() -> None:
            try:
                while True:  # Python drops an interrupt that comes within a destructor
                    await anyio.sleep(0.2)  # one on the way into the wait would break the lock of Python's own future
                    signal.pthread_kill(waiting, signal.SIGINT)
                    await anyio.sleep(20)
            finally:
                cancelled.set()

        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
        try:
            with pytest.raises(KeyboardInterrupt):
                worker.run(hang)
        finally:
            signal.signal(signal.SIGINT, before)
        assert cancelled.wait(10)

    @pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), asyncio.CancelledError()])
    def test_error_of_a_started_task_is_logged_and_ends_nothing_else(
        self, worker: Worker, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        worker.start(fail, error)
        worker.close()
        (record,) = caplog.records
        assert record.name == "routewright._runtime.worker"
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None
        assert record.exc_info[1] is error
        assert "fail" in record.getMessage()

    def test_error_of_a_job_is_logged_and_the_next_poke_runs_it_again(
        self, worker: Worker, caplog: pytest.LogCaptureFixture
    ) -> None:
        ran = threading.Semaphore(0)

        async def fail_after_all() -> None:
            ran.release()
            raise ValueError("mine")

        job = Job(worker, fail_after_all, 0.0)
        for _ in range(2):
            assert job.poke()
            assert ran.acquire(timeout=10)
        worker.close()
        assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]

    def test_work_queued_before_a_poke_is_taken_once(self, worker: Worker, full: bool) -> None:
        recorder, count = Recorder(worker, 0.0005), 20_000 if full else 1_000

        def put_all(number: int) -> None:
            for item in range(number * count, (number + 1) * count):
                assert recorder.put(item)

        in_threads(put_all, 8)
        worker.close(60)
        assert sorted(recorder.taken) == list(range(8 * count))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_aclose_hurries_jobs_and_waits_for_tasks_from_any_loop(self, worker: Worker, backend: str) -> None:
        recorder, ended = Recorder(worker, 3600.0), threading.Event()

        async def take_a_while() -> None:
            await anyio.sleep(0.02)
            ended.set()

        worker.start(take_a_while)
        recorder.put(1)
        thread = worker.run(this_thread)
        anyio.run(worker.aclose, backend=backend)
        assert ended.is_set()
        assert recorder.taken == [1]
        assert not thread.is_alive()

    def test_close_cancels_slow_work_and_logs_it(self, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
        cancelled = threading.Event()

        async def hang() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

        worker.start(hang)
        worker.close(0.01)
        assert cancelled.is_set()
        (record,) = caplog.records
        assert record.getMessage() == "closing cancels background work: 1 left after 0.0 s"

    def test_close_does_not_wait_for_daemons(self, worker: Worker) -> None:
        worker.start_daemon(anyio.sleep_forever)
        thread = worker.run(this_thread)
        began = time.monotonic()
        worker.close(60)
        assert time.monotonic() - began < 30
        assert not thread.is_alive()

    def test_close_drops_the_run_of_a_job_that_may_be_dropped(self) -> None:
        worker, runs = Worker(SystemClock(), may_be_dropped=True), list[int]()

        async def run() -> None:
            runs.append(1)
            job.poke()

        job = Job(worker, run, 60.0)
        job.poke()
        began = time.monotonic()
        worker.close(60)
        assert time.monotonic() - began < 30
        assert not runs

    def test_a_thread_whose_work_may_be_dropped_ends_without_it_and_starts_again(self) -> None:
        worker, taken = Worker(SystemClock(), may_be_dropped=True), list[threading.Thread]()
        came = threading.Semaphore(0)

        async def run() -> None:
            taken.append(threading.current_thread())
            came.release()

        job = Job(worker, run, 0.0)
        for _ in range(200):  # some while the thread is about to end
            assert job.poke()
            assert came.acquire(timeout=10)
        taken[-1].join(10)
        assert not any(thread.is_alive() for thread in taken)
        assert len(set(taken)) > 1

    def test_the_last_job_that_is_dropped_ends_the_thread(self) -> None:
        worker, ran = Worker(SystemClock(), may_be_dropped=True), threading.Event()

        async def run() -> None:
            ran.set()

        first, last = Job(worker, run, 60.0), Job(worker, run, 60.0)
        assert first.poke()
        assert last.poke()
        assert worker.present is not None
        thread = worker.present._thread
        first.drop()
        assert thread.is_alive()
        last.drop()
        assert not thread.is_alive()
        assert not ran.is_set()
        first.delay = 0.0
        assert first.poke()
        assert ran.wait(10)

    def test_closing_ends_a_call_that_another_thread_waits_for(self, worker: Worker) -> None:
        running, errors = threading.Event(), list[BaseException]()

        async def hang() -> None:
            running.set()
            await anyio.sleep_forever()

        def call() -> None:
            try:
                worker.run(hang)
            except RouterClosed as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert running.wait(10)
        worker.close(0.0)
        thread.join(10)
        assert [type(error) for error in errors] == [RouterClosed]

    def test_close_twice_is_once_and_nothing_begins_after_it(self, worker: Worker) -> None:
        recorder = Recorder(worker, 0.0)
        worker.run(this_thread)
        for _ in range(2):
            worker.close()
            anyio.run(worker.aclose)
        assert_closed(worker, recorder)

    def test_worker_closed_before_its_first_use_stays_closed(self, worker: Worker) -> None:
        recorder = Recorder(worker, 0.0)
        worker.close()
        assert_closed(worker, recorder)

    def test_work_may_close_its_own_worker(self, worker: Worker) -> None:
        thread = worker.run(this_thread)
        worker.run(worker.aclose)
        thread.join(10)
        assert not thread.is_alive()

    def test_dropped_worker_finishes_and_stops_its_thread(self) -> None:
        worker = Worker(SystemClock())
        thread, recorder = worker.run(this_thread), Recorder(worker, 0.001)
        recorder.put(1)
        taken = recorder.taken
        worker.start_daemon(anyio.sleep_forever)
        del worker, recorder
        while thread.is_alive():  # the job keeps its worker until it has run
            thread.join(0.2)
            gc.collect()
        assert taken == [1]


class TestCallersLoop:
    """Virtual time."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def worker(self, clock: FakeClock) -> Worker:
        return Worker(clock)

    async def test_work_runs_in_the_callers_thread(self, worker: Worker) -> None:
        before, seen = threading.active_count(), list[threading.Thread]()

        async def note() -> None:
            seen.append(await this_thread())

        worker.start(note)
        worker.start_daemon(note)
        Job(worker, note, 0.0).poke()
        await worker.aclose()
        assert seen == [threading.current_thread()] * 3
        assert threading.active_count() == before

    async def test_poke_during_a_run_leads_to_another_after_it(self, worker: Worker, clock: FakeClock) -> None:
        spans: list[tuple[float, float]] = []

        async def take_a_second() -> None:
            began = clock.monotonic()
            await clock.sleep(1.0)
            spans.append((began, clock.monotonic()))

        job = Job(worker, take_a_second, 0.5)
        job.poke()
        await clock.sleep(1.0)
        job.poke()
        job.poke()
        await clock.sleep(10.0)
        assert spans == [(0.5, 1.5), (2.0, 3.0)]

    async def test_aclose_waits_for_tasks_but_not_for_daemons(self, worker: Worker, clock: FakeClock) -> None:
        ended: list[str] = []

        async def end_after(seconds: float, name: str) -> None:
            try:
                await clock.sleep(seconds)
            finally:
                ended.append(f"{name} at {clock.monotonic()}")

        worker.start(end_after, 1.5, "task")
        worker.start_daemon(end_after, 3600.0, "daemon")
        await worker.aclose()
        assert ended == ["task at 1.5", "daemon at 1.5"]

    async def test_aclose_cancels_after_its_timeout(self, worker: Worker, clock: FakeClock) -> None:
        worker.start(clock.sleep, 3600.0)
        await worker.aclose(timeout=2.0)
        assert clock.monotonic() == 2.0

    async def test_job_that_pokes_itself_does_not_spin_while_closing(self, worker: Worker, clock: FakeClock) -> None:
        times: list[float] = []

        async def again() -> None:
            times.append(clock.monotonic())
            job.poke()

        job = Job(worker, again, 0.75)
        job.poke()
        await clock.sleep(1.0)
        await worker.aclose()
        assert times == [0.75, 1.0, 1.75, 2.5]

    async def test_close_twice_is_once_and_nothing_begins_after_it(self, worker: Worker) -> None:
        recorder = Recorder(worker, 0.0)
        recorder.put(1)
        await worker.aclose()
        await worker.aclose()
        assert_closed(worker, recorder)

    async def test_run_in_an_event_loop_is_an_error(self, worker: Worker) -> None:
        with pytest.raises(RuntimeError, match="await the call"):
            worker.run(this_thread)
        with pytest.raises(RuntimeError, match="use aclose"):
            worker.close()


class TestNoLoop:
    """Virtual time in code without an event loop."""

    def test_run_returns_the_result_and_finishes_started_work(self) -> None:
        worker = Worker(FakeClock())
        recorder = Recorder(worker, 3600.0)

        async def record() -> str:
            recorder.put(1)
            return await read_variable()

        token = variable.set("mine")
        try:
            assert worker.run(record) == "mine"
            assert worker.run(record) == "mine"
        finally:
            variable.reset(token)
        assert recorder.taken == [1, 1]

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_work_requested_outside_a_loop_starts_in_the_next(self, backend: str) -> None:
        worker = Worker(FakeClock())
        recorder, seen = Recorder(worker, 0.0), list[str]()

        async def note() -> None:
            seen.append("ran")

        recorder.put(1)
        worker.start(note)
        worker.start_daemon(note)
        assert (recorder.taken, seen) == ([], [])
        anyio.run(worker.aclose, backend=backend)
        assert (recorder.taken, seen) == ([1], ["ran", "ran"])

    def test_job_lost_with_its_loop_begins_at_the_next_poke(self) -> None:
        worker = Worker(FakeClock())
        recorder = Recorder(worker, 5.0)

        async def poke(item: int) -> None:
            recorder.put(item)

        for backend in BACKENDS:
            anyio.run(poke, len(backend), backend=backend)
        assert recorder.taken == []
        worker.run(poke, 0)
        assert recorder.taken == [7, 4, 0]

    def test_daemons_run_in_every_loop(self) -> None:
        clock = FakeClock()
        worker, times = Worker(clock), list[float]()

        async def tick() -> None:
            while True:
                await clock.sleep(1.0)
                times.append(clock.monotonic())

        worker.start_daemon(tick)
        worker.run(clock.sleep, 2.5)
        worker.run(clock.sleep, 2.5)
        assert times == [1.0, 2.0, 3.5, 4.5]


def assert_closed(worker: Worker, recorder: Recorder) -> None:
    runs = recorder.runs
    begin: list[Callable[[], object]] = [
        lambda: worker.run(this_thread),
        lambda: worker.start(this_thread),
        lambda: worker.start_daemon(this_thread),
    ]
    for ask in begin:
        with pytest.raises(RouterClosed, match="closed"):
            ask()
    assert recorder.put(1) is False
    assert recorder.put(2) is False
    assert recorder.runs == runs


PREAMBLE = """
    import os, sys, threading, time, anyio
    from routewright.errors import RouterClosed
    from routewright._runtime.worker import Job, Worker
    from routewright.backends.clock import SystemClock

    worker = Worker(SystemClock())

    def say(text):
        print(text, flush=True)

    async def pid():
        return os.getpid()
"""


def run_script(script: str) -> tuple[list[str], float]:
    """Run a program to its end; say what it printed, and how many seconds it took after printing ``exit``."""
    flags = ["-W", "error", "-W", "ignore::DeprecationWarning:__main__"]  # 3.12: fork in a process with threads
    source = textwrap.dedent(PREAMBLE) + textwrap.dedent(script)
    process = subprocess.Popen(
        [sys.executable, *flags, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines, exit_at = list[str](), time.monotonic()
    with process:
        for line in process.stdout:
            if line.strip() == "exit":
                exit_at = time.monotonic()
            lines.append(line.strip())
        errors = process.stderr.read()
    took = time.monotonic() - exit_at
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "Warning" not in errors
    return lines, took


class TestProcess:
    """What can only be seen from outside."""

    def test_exit_waits_for_started_work(self) -> None:
        lines, took = run_script("""
            async def take_a_while():
                await anyio.sleep(0.05)
                say("task")

            async def drain():
                say("job")

            Job(worker, drain, 3600.0).poke()
            worker.start(take_a_while)
            worker.start_daemon(anyio.sleep_forever)
            say("exit")
        """)
        assert lines == ["exit", "job", "task"]
        assert took < 2.0

    def test_exit_does_not_wait_for_work_that_may_be_dropped(self) -> None:
        lines, took = run_script("""
            async def block():
                say("exit")
                time.sleep(60)

            Job(Worker(SystemClock(), may_be_dropped=True), block, 0.0).poke()
            time.sleep(0.3)
        """)
        assert lines == ["exit"]
        assert took < 1.5

    @pytest.mark.parametrize("hang", ["anyio.sleep_forever", "block", "cling"])
    def test_exit_takes_two_seconds_at_most_for_all_workers(self, hang: str) -> None:
        lines, took = run_script(f"""
            async def block():
                time.sleep(60)

            async def cling():
                while True:
                    try:
                        await anyio.sleep_forever()
                    except BaseException:
                        pass

            others = [Worker(SystemClock()) for _ in range(3)]
            for each in [worker, *others]:
                each.start({hang})
            worker.start_daemon(anyio.sleep_forever)
            say("exit")
        """)
        assert lines == ["exit"]
        assert took < 4.0  # with the interpreter's own

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_fork_leaves_both_processes_with_a_working_worker(self) -> None:
        lines, _ = run_script("""
            async def drain():
                say(f"drained in {names[os.getpid()]}")

            async def tick():
                say(f"daemon in {names[os.getpid()]}")
                await anyio.sleep_forever()

            names = {os.getpid(): "parent"}
            job = Job(worker, drain, 3600.0)
            worker.start_daemon(tick)
            job.poke()
            assert worker.run(pid) == os.getpid()
            child = os.fork()
            if child == 0:
                names[os.getpid()] = "child"
                assert threading.active_count() == 1
                assert job.poke()
                assert worker.run(pid) == os.getpid()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert worker.run(pid) == os.getpid()
            worker.close()
            say("exit")
        """)
        assert lines == ["daemon in parent", "daemon in child", "drained in child", "drained in parent", "exit"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_child_that_never_uses_the_worker_exits_quietly(self) -> None:
        lines, _ = run_script("""
            import gc

            worker.run(pid)
            child = os.fork()
            if child == 0:
                del worker
                gc.collect()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            for _ in range(100):
                assert worker.run(pid) == os.getpid()
            say("exit")
        """)
        assert lines == ["exit"]

    def test_poke_and_start_while_the_interpreter_exits_do_not_hang(self) -> None:
        lines, took = run_script("""
            import atexit

            job = Job(worker, pid, 0.0)

            def last_words():
                say(job.poke())
                try:
                    worker.run(pid)
                except RouterClosed as error:
                    say(type(error).__name__)

            from routewright._runtime import worker as module
            atexit.unregister(module._close_all)
            atexit.register(last_words)
            atexit.register(module._close_all)
            worker.run(pid)
            say("exit")
        """)
        assert lines == ["exit", "False", "RouterClosed"]
        assert took < 2.0
