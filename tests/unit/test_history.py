"""Callbacks that are written once more on the history of etf1, in the same transaction."""

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from stand_ins import DUE_MS, ROOMY, Known, slice_to

from kafka_timers.core.callbacks import Target
from kafka_timers.core.keys import batch_key, row_key
from kafka_timers.core.refused import Reason
from kafka_timers.core.rows import framed, pack
from kafka_timers.core.wire import Future
from kafka_timers.processes.worker import history_of
from kafka_timers.settings import WorkerSettings

HISTORY = history_of(WorkerSettings(door="etf1=schedules,etf1=more,headers=timers", door_history="history"))


def asked(topic: str = "callbacks", tombstones: str = "schedules", **more: Any) -> Future:
    return Future(callBackTopic=topic, callBackKey="k", callBack=b"v", tombstoneTopic=tombstones, **more)


async def leave(futures: Sequence[Future], *, together: bool = False, **topics: Target | Reason) -> tuple[Any, Any]:
    """Return the records of each topic where *futures* fire, as (partition, key, value, headers), and their slice."""
    values = [future.SerializeToString() for future in futures]
    rows = [(row_key(DUE_MS, offset), value) for offset, value in enumerate(values)]
    if together:
        rows = [(batch_key(DUE_MS, len(values) - 1, len(values)), pack(framed(values), list(range(len(values)))))]
    known = Known(**({"callbacks": ROOMY, "history": ROOMY, "schedules": ROOMY} | topics))
    built, each = slice_to(known, history=HISTORY), iter(rows)
    while await built.add(each):
        pass
    sent: dict[str, list[Any]] = {}
    for batch, topic, partition in built.rest():
        batches = MemoryRecords(bytes(batch.encoded(1, 0, 0)))
        while batches.has_next():
            for record in batches.next_batch():
                sent.setdefault(topic, []).append((partition, record.key, record.value, record.headers))
    return sent, built


@pytest.mark.parametrize("together", [False, True], ids=["singles", "batch"])
@pytest.mark.parametrize("odd", [False, True], ids=["as usual", "beside one that is odd"])
async def test_a_fired_schedule_is_copied_to_the_history_as_it_fired(together: bool, odd: bool) -> None:
    futures = [asked(), asked(tombstones=""), asked("history"), asked(tombstones="elsewhere")]
    if odd:
        futures.append(asked("missing"))
    sent, built = await leave(futures, together=together, elsewhere=ROOMY)
    fired = {dict(each[3])["timer-request"]: each for each in sent["callbacks"]}
    written = {dict(each[3])["timer-request"]: each for each in sent["history"]}
    assert (fired.keys(), written.keys()) == ({b"3:0", b"3:1", b"3:3"}, {b"3:0", b"3:2"})
    assert written[b"3:0"] == fired[b"3:0"]
    assert (len(sent["callbacks"]), len(sent["history"]), built.unrecorded) == (3, 2, 0)
    assert built.fired["history"] == 1, "a copy is no callback"


@pytest.mark.parametrize(
    "takes", [Reason.TOPIC_UNKNOWN, Target(3, 300), Target(3, 1_000_000, needs_key=True)], ids=["none", "small", "keys"]
)
async def test_a_schedule_that_the_history_does_not_take_fires_all_the_same(takes: Target | Reason) -> None:
    future = asked(token="t" * 500)
    future.callBackKey = ""
    sent, built = await leave([future, future], history=takes)
    assert (len(sent["callbacks"]), len(sent["schedules"]), "history" in sent) == (2, 2, False)
    assert (built.unrecorded, built.refused) == (2, {})


async def test_callbacks_that_were_built_without_the_history_are_built_anew_once_it_is_there() -> None:
    known = Known(callbacks=ROOMY, schedules=ROOMY, history=Reason.TOPIC_UNKNOWN)
    built = slice_to(known, history=HISTORY)
    await built.add(iter([(row_key(DUE_MS, 0), asked().SerializeToString())]))
    assert (built.unrecorded, built.is_outdated) == (1, False)
    known.verdicts["history"] = ROOMY
    assert built.is_outdated
