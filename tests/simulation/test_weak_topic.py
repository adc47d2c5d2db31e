"""Told stories: a callback topic that lacks replicas in sync, whose transactions do not end."""

from unittest import mock

from kafka_timers.worker.sender import KafkaSender
from simulation.assembly import Process
from simulation.clients import MOODY
from simulation.told import Story, told


def _rejected(story: Story) -> list[str]:
    """Return the reason of each record on `timer-rejected`."""
    records = story.kafka.logs[story.kafka.own.rejected, 0].committed()
    return [(dict(record.headers)["timer-rejected-reason"] or b"").decode() for record in records]


def _fails_at(story: Story, moment_s: float, until_s: float) -> None:
    """Have the moody topic lack replicas in between."""
    topic, loop = story.kafka.topics[MOODY], story.world.loop
    loop.outside(moment_s - loop.time(), setattr, topic, "is_short", True)
    loop.outside(until_s - loop.time(), setattr, topic, "is_short", False)


def test_a_topic_that_lacks_replicas_holds_up_no_timer_of_another_one() -> None:
    """Its own timer fires once it is well."""
    with told() as story:
        story.start("a", 0)
        story.request(5, topic=MOODY)
        for second in range(5, 20):
            story.request(second)
        _fails_at(story, 4, 30)
        story.until(20)
        assert [at for _, at in story.fired()][6:] == [float(second) for second in range(11, 20)]
        assert set(_rejected(story)) == {"topic-unavailable"}
        story.until(60)
        story.finish()
        [again] = [at for offset, at in story.fired() if offset >= 16]
        assert 30 <= again < 50


def test_a_topic_that_was_seen_to_lack_replicas_holds_up_nothing() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(6, topic=MOODY)
        story.request(6)
        _fails_at(story, 0.5, 30)
        # The worker looks the topic up when it reads the request.
        story.until(6.1)
        assert story.fired() == [(1, 6.0)]
        story.until(60)
        story.finish()


def _hangs(story: Story) -> Process:
    """Return an owner that has retired an id at 8 s; the topic is well again at 60 s."""
    owner = story.start("a", 0)
    story.request(5, topic=MOODY)
    _fails_at(story, 4, 60)
    story.until(9)
    assert story.world.group.members[0].problems() == []
    return owner


def test_the_next_owner_goes_on_while_an_id_of_the_one_before_hangs() -> None:
    with told() as story:
        a = _hangs(story)
        a.give_up()
        story.start("b", 0)
        story.request(20)
        story.until(21)
        assert [at for _, at in story.fired()] == [20.0]
        story.until(80)
        story.finish()


def test_a_paused_owner_repeats_nothing_with_the_id_that_hung() -> None:
    """The topic gets well, so the id could be used again; its owner has retired it."""
    with told() as story:
        a = _hangs(story)
        story.request(62)
        story.until(61.5)
        story.world.loop.pause(a.name)
        story.start("b", 0)
        story.until(70)
        story.world.loop.resume(a.name)
        story.until(75)
        story.world.group.members.remove(a)
        a.give_up()
        story.finish()


def test_an_id_that_no_seal_has_retired_is_waited_for() -> None:
    """Its owner dies before it can say that it does not use it any more."""
    with told() as story:
        a = story.start("a", 0)
        story.request(5, topic=MOODY)
        story.request(6)
        _fails_at(story, 4, 40)
        story.until(5.5)
        story.world.group.kill(a, for_s=0.5)
        story.until(7)
        [b] = story.world.group.members
        b.own([0])
        story.until(35)
        assert story.fired() == []
        [problem] = b.problems()
        assert "does not end" in problem
        story.until(60)
        story.finish()
        assert len(story.fired()) == 2


def test_an_id_comes_back_once_the_topic_is_well() -> None:
    with told() as story:
        _hangs(story)
        used = set()
        begin = KafkaSender.begin

        async def noted(sender: KafkaSender) -> None:
            used.add(sender._usable[0])
            await begin(sender)

        story.until(80)
        with mock.patch.object(KafkaSender, "begin", noted):
            story.until(90)
        assert used == {0, 1}
        story.finish()
