"""
Finds out which callback topics can be written to, and how large their batches may be.

Nothing is sent to a topic before it was looked up: the producer would wait for an unknown topic for ever, and one
refused batch costs the transaction of a whole second.

A partition without a leader, or with fewer replicas in sync than the topic demands, may get well within seconds. So it
is waited for, as long as in `codes.UNAVAILABLE_AFTER_S`, and then counts as unavailable until it is well. The time
counts from when its broker was first seen to be away, so that one broker costs this time once, whatever it has.
"""

import asyncio
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aiokafka.errors import for_code

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.requests import IN_SYNC_MIN, settings_of
from kafka_timers.broker.topics import lacking, standing
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Lack, Target, topics_in
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Topics

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_MESSAGE = "max.message.bytes"
_CLEANUP = "cleanup.policy"
# Kafka's default, used where this service may not read a topic's settings.
_MAX_MESSAGE_BYTES = 1_048_588

KEEP_S = 30.0
KEEP_UNKNOWN_S = 5.0
_KEEP_REFUSED_S = 60.0
_KEEP_UNAVAILABLE_S = 2.0
# So long after a leader has said that it lacks replicas, no broker is believed that it has enough.
_BELIEVED_AFTER_S = 10.0
_LOOK_AGAIN_S = 0.25


class _Settings(NamedTuple):
    """Settings of a topic; by default, those of Kafka."""

    batch_bytes_max: int = _MAX_MESSAGE_BYTES
    needs_key: bool = False
    in_sync_min: int = 1


class TopicLookup:
    """
    Knowledge about callback topics.

    A writable topic is looked up again every 30 s, and a missing one every 5 s, so that a topic is used soon after its
    creation. After a refused write a topic is left alone for 60 s. One that is unavailable in part is looked up again
    every 2 s.

    Attributes:
        verdicts: by topic name, a `Target` or the reason for refusing.
        words: by topic name, the broker's message for a refused write, or what its unavailable partitions lack.
    """

    def __init__(self, cluster: Cluster, topics: Topics, allowed: str, clock: Clock) -> None:
        self.verdicts: dict[str, Target | Reason] = {}
        self.words: dict[str, str] = {}
        self._until_s: dict[str, float] = {}
        self._wanted: set[str] = set()
        # Since when brokers were seen to be away, and when last.
        self._away_s: dict[int, tuple[float, float]] = {}
        # By topic and partition, until when it is taken for unavailable whatever brokers tell.
        self._aside_until_s: dict[tuple[str, int], float] = {}
        self._cluster = cluster
        self._own = topics
        self._allowed = topics_in(allowed)
        self._clock = clock

    def want(self, names: Iterable[str]) -> None:
        """Look *names* up with the next `refresh`, so that they are known before they are due."""
        self._wanted.update(name for name in names if name not in self.verdicts)

    async def resolve(self, names: Collection[str]) -> None:
        """Look *names* up now, so that each has a verdict. Partitions that may soon be well are waited for."""
        while names := await self._resolve(names):  # noqa: ASYNC110  # the broker tells nobody
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _resolve(self, names: Collection[str]) -> list[str]:
        """Look *names* up, and return those without a verdict, since some of their partitions may soon be well."""
        ask = []
        # Sorted, so that a seed of the simulation gives one history.
        for name in sorted(names):
            if name in self._own or name.startswith("__"):
                self._judge(name, Reason.TOPIC_RESERVED, KEEP_S)
            elif not _LEGAL.fullmatch(name):
                self._judge(name, Reason.TOPIC_UNKNOWN, KEEP_UNKNOWN_S)
            elif not self._allowed.fullmatch(name):
                self._judge(name, Reason.TOPIC_FORBIDDEN, KEEP_S)
            else:
                ask.append(name)
        unsettled = []
        for name, verdict in (await self.look_up(ask)).items():
            if not isinstance(verdict, Target):
                self._judge(name, verdict, KEEP_UNKNOWN_S)
            elif (target := self._aged(name, verdict)) is not None:
                self._judge(name, target, _KEEP_UNAVAILABLE_S if target.unavailable else KEEP_S)
            else:
                self.verdicts.pop(name, None)
                self._until_s.pop(name, None)
                unsettled.append(name)
        return unsettled

    def _aged(self, name: str, found: Target) -> Target | None:
        """Return *found* with the partitions that count as unavailable; None if some of them may soon be well."""
        now_s, lacks, waits = self._clock.elapsed_s(), dict(found.unavailable), False
        for number in range(found.partitions):
            is_aside = self._aside_until_s.get((name, number), now_s) > now_s
            lack = lacks.get(number)
            if is_aside and lack is None:
                lack = lacks[number] = Lack(codes.NOT_ENOUGH_REPLICAS, ())
            if lack is None:
                continue
            since_s = -math.inf if is_aside else now_s
            for node in lack.away:
                first_s, last_s = self._away_s.get(node, (now_s, now_s))
                since_s = min(since_s, first_s if now_s - last_s < _BELIEVED_AFTER_S else now_s)
            self._away_s |= dict.fromkeys(lack.away, (since_s, now_s))
            waits = waits or now_s - since_s < codes.UNAVAILABLE_AFTER_S[lack.error]
        if waits:
            return None
        self.words.pop(name, None)
        if lacks:
            self.words[name] = "; ".join(f"partition {at}: {_in_words(lack)}" for at, lack in sorted(lacks.items()))
        return replace(found, unavailable=lacks)

    async def look_up(self, names: Collection[str]) -> dict[str, Target | Reason]:
        """Return the broker's answers about *names*, regardless of `allowed`."""
        settings = await self._settings(names) if names else {}
        exist = [name for name, found in settings.items() if found is not Reason.TOPIC_UNKNOWN]
        partitions = await standing(self._cluster, exist) if exist else {}
        verdicts: dict[str, Target | Reason] = {}
        for name, found in settings.items():
            if name not in partitions:
                verdicts[name] = found if isinstance(found, Reason) else Reason.TOPIC_UNKNOWN
                continue
            batch_bytes_max, needs_key, in_sync_min = _Settings() if isinstance(found, Reason) else found
            lacks = lacking(partitions[name], in_sync_min)
            verdicts[name] = Target(len(partitions[name]), batch_bytes_max, needs_key, lacks)
        return verdicts

    def refuse(self, name: str, reason: Reason, words: str) -> None:
        """Note that the broker refused a write to *name*, with its message *words*."""
        self._judge(name, reason, _KEEP_REFUSED_S)
        self.words[name] = words

    def set_aside(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Note that *partitions*, by topic and number, were unavailable for so long that nothing waits for them."""
        now_s = self._clock.elapsed_s()
        kept = {at: until_s for at, until_s in self._aside_until_s.items() if until_s > now_s}
        self._aside_until_s = kept | dict.fromkeys(partitions, now_s + _BELIEVED_AFTER_S)

    def unavailable(self) -> dict[str, Mapping[int, Lack]]:
        """Return, by topic name, what its unavailable partitions lack."""
        return {
            name: verdict.unavailable
            for name, verdict in self.verdicts.items()
            if isinstance(verdict, Target) and verdict.unavailable
        }

    def doubt(self) -> None:
        """Forget which topics are writable and their limits, so that each is looked up soon, or before its next use."""
        for name in [name for name, verdict in self.verdicts.items() if isinstance(verdict, Target)]:
            del self.verdicts[name], self._until_s[name]
            self._wanted.add(name)

    async def refresh(self) -> None:
        """
        Look up wanted topics, and writable ones that are due for it. Forget other verdicts that are old. Call this
        often.
        """
        now_s = self._clock.elapsed_s()
        old = [name for name, until_s in self._until_s.items() if until_s <= now_s]
        writable = [name for name in old if isinstance(self.verdicts[name], Target)]
        for name in set(old).difference(writable):
            del self.verdicts[name], self._until_s[name]
            self.words.pop(name, None)
        wanted, self._wanted = self._wanted, set()
        self._wanted.update(await self._resolve(wanted.union(writable)))

    def _judge(self, name: str, verdict: Target | Reason, keep_s: float) -> None:
        self.verdicts[name] = verdict
        self._until_s[name] = self._clock.elapsed_s() + keep_s

    async def _settings(self, names: Collection[str]) -> dict[str, _Settings | Reason]:
        """Return, by topic, its settings, or the reason why it has none."""
        asks_for = [_MAX_MESSAGE, _CLEANUP, IN_SYNC_MIN]
        settings = _settings_in(await self._cluster.ask_any(settings_of(names, asks_for)))
        if missing := [name for name in names if settings[name] is Reason.TOPIC_UNKNOWN]:
            # A broker that was cut off from the others does not know new topics.
            for answer in await self._cluster.ask_two(settings_of(missing, asks_for)):
                known = _settings_in(answer)
                settings |= {name: found for name, found in known.items() if found is not Reason.TOPIC_UNKNOWN}
        return settings


def _in_words(lack: Lack) -> str:
    away = f", brokers {', '.join(map(str, lack.away))} are away or behind" if lack.away else ""
    return codes.name_of(lack.error) + away


def _settings_in(answer: Any) -> dict[str, _Settings | Reason]:
    settings: dict[str, _Settings | Reason] = {}
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
            batch_bytes_max, in_sync_min = int(has.get(_MAX_MESSAGE, _MAX_MESSAGE_BYTES)), int(has.get(IN_SYNC_MIN, 1))
            settings[name] = _Settings(batch_bytes_max, "compact" in has.get(_CLEANUP, ""), in_sync_min)
    return settings
