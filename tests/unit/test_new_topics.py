"""A topic that was made a moment ago is not known to all brokers at once, and its creator goes on to use it."""

from types import SimpleNamespace
from typing import Any, cast

from kafka_timers.broker import codes
from kafka_timers.broker.topics import _until_known

Row = tuple[Any, ...]


def told(*rows: Row) -> SimpleNamespace:
    """Return an answer to `Metadata`."""
    return SimpleNamespace(topics=[*rows])


def row(topic: str, *, code: int = 0, leaders: tuple[int, ...] = (0, 0)) -> Row:
    """Return the part of an answer about a topic; a leader is told of as the code of its partition."""
    return code, topic, bytes(16), False, [(each, number) for number, each in enumerate(leaders)]


class Brokers:
    """Give the answers of three brokers, one after the other."""

    def __init__(self, *answers: list[SimpleNamespace]) -> None:
        self.left = list(answers)

    async def ask_all(self, _: object) -> list[SimpleNamespace]:
        """Return the next answers."""
        return self.left.pop(0)


async def test_a_new_topic_is_waited_for_until_each_broker_knows_its_leaders() -> None:
    known = told(row("a"), row("b"))
    unknown = told(row("a"), row("b", code=codes.UNKNOWN_TOPIC_OR_PARTITION, leaders=()))
    leaderless = told(row("a"), row("b", leaders=(0, codes.LEADER_NOT_AVAILABLE)))
    brokers = Brokers(
        [known, unknown, known],
        [known, known, told(row("a"))],
        [leaderless, known, known],
        [known, known],
        [],
    )
    await _until_known(cast(Any, brokers), ["a", "b"])
    assert len(brokers.left) == 1
