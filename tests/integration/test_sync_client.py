"""The client without asyncio against a real broker: threads, forks, and programs that forget to close it."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from patience import LIMIT_S

from kafka_timers import BrokerError, ClientStateError, RequestError, Timer, WhenError
from kafka_timers import TimerClient as AsyncClient
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import create
from kafka_timers.client.channel import KafkaChannel
from kafka_timers.core.routing import partition_of
from kafka_timers.sync import TimerClient

PARTITIONS = 4
FAR = 4_000_000_000


@pytest.fixture
async def topics(bootstrap: str, prefix: str) -> str:
    """The prefix of topics that exist."""
    await create(Kafka(bootstrap), prefix, PARTITIONS)
    return prefix


Run = Callable[[str], str]


@pytest.fixture
def run(bootstrap: str, topics: str) -> Run:
    """Run a program that has a client `timers`, and return its output; it must end, and complain of nothing."""

    def run(program: str) -> str:
        made = f"timers = TimerClient({bootstrap!r}, topic_prefix={topics!r})"
        script = f"from kafka_timers.sync import TimerClient\n{made}\n{program}"
        words = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def in_thread(work: Callable[[], object]) -> "Future[object]":
    """Return the result of *work* in a thread of its own, which does not keep the tests from ending if it hangs."""
    outcome: Future[object] = Future()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return outcome


def test_threads_share_a_client_and_each_call_gets_its_own_place(bootstrap: str, topics: str) -> None:
    with TimerClient(bootstrap, topic_prefix=topics) as timers, ThreadPoolExecutor(16) as threads:

        def ask(number: int) -> Timer:
            return timers.at(FAR + number, topic="reminders", timer_id=f"id-{number}", value=b"v")

        asked = list(threads.map(ask, range(500)))
    assert [timer.second for timer in asked] == [FAR + number for number in range(500)]
    assert len({timer.request for timer in asked}) == 500
    assert [timer.partition for timer in asked] == [partition_of(f"id-{number}", PARTITIONS) for number in range(500)]


def test_errors_are_those_of_the_other_client(bootstrap: str, topics: str) -> None:
    with TimerClient(bootstrap, topic_prefix=topics) as timers:
        with pytest.raises(WhenError, match="looks like milliseconds"):
            timers.at(FAR * 1000, topic="reminders")
        with pytest.raises(RequestError, match="timer service's own"):
            timers.after(1, topic=f"{topics}timer-request")
        timers.after(1, topic="reminders")


async def test_it_can_be_called_where_an_event_loop_runs(bootstrap: str, topics: str) -> None:
    with TimerClient(bootstrap, topic_prefix=topics) as timers:
        assert timers.at(FAR, topic="reminders").second == FAR


def test_a_client_that_was_closed_says_so(bootstrap: str, topics: str) -> None:
    timers = TimerClient(bootstrap, topic_prefix=topics)
    timers.close()
    timers.close()
    with pytest.raises(ClientStateError, match="was closed"):
        timers.after(1, topic="reminders")


def test_no_broker_is_said_by_the_first_call_and_the_next_one_tries_again() -> None:
    timers = TimerClient("127.0.0.1:9", timeout_s=0.5)
    for _ in range(2):
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1:9"):
            timers.after(1, topic="reminders")
    timers.close()


def test_a_program_that_does_not_close_its_client_ends_and_its_requests_stand(run: Run) -> None:
    assert run("print(timers.after(1, topic='reminders').partition >= 0)") == "True\n"


def test_a_client_that_is_never_used_connects_to_nothing(run: Run) -> None:
    assert run("import threading; print(threading.active_count())") == "1\n"


def test_children_that_are_forked_have_a_connection_of_their_own(run: Run) -> None:
    """As the workers of gunicorn and Celery have the modules of their parent."""
    printed = run(
        """
import os
print(timers.after(1, topic="reminders", timer_id="id").offset, flush=True)
for _ in range(2):
    child = os.fork()
    if not child:
        print(timers.after(1, topic="reminders", timer_id="id").offset, flush=True)
        raise SystemExit
    os.waitpid(child, 0)
print(timers.after(1, topic="reminders", timer_id="id").offset, flush=True)
"""
    )
    assert printed.split() == ["0", "1", "2", "3"]


def test_a_call_that_waits_when_another_thread_closes_the_client_says_so(
    bootstrap: str, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = threading.Event()

    async def read(channel: KafkaChannel, request: str) -> None:
        reads.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(KafkaChannel, "read", read)
    timers = TimerClient(bootstrap, topic_prefix=topics)
    moving = in_thread(lambda: timers.move("id", FAR, request="0:0"))
    assert reads.wait(LIMIT_S)
    timers.close()
    with pytest.raises(ClientStateError, match="was closed"):
        moving.result(LIMIT_S)


class Seen(AsyncClient):
    """A client that tells where it runs, and whether it was stopped."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    was_stopped = False

    async def start(self) -> None:
        self.loop, self.thread = asyncio.get_running_loop(), threading.current_thread()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        self.was_stopped = True


@pytest.mark.parametrize("in_its_own_thread", [False, True])
def test_a_client_that_nothing_refers_to_any_more_is_closed(
    bootstrap: str, topics: str, in_its_own_thread: bool
) -> None:
    client = Seen(bootstrap, topic_prefix=topics)
    timers = TimerClient.over(client)
    timers.start()
    gc.disable()
    try:
        if in_its_own_thread:
            # Only the garbage collector finds it then.
            timers.itself = timers  # type: ignore[attr-defined]
        del timers
        if in_its_own_thread:
            client.loop.call_soon_threadsafe(gc.collect)
        client.thread.join(LIMIT_S)
    finally:
        gc.enable()
    assert (client.thread.is_alive(), client.was_stopped, client.loop.is_closed()) == (False, True, True)


def test_threads_that_come_while_it_connects_share_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, attempts = 40, []
    all_here = threading.Barrier(threads + 1)
    fails = threading.Event()

    async def start(channel: KafkaChannel) -> None:
        attempts.append(channel)
        await asyncio.to_thread(fails.wait, LIMIT_S)
        raise BrokerError("no broker answers")

    def ask() -> object:
        all_here.wait(LIMIT_S)
        return timers.after(1, topic="reminders")

    monkeypatch.setattr(KafkaChannel, "start", start)
    timers = TimerClient()
    asked = [in_thread(ask) for _ in range(threads)]
    all_here.wait(LIMIT_S)
    fails.set()
    errors = [each.exception(LIMIT_S) for each in asked]
    assert all(isinstance(error, BrokerError) for error in errors)
    # A thread that is slow to call may come only after the attempt: it makes another one.
    made = len(attempts)
    assert len(set(map(id, errors))) == made < threads
    with pytest.raises(BrokerError):
        timers.start()
    assert len(attempts) == made + 1
    timers.close()


def test_a_client_that_is_closed_while_it_connects_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    connects = threading.Event()

    async def start(channel: KafkaChannel) -> None:
        connects.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(KafkaChannel, "start", start)
    timers = TimerClient()
    starting = [in_thread(timers.start) for _ in range(3)]
    assert connects.wait(LIMIT_S)
    in_thread(timers.close).result(LIMIT_S)
    for each in starting:
        with pytest.raises(ClientStateError, match="was closed"):
            each.result(LIMIT_S)


async def test_a_client_of_asyncio_on_another_loop_names_the_remedy(bootstrap: str, topics: str) -> None:
    async with AsyncClient(bootstrap, topic_prefix=topics) as timers:

        def elsewhere() -> Timer:
            return asyncio.run(timers.after(1, topic="reminders"))

        with pytest.raises(ClientStateError, match=r"another event loop.*kafka_timers\.sync"):
            await asyncio.to_thread(elsewhere)
        await timers.after(1, topic="reminders")
