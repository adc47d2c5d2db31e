"""Logs are read from their leaders, and from no broker that only believes that it leads."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, OffsetOutOfRangeError, RequestTimedOutError

from kafka_timers.adapters.commands import SourceRecord
from kafka_timers.adapters.source import CutError, SourceLog
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster, Leader
from kafka_timers.broker.requests import ListOffsets, Metadata
from kafka_timers.broker.seals import SealLog
from kafka_timers.core.wire import Sealed, last_second_of
from kafka_timers.runtime.tasks import cancel
from kafka_timers.runtime.ticks import TickReader
from simulation.assembly import patched
from simulation.cluster import Brokers
from simulation.faults import Faults
from simulation.kafka import NODES, Kafka
from simulation.log import Log, Record
from simulation.loop import SeededLoop
from simulation.network import Network
from simulation.told import told


class Scene:
    """A client that knows all leaders, and then another one leads a log than it knows."""

    def __init__(self) -> None:
        self.loop = SeededLoop()
        self.kafka, self.network = Kafka(self.loop, 1, lambda: 0.0), Network(self.loop)
        brokers = Brokers(self.kafka, self.network, Faults())
        brokers.records_max = 100
        self.cluster = Cluster(cast(Any, brokers))
        own = self.kafka.own
        self.loop.run_until_complete(self.cluster.look_up([own.requests, own.sealed]))

    def elect(self, log: Log) -> None:
        """Have another broker lead *log*; the one before does not know, and tells its old end."""
        log.cut_off(log.leader, log.leader % 3 + 1)

    def write(self, *keys: bytes) -> None:
        """Append records to the log of requests, which may be that of another system too."""
        for key in keys:
            self.kafka.requests(0).append(Record(key, b""), self.kafka.now_ms)

    def source(self, position: int) -> SourceLog:
        """Return the reader by which a door reads the log of requests."""
        return SourceLog(self.cluster, self.kafka.own.requests, 0, position, "lane")

    def seal(self, second: int) -> int:
        """Append a seal, and return where it lies."""
        seal = Sealed(first_ms=second * 1000, end_ms=(second + 1) * 1000)
        return self.kafka.sealed(0).append(Record(b"0", seal.SerializeToString()), self.kafka.now_ms)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with patched():
        scene = Scene()
        yield scene
    scene.loop.run_until_complete(scene.cluster.close())
    scene.loop.close()


def test_an_end_is_that_of_a_leader_that_has_all_acknowledged_records(scene: Scene) -> None:
    log, bounds = scene.kafka.requests(0), LogBounds(scene.cluster, scene.kafka.own.requests)
    scene.elect(log)
    acknowledged = log.append(Record(b"k", b""), scene.kafka.now_ms)
    assert scene.loop.run_until_complete(bounds.end(0)) == 0
    assert scene.loop.run_until_complete(bounds.end(0, above=acknowledged)) == 1


def test_a_leader_of_before_is_not_believed_again(scene: Scene) -> None:
    """The broker that was cut off is asked for the leader as well, in its turn."""
    log = scene.kafka.requests(0)
    before = log.leader
    scene.elect(log)
    scene.cluster.learn(log.topic, 0, Leader(log.leader, log.epoch))
    for _ in NODES:
        scene.loop.run_until_complete(scene.cluster.refresh())
        assert scene.cluster.leader(log.topic, 0) == Leader(log.leader, log.epoch) != Leader(before, 0)


def test_what_a_log_has_kept_is_told_by_a_leader_of_no_earlier_epoch(scene: Scene) -> None:
    log, bounds = scene.kafka.requests(0), LogBounds(scene.cluster, scene.kafka.own.requests)
    scene.write(b"a", b"b")
    scene.elect(log)
    # The leader that is known ends below the records that were read under its successor.
    scene.write(b"c")
    assert scene.loop.run_until_complete(bounds.kept(0, log.epoch)) == 3
    log.cut(1, successor=3)
    scene.write(b"d", b"e", b"f")
    kept = [scene.loop.run_until_complete(bounds.kept(0, epoch)) for epoch in (-1, 0, 1, 2)]
    assert kept == [4, 1, 1, 4]


def test_a_log_in_which_no_epoch_is_as_late_has_kept_nothing(scene: Scene) -> None:
    """It was made anew, and no id tells it. Where one tells that it is the same topic, its leader is out of date."""
    bounds = LogBounds(scene.cluster, scene.kafka.own.requests)
    scene.write(b"a", b"b")
    with pytest.raises(KafkaTimeoutError):
        scene.loop.run_until_complete(bounds.kept(0, 5))
    with mock.patch.object(Cluster, "topic_id", return_value=b""):
        assert scene.loop.run_until_complete(bounds.kept(0, 5)) == 0


def test_a_door_does_not_pass_over_what_came_after_an_unclean_election(scene: Scene) -> None:
    """The log has grown beyond what was read of it before it was cut."""
    log, source = scene.kafka.requests(0), scene.source(0)
    scene.write(b"a", b"b", b"c")
    assert [record.key for record in scene.loop.run_until_complete(source.take(10))] == [b"a", b"b", b"c"]
    log.cut(1, successor=3)
    scene.write(b"d", b"e", b"f", b"g")
    with pytest.raises(CutError, match=r"has lost its records from offset 1 on, as in an unclean election, .* up to 3"):
        scene.loop.run_until_complete(source.take(10))
    # It is told again to a reader that comes later, by the epoch that was kept beside its offset.
    later = SourceLog(scene.cluster, log.topic, 0, 3, "later", source.epoch)
    with pytest.raises(CutError):
        scene.loop.run_until_complete(later.take(10))
    after = SourceLog(scene.cluster, log.topic, 0, 1, "after", source.epoch)
    assert [record.key for record in scene.loop.run_until_complete(after.take(10))] == [b"d", b"e", b"f", b"g"]


def test_an_end_stops_at_an_open_transaction_also_below_acknowledged_records(scene: Scene) -> None:
    """So nobody's open transaction holds up a takeover."""
    log, bounds = scene.kafka.requests(0), LogBounds(scene.cluster, scene.kafka.own.requests)
    log.append(Record(b"k", b"", transaction=scene.kafka.begin("somebody")), scene.kafka.now_ms)
    acknowledged = log.append(Record(b"k", b""), scene.kafka.now_ms)
    assert scene.loop.run_until_complete(bounds.end(0, above=acknowledged)) == 0


def test_a_watermark_lies_behind_an_open_transaction_too(scene: Scene) -> None:
    log, bounds = scene.kafka.requests(0), LogBounds(scene.cluster, scene.kafka.own.requests)
    log.append(Record(b"k", b"", transaction=scene.kafka.begin("client")), scene.kafka.now_ms)
    scene.write(b"a")
    assert scene.loop.run_until_complete(bounds.end(0)) == 0
    assert scene.loop.run_until_complete(bounds.watermark(0)) == 2


def test_seals_are_those_of_a_leader_that_has_all_acknowledged_records(scene: Scene) -> None:
    seals = SealLog(scene.cluster, scene.kafka.own.sealed)
    scene.seal(5)
    scene.elect(scene.kafka.sealed(0))
    acknowledged = scene.seal(6)
    scene.seal(7)
    assert [last_second_of(seal) for seal in scene.loop.run_until_complete(seals.seals(0))] == [5]
    assert [last_second_of(seal) for seal in scene.loop.run_until_complete(seals.seals(0, above=acknowledged))][
        -2:
    ] == [6, 7]


def test_a_question_that_gives_a_connection_up_ends_no_other(scene: Scene) -> None:
    """Two wait for a broker that is silent to open one, and the first of them has waited long enough."""
    scene.network.freeze(2)

    async def ask(after_s: float) -> object:
        await asyncio.sleep(after_s)
        return await scene.cluster.send(2, ListOffsets(scene.kafka.own.requests, [0], ListOffsets.END), lane="one")

    async def ask_both() -> list[object]:
        return await asyncio.gather(ask(0), ask(0.5), return_exceptions=True)

    first, second = scene.loop.run_until_complete(ask_both())
    assert isinstance(first, RequestTimedOutError)
    assert isinstance(second, KafkaConnectionError)


def test_an_end_is_proved_also_while_a_broker_is_away() -> None:
    """It might lead by now; so a record of our own proves that it does not."""
    with told() as story:
        a = story.start("a", 0)
        story.kafka.requests(0).leader = story.kafka.sealed(0).leader = 1
        story.network.freeze(3)
        story.until(12)
        assert story.world.loop.time() - (a.proved_s(0) or 0) < 4
        assert not a.problems()
        story.network.thaw(3)
        story.finish()


def test_a_leader_that_nobody_reaches_is_no_silence() -> None:
    """The one of before tells its old end each second, and all would look well."""
    with told(transaction_timeout_s=3) as story:
        a = story.start("a", 0)
        story.until(1.5)
        log = story.kafka.requests(0)
        story.kafka.sealed(0).leader = story.kafka.ticks(0).leader = 3
        log.leader = 1
        story.until(2.5)
        log.cut_off(1, 2)
        story.network.freeze(2)
        story.request(3)
        story.until(8)
        assert a.problems()
        story.network.thaw(2)
        log.out_of_date.clear()
        story.finish()
        assert [number for number, _ in story.fired()] == [0]


def test_a_wait_for_a_leader_pauses_between_questions(scene: Scene) -> None:
    """A partition may have none for as long as its only broker is away."""
    topic = scene.kafka.own.requests
    scene.cluster.learn(topic, 0, Leader(-1, 7))
    refresh = mock.AsyncMock(wraps=scene.cluster.refresh)
    with mock.patch.object(scene.cluster, "refresh", refresh), pytest.raises(KafkaTimeoutError, match="no leader is"):
        scene.loop.run_until_complete(LogBounds(scene.cluster, topic, 5.0).end(0))
    assert 2 < refresh.await_count <= 5 / 0.05


def test_a_question_that_one_broker_may_not_know_is_asked_of_two(scene: Scene) -> None:
    """One of them, whichever is asked first, may have been cut off."""
    for _ in NODES:
        assert len({id(answer) for answer in scene.loop.run_until_complete(scene.cluster.ask_two(Metadata([])))}) == 2


def test_ticks_go_on_when_their_leader_was_cut_off_and_others_have_another(scene: Scene) -> None:
    """The leader of before answers as ever, with no tick; and nothing else has a reason to ask for the leader."""
    log, came, loop = scene.kafka.requests(0), list[bytes | None](), scene.loop
    log.append(Record(b"1", b""), scene.kafka.now_ms)
    ticks = TickReader(scene.cluster, log.topic, lambda _, key, *__: came.append(key))

    async def live() -> None:
        reading = asyncio.create_task(ticks.run())
        ticks.follow([0])
        await asyncio.sleep(1)
        scene.elect(log)
        for second in range(2, 8):
            log.append(Record(b"%d" % second, b""), scene.kafka.now_ms)
            await asyncio.sleep(1)
        await cancel([reading])

    loop.run_until_complete(live())
    assert came == [b"%d" % second for second in range(1, 8)]


# --- another system's topic ------------------------------------------------------------------------------------------


async def keys_of(source: SourceLog, count: int) -> list[bytes | None]:
    """Return the keys of the next records."""
    records: list[SourceRecord] = []
    while len(records) < count:
        records += await source.take(count - len(records))
    return [record.key for record in records]


def test_a_source_is_read_from_the_next_leader_seconds_after_one_falls_silent(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    log, source = scene.kafka.requests(0), scene.source(0)
    scene.write(b"a", b"b", b"c")
    run = scene.loop.run_until_complete
    assert run(keys_of(source, 2)) == [b"a", b"b"]
    assert (source.position, source.stable, source.has_more) == (2, 3, True)
    scene.network.frozen[log.leader] = []
    log.leader = log.leader % 3 + 1
    scene.write(b"d")
    before_s = scene.loop.time()
    assert run(keys_of(source, 2)) == [b"c", b"d"]
    assert scene.loop.time() - before_s < 6
    assert len([each for each in caplog.records if "trying again" in each.getMessage()]) == 1
    assert (source.position, source.stable) == (4, 4)
    run(source.close())


def test_a_source_is_read_on_when_its_leader_was_cut_off_and_others_tell_of_the_next(scene: Scene) -> None:
    """The leader of before answers as ever, and has nothing new."""
    source = scene.source(0)
    scene.write(b"a")
    run = scene.loop.run_until_complete
    assert run(keys_of(source, 1)) == [b"a"]
    scene.elect(scene.kafka.requests(0))
    scene.write(b"b")
    assert run(source.take(10)) == []
    for _ in NODES:
        run(scene.cluster.refresh())
    assert run(keys_of(source, 1)) == [b"b"]
    run(source.close())


def test_a_source_goes_on_behind_records_that_were_deleted_before_it_read_them(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.write(*(b"%d" % number for number in range(10)))
    scene.kafka.requests(0).start = 7
    source = scene.source(3)
    assert scene.loop.run_until_complete(keys_of(source, 3)) == [b"7", b"8", b"9"]
    assert "timer-request partition 0: offsets 3 to 6 were deleted before they were read" in caplog.text
    scene.loop.run_until_complete(source.close())


def test_a_source_that_ends_before_the_last_read_record_is_not_read_anew(scene: Scene) -> None:
    """The broker that tells so may be cut off; from the first record on all would be passed on twice."""
    scene.write(b"a", b"b")
    scene.elect(scene.kafka.requests(0))
    scene.write(b"c", b"d")
    source, run = scene.source(4), scene.loop.run_until_complete
    with pytest.raises(
        OffsetOutOfRangeError, match="timer-request partition 0 has been read up to offset 4, and ends before that: its"
    ):
        run(source.take(10))
    # The next try, or one of the next, is of the leader.
    for _ in NODES:
        run(scene.cluster.refresh())
    source = scene.source(4)
    scene.write(b"e")
    assert run(keys_of(source, 1)) == [b"e"]
    run(source.close())
