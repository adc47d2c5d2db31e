"""
Finds out which callback topics can be written to, and how large their batches may be.

Nothing is sent to a topic before it was looked up: the producer would wait for an unknown topic for ever, and one
refused batch costs the transaction of a whole second.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

from aiokafka.errors import for_code

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.requests import settings_of
from kafka_timers.broker.topics import counted
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Target, topics_in
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Topics

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_MESSAGE = "max.message.bytes"
_CLEANUP = "cleanup.policy"
# Kafka's default, used where this service may not read a topic's settings.
_MAX_MESSAGE_BYTES = 1_048_588

_KEEP_S = 30.0
_KEEP_UNKNOWN_S = 5.0
_KEEP_REFUSED_S = 60.0


class TopicLookup:
    """
    Knowledge about callback topics.

    A writable topic is looked up again every 30 s, and a missing one every 5 s, so that a topic is used soon after its
    creation. After a refused write a topic is left alone for 60 s.

    Attributes:
        verdicts: by topic name, a `Target` or the reason for refusing.
        words: by topic name, the broker's message for a refused write.
    """

    def __init__(self, cluster: Cluster, topics: Topics, allowed: str, clock: Clock) -> None:
        self.verdicts: dict[str, Target | Reason] = {}
        self.words: dict[str, str] = {}
        self._until_s: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._cluster = cluster
        self._own = topics
        self._allowed = topics_in(allowed)
        self._clock = clock

    def want(self, names: Iterable[str]) -> None:
        """Look *names* up with the next `refresh`, so that they are known before they are due."""
        self._wanted.update(name for name in names if name not in self.verdicts)

    async def resolve(self, names: Collection[str]) -> None:
        """
        Look *names* up now, so that each has a verdict.

        Raises:
            aiokafka.errors.KafkaError: no broker answers.
        """
        ask = []
        # Sorted, so that a seed of the simulation gives one history.
        for name in sorted(names):
            if name in self._own or name.startswith("__"):
                self._judge(name, Reason.TOPIC_RESERVED, _KEEP_S)
            elif not _LEGAL.fullmatch(name):
                self._judge(name, Reason.TOPIC_UNKNOWN, _KEEP_UNKNOWN_S)
            elif not self._allowed.fullmatch(name):
                self._judge(name, Reason.TOPIC_FORBIDDEN, _KEEP_S)
            else:
                ask.append(name)
        for name, verdict in (await self.look_up(ask)).items():
            self._judge(name, verdict, _KEEP_S if isinstance(verdict, Target) else _KEEP_UNKNOWN_S)

    async def look_up(self, names: Collection[str]) -> dict[str, Target | Reason]:
        """
        Return the broker's answers about *names*, regardless of `allowed`.

        Raises:
            aiokafka.errors.KafkaError: no broker answers.
        """
        settings = await self._settings(names) if names else {}
        exist = [name for name, found in settings.items() if found is not Reason.TOPIC_UNKNOWN]
        partitions = await counted(self._cluster, exist) if exist else {}
        verdicts: dict[str, Target | Reason] = {}
        for name, found in settings.items():
            if name not in partitions:
                verdicts[name] = found if isinstance(found, Reason) else Reason.TOPIC_UNKNOWN
            elif isinstance(found, Reason):
                verdicts[name] = Target(partitions[name], _MAX_MESSAGE_BYTES)
            else:
                verdicts[name] = Target(partitions[name], *found)
        return verdicts

    def refuse(self, name: str, reason: Reason, words: str) -> None:
        """Note that the broker refused a write to *name*, with its message *words*."""
        self._judge(name, reason, _KEEP_REFUSED_S)
        self.words[name] = words

    def doubt(self) -> None:
        """Forget which topics are writable and their limits, so that each is looked up before its next use."""
        for name in [name for name, verdict in self.verdicts.items() if isinstance(verdict, Target)]:
            del self.verdicts[name], self._until_s[name]

    async def refresh(self) -> None:
        """
        Look up wanted topics, and writable ones that are due for it. Forget other verdicts that are old. Call this
        often.

        Raises:
            aiokafka.errors.KafkaError: no broker answers.
        """
        now_s = self._clock.elapsed_s()
        old = [name for name, until_s in self._until_s.items() if until_s <= now_s]
        writable = [name for name in old if isinstance(self.verdicts[name], Target)]
        for name in set(old).difference(writable):
            del self.verdicts[name], self._until_s[name]
            self.words.pop(name, None)
        wanted, self._wanted = self._wanted, set()
        await self.resolve(wanted.union(writable))

    def _judge(self, name: str, verdict: Target | Reason, keep_s: float) -> None:
        self.verdicts[name] = verdict
        self._until_s[name] = self._clock.elapsed_s() + keep_s

    async def _settings(self, names: Collection[str]) -> dict[str, tuple[int, bool] | Reason]:
        """
        Return, by topic, its batch limit in bytes and whether it needs keys, or the reason why it has no settings.
        """
        asks_for = [_MAX_MESSAGE, _CLEANUP]
        settings = _settings_in(await self._cluster.ask_any(settings_of(names, asks_for)))
        if missing := [name for name in names if settings[name] is Reason.TOPIC_UNKNOWN]:
            # A broker that was cut off from the others does not know new topics.
            for answer in await self._cluster.ask_two(settings_of(missing, asks_for)):
                known = _settings_in(answer)
                settings |= {name: found for name, found in known.items() if found is not Reason.TOPIC_UNKNOWN}
        return settings


def _settings_in(answer: Any) -> dict[str, tuple[int, bool] | Reason]:
    settings: dict[str, tuple[int, bool] | Reason] = {}
    for code, _, _, name, entries in answer.resources:
        if code == codes.TOPIC_AUTHORIZATION_FAILED:
            settings[name] = Reason.TOPIC_REFUSED
        elif code and for_code(code).retriable and code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            # The error says nothing about the topic, so its requests must not be refused.
            raise for_code(code)(f"{name} could not be looked up: {codes.name_of(code)}")
        elif code:
            settings[name] = Reason.TOPIC_UNKNOWN
        else:
            has = {entry[0]: entry[1] for entry in entries}
            batch_bytes_max = int(has.get(_MAX_MESSAGE, _MAX_MESSAGE_BYTES))
            settings[name] = batch_bytes_max, "compact" in has.get(_CLEANUP, "")
    return settings
