"""A timer fires in its second, whichever client asked for it."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from patience import LIMIT_S
from service import Process, Service

from kafka_timers.core.wire import Future, Header, is_complete


async def test_timer_of_any_kafka_client_fires_in_its_second(service: Service) -> None:
    """Three fields, the key that everyone writes, and the client's own choice of the partition."""
    await service.start("oscillator")
    worker = await service.worker()
    await worker.until("/readyz", lambda status, _: status == 200)
    first = int(time.time()) + 3
    producer = Producer({"bootstrap.servers": service.bootstrap})
    future = Future(callBackTopic=service.callbacks, callBackKey="order-1", callBack=b"wake up")
    for second in range(first, first + 4):
        producer.produce(service.topics.requests, key=str(second), value=future.SerializeToString(), partition=0)
    assert producer.flush(LIMIT_S) == 0
    callbacks = await service.read(service.callbacks, 4)
    late_ms = []
    for second, callback in enumerate(callbacks, first):
        assert (callback.key, callback.value) == (b"order-1", b"wake up")
        assert dict(callback.headers)["timer-expiry"] == str(second).encode()
        late_ms.append(callback.timestamp - second * 1000)
    # A busy machine does not delay all of them.
    assert 0 <= min(late_ms) < 1300, late_ms
    headers = dict(callbacks[0].headers)
    partition, offset = headers["timer-request"].split(b":")
    [request] = [r for r in await service.read(service.topics.requests, 1) if r.offset == int(offset)]
    assert request.partition == int(partition)


async def test_requests_may_be_compressed_in_any_way_that_kafka_knows(service: Service) -> None:
    await service.worker()
    second = int(time.time()) - 100
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        producer = Producer({"bootstrap.servers": service.bootstrap, "compression.type": codec, "linger.ms": 100})
        for number in range(20):
            # Worth compressing, else the client sends it as it is.
            future = Future(callBackTopic=service.callbacks, callBackKey=f"{number}", callBack=codec.encode() * 100)
            producer.produce(service.topics.requests, key=str(second), value=future.SerializeToString(), partition=1)
        assert producer.flush(LIMIT_S) == 0
    await service.tick(second)
    fired = await service.read(service.callbacks, 20 * len(codecs))
    assert sorted(record.value for record in fired) == sorted(
        codec.encode() * 100 for codec in codecs for _ in range(20)
    )


async def test_callback_carries_token_id_and_own_headers_untouched(service: Service) -> None:
    """Key, value and headers arrive byte for byte, behind the service's own headers."""
    await service.worker()
    second = int(time.time()) - 100
    own = [Header(key="trace", value=b"\x00\xff"), Header(key="trace", value=b""), Header(key="none")]
    future = Future(
        callBackTopic=service.callbacks,
        callBackKey="clé",
        callBack=bytes(range(256)),
        timerId="invoice-7",
        token="t-1",
        headers=own,
    )
    request = await service.request(second, future)
    await service.tick(second)
    [callback] = await service.read(service.callbacks, 1)
    assert callback.key == "clé".encode()
    assert callback.value == bytes(range(256))
    service_headers, own_headers = callback.headers[:4], callback.headers[4:]
    assert dict(service_headers) == {
        "timer-token": b"t-1",
        "timer-id": b"invoice-7",
        "timer-expiry": str(second).encode(),
        "timer-request": request.encode(),
    }
    assert own_headers == (("trace", b"\x00\xff"), ("trace", b""), ("none", None))


async def test_callbacks_of_one_second_keep_the_order_of_acceptance(service: Service) -> None:
    """Same partition, second and millis: first come, first fired; millis sort within the second."""
    await service.worker()
    second = int(time.time()) - 100
    for name, millis in (("c", 500), ("a", 0), ("d", 500), ("b", 0)):
        future = Future(callBackTopic=service.callbacks, callBackKey="same", callBack=name.encode(), millis=millis)
        await service.request(second, future, partition=1)
    await service.tick(second)
    assert [record.value for record in await service.read(service.callbacks, 4)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(("every_ms", "millis_ready"), [("0", 500), ("10", 0)])
async def test_a_request_that_comes_after_its_second_was_prepared_fires_with_it(
    service: Service, every_ms: str, millis_ready: int
) -> None:
    """Callbacks are built ahead of their tick; requests that come later, also with less millis, are not forgotten."""
    worker = await service.worker("--instant-every-ms", every_ms)
    second = int(time.time()) - 100
    await service.tick(second - 1)
    await service.until_sealed(second - 1)

    async def ask(name: str, due: int, millis: int) -> None:
        future = Future(callBackTopic=service.callbacks, callBackKey="same", callBack=name.encode(), millis=millis)
        await service.request(due, future, partition=1)

    await ask("known", second + 1, millis_ready)
    await service.tick(second)
    await worker.until("/metrics", lambda _, body: 'kafka_timers_armed{partition="1"} 1.0' in body)
    for name, due, millis in (("earlier", second + 1, 100), ("later", second + 1, 900), ("late", second - 50, 0)):
        await ask(name, due, millis)
    await service.tick(second + 1)
    fired = await service.callback_names(["known", "earlier", "later", "late"])
    assert sorted(fired) == ["earlier", "known", "late", "later"]


async def test_seals_balance_and_cover_every_second(service: Service) -> None:
    """Each seal counts due, fired and pending requests, and goes on where the one before ended."""
    await service.worker("--slice-rows", "10")
    second = int(time.time()) - 1000
    await service.requests(second, [f"now-{n}" for n in range(100)])
    await service.requests(second + 500, [f"later-{n}" for n in range(40)])
    await service.tick(second)
    await service.until_sealed(second)
    await service.tick(second + 7)
    for partition, seals in (await service.until_sealed(second + 7)).items():
        assert all(seal.due == seal.fired + seal.rejected for seal in seals)
        assert sum(seal.fired for seal in seals) == 25
        assert seals[-1].pending == 10
        assert seals[-1].partitions == 4
        assert seals[-1].restore_from <= 25
        assert [seal.partition for seal in seals] == [partition] * len(seals)
        complete = [seal for seal in seals if is_complete(seal)]
        assert [seal.first_ms for seal in complete[1:]] == [seal.end_ms for seal in complete[:-1]]
        assert complete[-1].end_ms == (second + 8) * 1000


async def test_at_least_once_fires_without_transactions(service: Service) -> None:
    """A receiver that reads uncommitted records sees the same then: nothing is ever aborted."""
    await service.worker("--guarantee", "at-least-once")
    second = int(time.time()) - 100
    names = [f"t-{n}" for n in range(200)]
    await service.requests(second, names)
    await service.tick(second)
    await service.until_sealed(second)
    records = await service.read_all(service.callbacks, 200, quiet_s=2, committed=False)
    assert sorted(record.value.decode() for record in records) == sorted(names)


async def test_several_workers_as_one_command_share_the_work_and_come_back(service: Service) -> None:
    """Each serves its own port; one that is killed is started again; all end with the command."""
    command = await service.start("worker", "--processes", "2")
    first, second = command, Process(command.child, command.port + 1, command.data_dir)
    await service.until_serving(first)
    await service.until_serving(second)
    due = int(time.time()) - 100
    names = [f"t-{n}" for n in range(100)]
    await service.requests(due, names)
    await service.until_sealed(due)
    assert sorted(await service.callback_names(names)) == sorted(names)
    owned = [re.findall(r'kafka_timers_pending{partition="(\d)"}', await shown(process)) for process in (first, second)]
    assert sorted(owned[0] + owned[1]) == ["0", "1", "2", "3"]
    assert len(owned[0]) == 2
    [killed] = children_of(command.child.pid)[:1]
    os.kill(killed, signal.SIGKILL)
    more = [f"u-{n}" for n in range(100)]
    await service.requests(due + 10, more)
    await service.until_sealed(due + 10)
    assert sorted(await service.callback_names(names + more)) == sorted(names + more)
    await service.until_serving(first)
    await service.until_serving(second)
    left = children_of(command.child.pid)
    await command.child.stop(LIMIT_S)
    assert command.child.returncode == 0
    assert len(left) == 2
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def shown(process: Process) -> str:
    return await process.until("/metrics", lambda status, _: status == 200)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
