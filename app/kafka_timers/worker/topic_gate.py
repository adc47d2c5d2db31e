"""The callback topics of one slice: which of them take its callbacks, and which refuse."""

from collections.abc import Callable, Iterable, Sequence

from aiokafka.errors import KafkaError

from kafka_timers.core.callbacks import Outgoing
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Request
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.worker.accumulators import Accumulator, accumulator_to


class TopicGate:
    """
    Judges each topic when the slice first needs it. A topic that takes callbacks then takes all of the slice.

    Attributes:
        open: the topics that take callbacks, with their open batches.
    """

    def __init__(self, targets: TopicLookup) -> None:
        self.open: dict[bytes, Accumulator] = {}
        self._targets = targets
        self._gone: dict[str, Reason] = {}

    @property
    def is_outdated(self) -> bool:
        """True if a topic that has refused requests, or that is or was unavailable in part, has another verdict now."""
        verdicts = self._targets.verdicts
        return any(verdicts.get(name) is not reason for name, reason in self._gone.items()) or any(
            getattr(verdicts.get(to.topic), "unavailable", None) != to.target.unavailable for to in self.open.values()
        )

    async def refused(self, topics: set[bytes]) -> dict[bytes, Reason]:
        """Return the reason for each of *topics* that takes no callbacks. All others are `open` afterwards."""
        known, refused = self._targets.verdicts, {}
        # Sorted, so that a seed of the simulation gives one history.
        new = {topic.decode(): topic for topic in sorted(topics - self.open.keys())}
        # All unknown topics are looked up at once, since there may be thousands.
        while unknown := new.keys() - known.keys():
            try:
                await self._targets.resolve(unknown)
            except KafkaError:
                raise
            except Exception as error:
                # The error says nothing about the requests, so none may be rejected for it.
                raise KafkaError(f"callback topics cannot be looked up: {error!r}") from error
        for name, topic in new.items():
            verdict = known[name]
            if isinstance(verdict, Reason):
                refused[topic] = self._gone[name] = verdict
            else:
                self.open[topic] = accumulator_to(name, verdict)
        return refused

    async def gone_in(self, parsed: Iterable[Request]) -> dict[int, tuple[bytes, Reason]]:
        """Return requests without tombstone whose topic takes no callbacks: by number, the topic and the reason."""
        topics = [b"" if request.tombstoneTopic else Outgoing.of(request).topic for request in parsed]
        try:
            refused = await self.refused(set(topics) - {b""})
        except UnicodeDecodeError:
            # Each request is then checked singly.
            return {}
        return {number: (topic, refused[topic]) for number, topic in enumerate(topics) if topic in refused}

    async def has_room(self, topics: set[bytes], largest: int, raw: Callable[[], Sequence[bytes]]) -> bool:
        """Tell whether all *topics* take callbacks for requests of *largest* bytes, or as large as those in *raw*."""
        if await self.refused(topics) or any(self.open[topic].target.unavailable for topic in topics):
            return False
        limit = min([self.open[topic].plain_bytes_max for topic in topics], default=0)
        return largest <= limit or max(map(len, raw()), default=0) <= limit

    def lacks_key(
        self, topics: Sequence[bytes], parsed: Sequence[Request], outgoing: Sequence[Outgoing] | None
    ) -> bool:
        """Tell whether a *parsed* request has no key although its topic, in *topics*, requires one. All are `open`."""
        strict = {topic for topic in set(topics) if self.open[topic].target.needs_key}
        if not strict:
            return False
        keys = [each.callBackKey or None for each in parsed] if outgoing is None else [each.key for each in outgoing]
        return any(topic in strict and key is None for topic, key in zip(topics, keys, strict=True))

    def refusal_of(self, requests: str) -> Reason | None:
        """Return why the topic *requests* takes none back; None if it does, or if nobody has asked."""
        refused = self._targets.verdicts.get(requests)
        # It is reserved for the service, which this is.
        if not isinstance(refused, Reason) or refused is Reason.TOPIC_RESERVED:
            return None
        self._gone[requests] = refused
        return refused

    def words_of(self, topics: Iterable[bytes]) -> str:
        """Return the broker's messages about *topics*."""
        words, names = self._targets.words, [topic.decode() for topic in topics]
        return "; ".join(words[name] for name in names if name in words)
