"""The client without asyncio against a real broker: threads, forks, and programs that forget to close it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafka_timers import BrokerError, ClientStateError, RequestError, Timer, WhenError
from kafka_timers import TimerClient as AsyncClient
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import create
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
    """Run a program that has a client `timers`, and return what it prints; it must end, and complain of nothing."""

    def run(program: str) -> str:
        made = f"timers = TimerClient({bootstrap!r}, topic_prefix={topics!r})"
        script = f"from kafka_timers.sync import TimerClient\n{made}\n{program}"
        words = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


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


def test_a_program_that_does_not_close_its_client_ends_and_what_it_asked_for_stands(run: Run) -> None:
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


async def test_a_client_of_asyncio_on_another_loop_says_what_to_do(bootstrap: str, topics: str) -> None:
    async with AsyncClient(bootstrap, topic_prefix=topics) as timers:

        def elsewhere() -> Timer:
            return asyncio.run(timers.after(1, topic="reminders"))

        with pytest.raises(ClientStateError, match=r"another event loop.*kafka_timers\.sync"):
            await asyncio.to_thread(elsewhere)
        await timers.after(1, topic="reminders")
