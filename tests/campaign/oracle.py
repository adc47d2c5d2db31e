"""
The expected callbacks, their times, and the expected answers, worked out from `timer-request` alone.

The rule is that of docs/wire.md, written here a second time on purpose. All records of a timer id lie in one partition.
Each one cancels or replaces the request before it if the broker has appended it before the moment that one asks for.

A record may be in time and still be answered TOO_LATE, if the worker could not read it before it fired the second, as
behind somebody's open transaction. Then the timer has to fire. This is counted as *overruled*, and is no mistake.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Self

from kafka_timers.v1.future_pb2 import Future
from kafka_timers.v1.reply_pb2 import Reply

__all__ = ["Answer", "Callback", "Expected", "Request", "Verdict", "expected", "judge"]

_IN_TIME = frozenset((Reply.CANCELLED, Reply.MOVED))
# So long after its second an id is forgotten.
_KNOWN_FOR_MS = 3_600_000
_ANEW = " anew"


@dataclass(frozen=True, slots=True)
class Request:
    """
    A record of `timer-request`.

    Attributes:
        second: 0 for a cancel.
        is_anew: whether a record that was destroyed had its offset before.
    """

    partition: int
    offset: int
    appended_ms: int
    second: int
    future: Future
    is_anew: bool = False

    @property
    def name(self) -> str:
        """Its name in callbacks and answers, with a mark if another record had that before."""
        return f"{self.partition}:{self.offset}{_ANEW if self.is_anew else ''}"

    @property
    def asked_ms(self) -> int:
        """The moment that it asks for, in UNIX milliseconds."""
        return self.second * 1000 + self.future.millis

    @property
    def due_ms(self) -> int:
        """When it can fire at the earliest, in UNIX milliseconds."""
        return max(self.asked_ms, self.appended_ms)


@dataclass(frozen=True, slots=True)
class Callback:
    """A committed record of a callback topic, with the time at which the broker appended it, and its partition."""

    request: str
    appended_ms: int
    key: str
    value: bytes
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A record of the reply topic."""

    asked: str
    outcome: int


@dataclass(slots=True)
class Expected:
    """
    The consequences of the log.

    Attributes:
        timers: all requests, by name.
        withdrawn: requests that need not fire, with the name of the record that has cancelled or replaced them in time,
            or taken their place; empty where somebody has destroyed them.
        outcomes: the answers that may be given to each question, by the question's name.
        instead: by request, the one that has taken its place, since its topic was unavailable.
    """

    timers: dict[str, Request] = field(default_factory=dict)
    withdrawn: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Collection[int]] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)

    def must_fire(self) -> set[str]:
        """Return the requests that nothing has withdrawn."""
        return self.timers.keys() - self.withdrawn.keys()

    def of(self, callback: Callback) -> Callback:
        """Return *callback* with the name of the one request that it can be of, where two had its name."""
        anew = self.timers.get(callback.request + _ANEW)
        if anew is None or callback.appended_ms < anew.appended_ms:
            return callback
        return replace(callback, request=anew.name)

    def destroyed(self, name: str) -> None:
        """Expect no callback and no answer of a record that somebody has destroyed; there may be some."""
        self.withdrawn.setdefault(name, "")
        self.outcomes.pop(name, None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    How a run was, in counts; lateness is that of the callbacks that came, from the moment they were due.

    Attributes:
        timers: requests that are no cancels.
        questions: records that must be answered.
        missing: timers that did not fire though they must.
        doubled: callbacks that came again.
        early: callbacks before their moment, even if brokers' clocks differ.
        strange: callbacks of no such request, or with another key or value.
        wrong: answers that contradict the log, each other, or the callbacks.
        unanswered: questions without any answer.
        overruled: records in time whose timer fired, as they were told.
        silence_s: the longest time in which some partition wrote no callback, from the fault on.
        skewed: callbacks before their moment, by the clock of a broker that is behind another one.
        skewed_max_ms: the most of that.
        destroyed: timers that did not fire, since somebody had destroyed their requests.
    """

    timers: int
    questions: int
    missing: int
    doubled: int
    early: int
    strange: int
    wrong: int
    unanswered: int
    overruled: int
    late_p50_s: float
    late_p99_s: float
    late_max_s: float
    silence_s: float
    skewed: int = 0
    skewed_max_ms: int = 0
    destroyed: int = 0

    def __add__(self, other: Self) -> Self:
        """Return both as one: counts are added, and of times the worse one stays."""
        mine, theirs = asdict(self), asdict(other)
        worse = {name for name in mine if name.endswith(("_s", "_ms"))}
        return replace(self, **{n: max(mine[n], theirs[n]) if n in worse else mine[n] + theirs[n] for n in mine})

    def faults(self) -> dict[str, int]:
        """Return the counts that must be 0, and are not."""
        must = ("missing", "doubled", "early", "strange", "wrong", "unanswered")
        return {name: count for name, count in asdict(self).items() if name in must and count}


def expected(requests: Iterable[Request]) -> Expected:
    """Return the expected callbacks and answers of *requests*, which come by offset within each partition."""
    told = Expected()
    # The last request of each id, until it is cancelled.
    last: dict[str, Request] = {}
    cancelled_by: dict[str, str] = {}
    # By the first request of a timer, the one that has taken its place last.
    aside: dict[str, str] = {}
    for request in requests:
        future = request.future
        if future.HasField("insteadOf"):
            first = future.insteadOf.request
            before = told.timers[aside.get(first, first)]
            # A cancel in time may have been read too late.
            told.withdrawn.setdefault(before.name, request.name)
            told.instead[before.name] = aside[first] = request.name
            told.timers[request.name] = request
            if not future.timerId or last.get(future.timerId) is before:
                last |= {future.timerId: request} if future.timerId else {}
            else:
                # A later request of the id stands.
                told.withdrawn[request.name] = request.name
            continue
        if not future.cancel:
            told.timers[request.name] = request
        if not future.timerId:
            continue
        before = last.get(future.timerId)
        outcome: int = Reply.UNKNOWN
        is_forgotten = False
        if before is not None:
            in_time = request.appended_ms < before.asked_ms
            if in_time:
                outcome = Reply.CANCELLED if future.cancel else Reply.MOVED
                told.withdrawn[before.name] = request.name
            else:
                outcome = Reply.TOO_LATE
                # Until it has fired it is known all the same, as where a clock is an hour ahead.
                is_forgotten = request.appended_ms >= before.second * 1000 + _KNOWN_FOR_MS
        elif future.cancel and future.timerId in cancelled_by:
            outcome = Reply.CANCELLED
        if future.replyTopic:
            told.outcomes[request.name] = {outcome, Reply.UNKNOWN} if is_forgotten else {outcome}
        if not future.cancel:
            last[future.timerId] = request
            cancelled_by.pop(future.timerId, None)
        elif outcome == Reply.CANCELLED:
            cancelled_by[future.timerId] = request.name
            last.pop(future.timerId, None)
    return told


def judge(
    told: Expected,
    callbacks: Sequence[Callback],
    answers: Iterable[Answer],
    fault_ms: int,
    end_ms: int,
    skew_ms: Callable[[int, int, int], int] = lambda *_: 0,
) -> Verdict:
    """
    Compare the callbacks and answers with the expected ones.

    Args:
        told: the result of `expected` for the log.
        callbacks: all that are committed, in any order.
        answers: all of the reply topic, in any order.
        fault_ms: when the fault began, in UNIX milliseconds.
        end_ms: when reading ended; a partition with missing timers has been silent until then.
        skew_ms: the milliseconds by which a callback may seem early, of the partition of its request, its own partition
            and the time of its append.
    """
    answered: defaultdict[str, set[int]] = defaultdict(set)
    for answer in answers:
        answered[answer.asked].add(answer.outcome)
    fired = Counter(callback.request for callback in callbacks)
    lates_s, before_ms = _lateness(told, callbacks)
    seeming = [
        ms
        for ms, request, callback in before_ms
        if ms <= skew_ms(request.partition, callback.partition, callback.appended_ms)
    ]
    wrong = overruled = 0
    must = told.must_fire()
    withdrew = {question: timer for timer, question in told.withdrawn.items()}
    for question, outcomes in told.outcomes.items():
        given = answered.get(question)
        timer = withdrew.get(question)
        times = 0
        while timer:
            times += fired[timer]
            timer = told.instead.get(timer)
        is_overruled = times > 0 and not _IN_TIME.isdisjoint(outcomes)
        overruled += is_overruled and given == {Reply.TOO_LATE}
        # Answers agree with the log, and with how often the withdrawn timer fired.
        wrong += given is not None and not given <= ({Reply.TOO_LATE} if is_overruled else set(outcomes))
    missing = {name for name in must if not fired[name]}
    return Verdict(
        timers=len(told.timers),
        questions=len(told.outcomes),
        missing=len(missing),
        doubled=sum(count - 1 for count in fired.values()),
        early=len(before_ms) - len(seeming),
        strange=len(strange_among(callbacks, told)),
        wrong=wrong,
        unanswered=sum(question not in answered for question in told.outcomes),
        overruled=overruled,
        late_p50_s=_quantile(lates_s, 0.5),
        late_p99_s=_quantile(lates_s, 0.99),
        late_max_s=_quantile(lates_s, 1),
        silence_s=_silence_s(callbacks, {name.split(":")[0] for name in missing}, fault_ms, end_ms),
        skewed=len(seeming),
        skewed_max_ms=max(seeming, default=0),
        destroyed=sum(not by and name in told.timers and not fired[name] for name, by in told.withdrawn.items()),
    )


def strange_among(callbacks: Iterable[Callback], told: Expected) -> list[Callback]:
    """Return those of *callbacks* that nobody asked for, or with another key or value."""
    return [each for each in callbacks if not _is_asked_for(each, told.timers.get(each.request))]


def _is_asked_for(callback: Callback, request: Request | None) -> bool:
    asked = request and (request.future.callBackKey, request.future.callBack)
    return asked == (callback.key, callback.value)


def _lateness(told: Expected, callbacks: Iterable[Callback]) -> tuple[list[float], list[tuple[int, Request, Callback]]]:
    """
    Return the lateness of the callbacks, ascending, and those that came before their moment, with by how many
    milliseconds.
    """
    lates_s: list[float] = []
    before: list[tuple[int, Request, Callback]] = []
    for callback in callbacks:
        request = told.timers.get(callback.request)
        if request is None or not _is_asked_for(callback, request):
            continue
        if callback.appended_ms < request.asked_ms:
            before.append((request.asked_ms - callback.appended_ms, request, callback))
        lates_s.append((callback.appended_ms - request.due_ms) / 1000)
    lates_s.sort()
    return lates_s, before


def _silence_s(callbacks: Iterable[Callback], dead: set[str], fault_ms: int, end_ms: int) -> float:
    came: defaultdict[str, list[int]] = defaultdict(list)
    for callback in callbacks:
        came[callback.request.split(":")[0]].append(callback.appended_ms)
    longest_ms = 0
    for partition in came.keys() | dead:
        moments = sorted([fault_ms, *(moment for moment in came[partition] if moment > fault_ms)])
        if partition in dead:
            moments.append(max(end_ms, moments[-1]))
        longest_ms = max([longest_ms, *(after - before for before, after in pairwise(moments))])
    return longest_ms / 1000


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)] if ascending else 0.0
