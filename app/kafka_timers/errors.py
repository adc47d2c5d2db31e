"""
The errors of kafka-timers: one class for each thing that a caller can do about it.

    KafkaTimersError
    ├── WhenError        the time of a timer is not a point in time that a timer can have
    ├── RequestError     a request cannot carry this topic, key, value, id, token or these headers
    ├── ScheduleError    a schedule has no times, or asks for something impossible; see `field`
    ├── WireError        bytes are not a Future or not a seal; carries topic, partition, offset
    ├── ChainError       a file of published seals cannot be read, or contradicts itself
    ├── PublishError     the broker did not take a request; `retriable` says whether to try again
    │   └── ClientStateError  the client is not started, was stopped, or belongs to another event loop
    ├── AnswerError      a cancel, a move or a create was accepted, but its answer did not come; it stands
    ├── BrokerError      no broker answers, or it refuses this process; `retriable` says whether to try again
    │   ├── LoginError   there is nothing to log in with for now
    │   └── BrokerVersionError  a broker does not know a request in any version that is used
    ├── QueryError       a worker does not take a question, or not from this caller
    ├── TopicsError      topics are missing or do not fit each other
    ├── SettingsError    a setting is out of bounds, or settings contradict each other or this machine
    ├── NewerFormatError a later version than this one has written seals or stores
    ├── WorkerError      a worker cannot go on, and only a fresh start helps
    ├── LakeError        Spark cannot start, or the lake's tables cannot be read or written
    └── KafkaSetupError  the embedded Kafka of `kafka-timers dev` cannot be started
"""

from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError


class KafkaTimersError(Exception):
    """Base of all errors that kafka-timers raises on purpose. The text is a sentence to act on."""


class WhenError(KafkaTimersError, ValueError):
    """The time of a timer must be an aware datetime or UNIX seconds."""


class RequestError(KafkaTimersError, ValueError):
    """A request cannot carry this topic, key, value, id, token or these headers."""


class ScheduleError(KafkaTimersError, ValueError):
    """
    A schedule has no times, or asks for something that no schedule can have.

    Attributes:
        field: field of the message `Schedule` that is wrong, such as cron.zone.
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


class ChainError(KafkaTimersError):
    """A file of published seals cannot be read, or contradicts itself."""


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
    A cancel, a move or a create was accepted, but its answer did not come. The request stands.

    Attributes:
        asked: partition:offset of the request on `timer-request`; None if the broker did not tell the offset.
    """

    def __init__(self, message: str, *, asked: str | None) -> None:
        super().__init__(message)
        self.asked = asked


class BrokerError(KafkaTimersError):
    """No broker answers at the bootstrap address, or it refuses this process."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class LoginError(BrokerError, KafkaConnectionError):  # type: ignore[misc]  # aiokafka has no types
    """The credentials for a broker cannot be had now. Kafka's client treats it as a failed connection."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=True)

    def __str__(self) -> str:
        return str(self.args[0])


class BrokerVersionError(BrokerError, IncompatibleBrokerVersion):  # type: ignore[misc]  # aiokafka has no types
    """A broker does not know a request, or none of the versions in which it is used: see the README for brokers."""

    def __str__(self) -> str:
        return str(self.args[0])


class QueryError(KafkaTimersError):
    """A worker does not take a question, or not from this caller. The text quotes the worker."""


class TopicsError(KafkaTimersError):
    """The service's topics are missing or do not fit each other. Run `kafka-timers topics check` for details."""


class SettingsError(KafkaTimersError):
    """A setting is out of its bounds, settings contradict each other, or this machine cannot do as they ask."""


class NewerFormatError(KafkaTimersError):
    """A later version of kafka-timers has written data that this one does not understand: upgrade this process."""


class WorkerError(KafkaTimersError):
    """A worker cannot go on; start it again."""


class LakeError(KafkaTimersError):
    """Spark cannot start, or the lake's tables are missing, are others, or cannot be read or written."""


class KafkaSetupError(KafkaTimersError):
    """The embedded Kafka cannot be started: no Java, no jars, or a port that is taken."""
