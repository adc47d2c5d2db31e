"""
The checks when a history is over, by the records that readers of committed ones find on the topics.

The numbers are those of docs/design.md, section Promises.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from batches import digest_of_batches
from promises import repeated_of

from kafka_timers.core.sweep import is_of_a_sweep
from kafka_timers.core.wire import REQUEST_HEADER, Future, Reply, Sealed, last_second_of
from simulation.audit import (
    PromiseError,
    audit,
    check_proof,
    followers_of,
    is_in_time,
    overtaken_in,
    replaced_in,
    wish_of,
)
from simulation.clients import BEYOND, CALM, COMPACTED, NOWHERE, OWN, Stray, Wish
from simulation.kafka import Kafka
from simulation.log import Record


@dataclass(frozen=True, slots=True)
class Callback:
    """A callback or a reject of a partition's request; also where it was sent on to another partition."""

    offset: int
    topic: str
    partition: int
    record: Record
    is_reject: bool
    is_forwarded: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """
    The records on the topics about one partition of `timer-request`.

    Attributes:
        committed: all that readers of committed records get.
        records: those of them that ask for anything.
        sealed: values of the seals.
        is_cut: whether seals have been deleted while the service ran.
        overtaken: requests that were sent on from another partition, behind a later cancel; not among the *records*.
    """

    number: int
    committed: dict[int, Record]
    records: dict[int, Record]
    overtaken: dict[int, Record]
    seals: list[Sealed]
    sealed: list[bytes]
    is_cut: bool
    callbacks: list[Callback]
    replies: list[Reply]

    @property
    def visible(self) -> Counter[int]:
        """How many callbacks and rejects there are of each request."""
        return Counter(callback.offset for callback in self.callbacks)


def found_in(kafka: Kafka) -> list[Found]:
    """Read all topics."""
    partitions = range(kafka.topics[kafka.own.requests].partitions)
    callbacks: dict[int, list[Callback]] = {number: [] for number in partitions}
    replies: dict[int, list[Reply]] = {number: [] for number in partitions}
    gone = sent_on(kafka)
    for (number, offset), places in gone.items():
        for at, record in places:
            callbacks[number].append(Callback(offset, kafka.own.requests, at, record, True, True))
    for (topic, partition), log in kafka.logs.items():
        if topic in (kafka.own.requests, kafka.own.sealed, kafka.own.oscillator):
            continue
        for record in log.committed():
            headers = dict(record.headers)
            if topic == kafka.own.replies:
                reply = Reply.FromString(record.value or b"")
                for at, forwarded in gone.get(_parts(reply.asked), ()):
                    reply.asked = f"{at}:{forwarded.offset}"
                replies[_parts(reply.asked)[0]].append(reply)
            elif topic == kafka.own.rejected:
                number = int(headers["timer-rejected-partition"] or b"")
                offset = int(headers["timer-rejected-offset"] or b"")
                callbacks[number].append(Callback(offset, topic, partition, record, True))
            else:
                number, offset = _parts((headers[REQUEST_HEADER] or b"").decode())
                callbacks[number].append(Callback(offset, topic, partition, record, False))
    found = []
    for number in partitions:
        committed = {record.offset: record for record in kafka.requests(number).committed()}
        records = _asking(kafka, number)
        sealed = [record.value or b"" for record in kafka.sealed(number).committed()]
        seals = [Sealed.FromString(value) for value in sealed]
        behind = overtaken_in(records) | replaced_in(records)
        overtaken = {offset: records.pop(offset) for offset in behind}
        found.append(
            Found(
                number,
                committed,
                records,
                overtaken,
                seals,
                sealed,
                kafka.sealed(number).start > 0,
                callbacks[number],
                replies[number],
            )
        )
    return found


def _asking(kafka: Kafka, number: int) -> dict[int, Record]:
    """Return the committed records of a partition that ask for anything, by offset: those of a sweep do not."""
    return {each.offset: each for each in kafka.requests(number).committed() if not is_of_a_sweep(each)}


def sent_on(kafka: Kafka) -> dict[tuple[int, int], list[tuple[int, Record]]]:
    """
    Return where each record has gone that a worker has sent on, by where it lay: the partition, and the record there.

    From now on it is about its writer's wish.
    """
    gone: dict[tuple[int, int], list[tuple[int, Record]]] = {}
    partitions = kafka.topics[kafka.own.requests].partitions
    logs = {number: _asking(kafka, number) for number in range(partitions)}
    for number, records in logs.items():
        for record in records.values():
            if isinstance(record.about, Stray) or (isinstance(record.about, Wish) and record.about.first_ms is None):
                continue
            future = Future.FromString(record.value or b"")
            if future.HasField("insteadOf"):
                at, offset = _parts(future.insteadOf.request)
                wish, second = wish_of(logs[at][offset]), int(record.key or b"")
                record.about = replace(wish, second=second, millis=0, asks=False, instead_of=offset)
                continue
            first = future.forwarded
            stray = logs[first.fromPartition][first.fromOffset].about
            assert isinstance(stray, Stray)
            record.about = replace(stray.wish, first_ms=first.appendedMs)
            gone.setdefault((first.fromPartition, first.fromOffset), []).append((number, record))
    return gone


def _parts(name: str) -> tuple[int, int]:
    number, offset = name.split(":")
    return int(number), int(offset)


def left_in(kafka: Kafka) -> list[str]:
    """Return the requests that are not sealed yet, by partition."""
    # Sealed records can be read a moment later on their topics.
    sent_on(kafka)
    left = [f"a transaction is open on {topic}" for (topic, _), log in kafka.logs.items() if log.open]
    for number in range(kafka.topics[kafka.own.requests].partitions):
        records = _asking(kafka, number)
        sealed = list(kafka.sealed(number).committed())
        seal = Sealed.FromString(sealed[-1].value or b"") if sealed else Sealed()
        if not records:
            continue
        if seal.unsent:
            left.append(f"partition {number}: {len(seal.unsent)} answers are not sent")
        last_ms = max(max(wish_of(record).due_ms, record.timestamp // 1000 * 1000) for record in records.values())
        fence = max(records) + 1
        if seal.HasField("through") or seal.end_ms <= last_ms or seal.fence < fence:
            of = "slice" if seal.HasField("through") else "seal"
            left.append(
                f"partition {number}: {last_ms} at {fence}, the last {of} is before {seal.end_ms} at {seal.fence}"
            )
    return left


def check(found: Found) -> None:
    """
    Check the promises about one partition, once everything that was asked for is sealed.

    Raises:
        PromiseError: one does not hold.
    """
    records, visible = found.records, found.visible
    followers = followers_of(records)
    for offset, record in records.items():
        wish = wish_of(record)
        if wish.is_cancel:
            continue
        taken = offset in followers and is_in_time(record, records[followers[offset]])
        if not visible[offset] and not taken:
            raise PromiseError(f"P1: #{offset} for {wish.second} is lost")
        if visible[offset] > 1:
            raise PromiseError(f"P2: #{offset} for {wish.second} is visible {visible[offset]} times")
    check_callbacks(found)
    sent_on = sum(seal.forwarded for seal in found.seals)
    if sent_on != sum(callback.is_forwarded for callback in found.callbacks):
        raise PromiseError(f"P8: the seals tell of {sent_on} records that were sent on")
    check_set_aside(found)
    check_batches(found)
    check_proof(found.number, list(found.committed.values()), found.sealed, is_cut=found.is_cut)
    rejected = frozenset(each.offset for each in found.callbacks if each.is_reject)
    done_by = audit(found.number, records, found.seals, rejected, repeated_of(found.committed.values()))
    for offset, record in records.items():
        if wish_of(record).is_cancel:
            continue
        if offset not in done_by:
            raise PromiseError(f"P8: the seals do not say of #{offset} that it is done")
        if done_by[offset] != bool(visible[offset]):
            what = "did not fire" if done_by[offset] else "fired, though it was taken back"
            raise PromiseError(f"P5: #{offset} {what}")
    check_answers(found)


def check_readable(found: Found, readable_ms: Callable[[int], int]) -> None:
    """
    Check that no timer fires whose next record could be read before the timer was due, whatever the seals say (P5).

    Args:
        readable_ms: returns the moment from which on a record can be read.
    """
    for of, by in followers_of(found.records).items():
        wish = wish_of(found.records[of])
        if found.visible[of] and not wish.is_refused and readable_ms(by) < wish.due_ms:
            raise PromiseError(f"P5: #{of} for {wish.due_ms} fired, though #{by} could be read at {readable_ms(by)}")


def check_callbacks(found: Found) -> None:
    """Check that callbacks are as requested (P7), not early (P3), and in order (P6)."""
    latest: dict[tuple[str, int, bytes | None, int, int], int] = {}
    for callback in found.callbacks:
        record = found.records.get(callback.offset)
        if record is None or wish_of(record).is_cancel:
            raise PromiseError(f"P7: {callback} is not of what was asked for")
        wish = wish_of(record)
        if callback.is_reject:
            if not wish.is_refused and not _may_be_rejected(wish):
                raise PromiseError(f"P7: #{callback.offset} was rejected, though nothing is wrong with it")
            continue
        if wish.is_refused or wish.topic in (NOWHERE, OWN) or wish.partition_of(1) == BEYOND:
            raise PromiseError(f"P10: #{callback.offset} fired, though it is to be refused")
        written = callback.topic, callback.record.key, callback.record.value
        partition = wish.partition_of(2 if wish.topic == CALM else 1)
        if written != (wish.topic, wish.key, wish.payload) or partition not in (None, callback.partition):
            raise PromiseError(f"P7: {callback} is not what #{callback.offset} has asked for")
        if callback.record.timestamp < wish.due_ms:
            raise PromiseError(f"P3: #{callback.offset} for {wish.due_ms} fired at {callback.record.timestamp}")
        at = callback.topic, callback.partition, callback.record.key, wish.second, wish.millis
        if latest.get(at, -1) > callback.offset:
            raise PromiseError(f"P6: #{callback.offset} for {at[3:]} fired after #{latest[at]}")
        latest[at] = callback.offset


def check_batches(found: Found) -> None:
    """Check that the batches that seals name are what readers find, byte for byte and in order (P8)."""
    if found.is_cut:
        return
    came: defaultdict[tuple[str, int], deque[Record]] = defaultdict(deque)
    for callback in found.callbacks:
        if not callback.is_reject:
            came[callback.topic, callback.partition].append(callback.record)
    for seal in found.seals:
        for sent in seal.sent:
            batches = []
            for partition, count in zip(sent.partitions, sent.records, strict=True):
                records = [came[sent.topic, partition].popleft() for _ in range(count) if came[sent.topic, partition]]
                batches.append([(each.key, each.value, each.headers) for each in records])
            if sent.sha256 != digest_of_batches(batches):
                raise PromiseError(f"P8: {sent.topic} has not what was sent with the seal of {seal.end_ms}")
    if any(came.values()):
        raise PromiseError(f"P8: callbacks of partition {found.number} came with no seal")


def check_set_aside(found: Found) -> None:
    """Check that another request has taken the place of each that was rejected since its topic was unavailable (P1)."""
    aside: Counter[int] = Counter()
    for callback in found.callbacks:
        if callback.is_reject and dict(callback.record.headers).get("timer-rejected-reason") == b"topic-unavailable":
            wish = wish_of(found.records[callback.offset])
            aside[callback.offset if wish.instead_of is None else wish.instead_of] += 1
    wishes = [wish_of(record) for record in (found.records | found.overtaken).values()]
    if aside != Counter(wish.instead_of for wish in wishes if wish.instead_of is not None):
        raise PromiseError(f"P1: another request takes the place of {aside}, but not always")


def _may_be_rejected(wish: Wish) -> bool:
    if wish.partition_of(1) == BEYOND:
        return True
    return wish.topic != CALM and (wish.topic != COMPACTED or wish.key is None)


def check_answers(found: Found) -> None:
    """Check that each question was answered, and truly (P4)."""
    records, visible = found.records, found.visible
    followers = followers_of(records)
    said: dict[int, set[Reply.Outcome]] = {}
    for reply in found.replies:
        said.setdefault(_parts(reply.asked)[1], set()).add(reply.outcome)
    before: dict[bytes, int] = {}
    cancelled: set[int] = set()
    for offset, record in found.overtaken.items():
        if said.get(offset, set()) != ({Reply.IGNORED} if wish_of(record).asks else set()):
            raise PromiseError(f"P4: #{offset}, which a cancel has overtaken, was answered {said.get(offset)}")
    for offset, record in records.items():
        wish = wish_of(record)
        if not wish.timer_id:
            continue
        of = before.get(wish.timer_id)
        true = _true_of(offset, of, records, visible, followers, cancelled)
        if not wish.is_cancel:
            before[wish.timer_id] = offset
        if wish.asks and not said.get(offset):
            raise PromiseError(f"P4: #{offset} was not answered")
        if not said.get(offset, set()) <= true:
            names = [Reply.Outcome.Name(outcome) for outcome in sorted(said[offset])]
            raise PromiseError(f"P4: #{offset} was answered {names} about #{of}, which fired {visible[of or 0]} times")


def _true_of(
    offset: int,
    of: int | None,
    records: Mapping[int, Record],
    visible: Mapping[int, int],
    followers: Mapping[int, int],
    cancelled: set[int],
) -> set[Reply.Outcome]:
    """Return the answers that are true of the record at *offset*, whose id has the request *of* before it."""
    is_cancel = wish_of(records[offset]).is_cancel
    if of is None:
        return {Reply.UNKNOWN}
    if visible[of]:
        first = followers[of]
        # An owner that reads the log again takes the first one for in time, if it only became readable too late.
        is_unsure = first != offset and is_in_time(records[of], records[first])
        return {Reply.TOO_LATE, Reply.UNKNOWN} if is_unsure else {Reply.TOO_LATE}
    if of in cancelled:
        return {Reply.CANCELLED, Reply.UNKNOWN} if is_cancel else {Reply.UNKNOWN}
    cancelled.add(of)
    return {Reply.CANCELLED if is_cancel else Reply.MOVED}


def check_fences(found: Found, stable_at: Mapping[int, int], late_s: int) -> None:
    """
    Check that requests accepted before a tick fire in its second, or soon after.

    Args:
        found: on the topics.
        stable_at: the end of the readable records at each tick, by its second.
        late_s: how many seconds later it may fire.

    Raises:
        PromiseError: it did not.
    """
    for seal in found.seals:
        stable = stable_at.get(last_second_of(seal) - late_s, 0)
        if seal.fence < stable:
            raise PromiseError(
                f"{seal.end_ms} was scanned at {seal.fence}, {stable} was read {late_s} s before its tick"
            )
