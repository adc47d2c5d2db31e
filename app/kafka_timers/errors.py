"""
What can go wrong, one class per thing that a caller can do about it.

    KafkaTimersError
    ├── WhenError        the time asked for is not a point in time that a timer can have
    ├── RequestError     topic, key, value, id, token or headers are not what a request can carry
    ├── ScheduleError    a schedule has no times, or asks for what no schedule can have; `field` says where
    ├── WireError        bytes are not a Future or not a seal; carries topic, partition, offset
    ├── PublishError     the broker did not take a request; `retriable` says whether to try again
    │   └── ClientStateError  the client is not started, was stopped, or belongs to another event loop
    ├── AnswerError      a cancel, a move or a create was accepted and its answer did not come; it stands
    ├── BrokerError      no broker answers, or it refuses what this process needs; `retriable` likewise
    │   └── LoginError   there is nothing to log in with for now
    ├── QueryError       a worker does not take a question, or not from this caller
    ├── TopicsError      topics are missing or do not fit each other
    ├── SettingsError    a setting is out of its bounds, or settings contradict each other or this machine
    ├── NewerFormatError seals or stores were written by a later version than this one
    ├── WorkerError      a worker cannot go on, and only a fresh start helps
    ├── LakeError        Spark cannot start, or the lake's tables cannot be read or written
    └── KafkaSetupError  the embedded Kafka of `kafka-timers dev` cannot be started
"""

from aiokafka.errors import KafkaConnectionError


class KafkaTimersError(Exception):
    """Base of everything that kafka-timers raises on purpose; its text is a sentence to act on."""


class WhenError(KafkaTimersError, ValueError):
    """The time of a timer must be an aware datetime or whole UNIX seconds."""


class RequestError(KafkaTimersError, ValueError):
    """Topic, key, value, id, token or headers are not what a request can carry."""


class ScheduleError(KafkaTimersError, ValueError):
    """
    A schedule has no times, or asks for what no schedule can have.

    Attributes:
        field: of the message `Schedule` that is wrong, such as cron.zone.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class WireError(KafkaTimersError):
    """Bytes on a topic of the service do not parse."""

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        where = f" ({topic} partition {partition} offset {offset})" if topic else ""
        super().__init__(message + where)
        self.topic, self.partition, self.offset = topic, partition, offset


class ProofError(KafkaTimersError):
    """A proof of what became of a timer does not hold, or is none."""


class PublishError(KafkaTimersError):
    """The broker did not take a request."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self.retriable = retriable


class ClientStateError(PublishError):
    """A client cannot be used here: it is not started, was stopped, or belongs to another event loop."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=False)


class AnswerError(KafkaTimersError):
    """
    A cancel, a move or a create was accepted, and its answer did not come; it stands.

    Attributes:
        asked: its partition:offset on `timer-request`, None when the broker did not tell the offset.
    """

    def __init__(self, message: str, *, asked: str | None) -> None:
        super().__init__(message)
        self.asked = asked


class BrokerError(KafkaTimersError):
    """No broker answers at the bootstrap address, or it refuses what this process needs."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class LoginError(BrokerError, KafkaConnectionError):  # type: ignore[misc]  # aiokafka tells no types
    """What a broker is to be logged in at with cannot be had now; to Kafka's client, the broker cannot be reached."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=True)

    def __str__(self) -> str:
        return str(self.args[0])


class QueryError(KafkaTimersError):
    """A worker does not take a question, or not from this caller; the text has its words."""


class TopicsError(KafkaTimersError):
    """The service's topics are missing or do not fit each other; `kafka-timers topics check` says which."""


class SettingsError(KafkaTimersError):
    """A setting is out of its bounds, settings contradict each other, or this machine cannot do what they ask for."""


class NewerFormatError(KafkaTimersError):
    """A later version of kafka-timers has written what this one does not understand: upgrade this process."""


class WorkerError(KafkaTimersError):
    """A worker cannot go on; start it again."""


class LakeError(KafkaTimersError):
    """Spark cannot start, or the lake's tables are not there, not these, or cannot be read or written."""


class KafkaSetupError(KafkaTimersError):
    """The embedded Kafka cannot be started: no Java, no jars, or a port that is taken."""
