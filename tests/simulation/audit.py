"""
The checks of requests against seals, by the words of `sealed.proto` and not by the code of the worker.

So it is also P12: under any owners, the fired timers follow from the request log and the fences in the seals.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from itertools import chain

import xxhash
from promises import fired_digest, lies_at

from kafka_timers.core.changes import Swept
from kafka_timers.core.sweep import sweeps_in
from kafka_timers.core.wire import Sealed
from simulation.clients import Stray, Wish
from simulation.log import Record


class PromiseError(AssertionError):
    """A promise does not hold; the text says which."""


def wish_of(record: Record) -> Wish:
    """Return the wish of *record* to the partition that it lies in; that of a stray one is to be sent on."""
    if isinstance(record.about, Stray):
        return Wish(is_refused=True)
    assert isinstance(record.about, Wish)
    return record.about


def overtaken_in(records: Mapping[int, Record]) -> set[int]:
    """Return the offsets of requests that were sent on behind a later cancel."""
    overtaken: set[int] = set()
    cancelled_ms: dict[bytes, int] = {}
    for offset, record in records.items():
        wish = wish_of(record)
        if wish.is_cancel:
            cancelled_ms[wish.timer_id] = record.timestamp if wish.first_ms is None else wish.first_ms
        elif wish.first_ms is not None and wish.first_ms < cancelled_ms.get(wish.timer_id, 0):
            overtaken.add(offset)
    return overtaken


def replaced_in(records: Mapping[int, Record]) -> set[int]:
    """Return the offsets of requests in place of another one that came behind a later request of their id."""
    replaced: set[int] = set()
    last: dict[bytes, int] = {}
    for offset, record in records.items():
        wish = wish_of(record)
        if not wish.timer_id or wish.is_cancel:
            continue
        first = wish.instead_of
        if first is not None and last[wish.timer_id] != first:
            replaced.add(offset)
        else:
            # Of one that takes the place of another, the first request counts.
            last[wish.timer_id] = offset if first is None else first
    return replaced


def is_in_time(record: Record, by: Record) -> bool:
    """Tell whether *by* was appended before an earlier *record* is due."""
    return by.timestamp < wish_of(record).due_ms


def followers_of(records: Mapping[int, Record]) -> dict[int, int]:
    """Return the offset of the first record after each request that has its timer id."""
    followers: dict[int, int] = {}
    last: dict[bytes, int] = {}
    for offset, record in records.items():
        wish = wish_of(record)
        if not wish.timer_id:
            continue
        if wish.timer_id in last:
            followers.setdefault(last[wish.timer_id], offset)
        if not wish.is_cancel:
            last[wish.timer_id] = offset
    return followers


def check_proof(number: int, records: Sequence[Record], seals: Sequence[bytes], *, is_cut: bool) -> None:
    """
    Check the counts of read records in seals, and their links to each other.

    Args:
        number: of the partition.
        records: all committed ones of its request log.
        seals: values of the committed records of `timer-sealed`.
        is_cut: whether some of them have been deleted while the service ran.

    Raises:
        PromiseError: P8, a seal miscounts the records read below its fence, or names another seal as the one before it.
    """
    before = b""
    for value in seals:
        seal = Sealed.FromString(value)
        if seal.previous != before and not (is_cut and not seal.previous):
            raise PromiseError(f"P8: the seal of {seal.end_ms} does not follow the one before it")
        before = sha256(value).digest()
        if not seal.HasField("read_from"):
            raise PromiseError(f"P8: the seal of {seal.end_ms} does not tell what was read")
        read = [each for each in records if seal.read_from <= each.offset < seal.fence]
        cancels = [each for each in read if isinstance(each.about, Wish) and each.about.is_cancel]
        for name, told, meant in (
            ("all", (seal.near, seal.far, seal.cancels), read),
            ("cancels", [seal.cancels], cancels),
        ):
            said = sum(each.count for each in told), sum(each.digest for each in told) % 2**64
            if said != (len(meant), sum(_counts_by(number, each) for each in meant) % 2**64):
                raise PromiseError(
                    f"P8: of {name} below {seal.fence} that were read the seal of {seal.end_ms} tells {said}"
                )


def _counts_by(number: int, record: Record) -> int:
    """Return the hash of a record as sums.py tells it in words: each part with the hash of those before as its seed."""
    lacks = (record.key is None) << 32 | (record.value is None) << 33
    numbers = [each.to_bytes(8, "little") for each in (number | lacks, record.offset, record.timestamp)]
    headers = [(name.encode(), value or b"", bytes([value is None, 0, 0, 0])) for name, value in record.headers]
    hashed = 42
    for part in (*numbers, record.key, record.value, *chain.from_iterable(headers)):
        hashed = hashed if part is None else xxhash.xxh64(part, hashed).intdigest()
    return hashed


def audit(
    number: int,
    records: Mapping[int, Record],
    seals: Sequence[Sealed],
    rejected: frozenset[int],
    repeated: Mapping[int, Collection[int]],
) -> dict[int, bool]:
    """
    Work out the outcome of each request of a partition from requests and seals alone.

    Args:
        number: of the partition.
        records: committed ones by offset, cancels among them.
        seals: in their order.
        rejected: offsets of the requests that went to `timer-rejected`.
        repeated: by the begin of a sweep, the requests that it repeats.

    Returns:
        Offset of a request that is done → whether it fired or was rejected, rather than taken back.

    Raises:
        PromiseError: P8, a seal contradicts the requests or the seals before it.
    """
    takers = {of: by for of, by in followers_of(records).items() if is_in_time(records[of], records[by])}
    done_by: dict[int, bool] = {}
    waiting = {offset: wish for offset, record in records.items() if not (wish := wish_of(record)).is_cancel}
    end_ms, fence = 1000, 0
    scan: tuple[int, int] | None = None
    sweeps: Sequence[Swept] = ()
    for index, seal in enumerate(seals):
        # A brief seal leaves them out.
        sweeps = sweeps_in(seal) or sweeps
        if seal.first_ms != end_ms or seal.end_ms <= end_ms:
            raise PromiseError(f"P8: {seal.first_ms}..{seal.end_ms} is sealed after {end_ms}")
        if seal.fence < fence:
            raise PromiseError(f"P8: the fence went back from {fence} to {seal.fence} with {seal.end_ms}")
        if scan not in (None, (seal.end_ms, seal.fence)):
            raise PromiseError(f"P8: {scan} was left unfinished for {(seal.end_ms, seal.fence)}")
        keys = {}
        for offset, wish in waiting.items():
            if wish.due_ms < seal.end_ms and offset < seal.fence:
                keys[offset] = (*divmod(max(wish.due_ms, end_ms), 1000), offset)
        if seal.HasField("through"):
            through = struct.unpack_from(">QHQ", seal.through)
            keys = {offset: key for offset, key in keys.items() if key <= through}
        gone = {offset for offset in keys if takers.get(offset, seal.fence) < seal.fence}
        cancelled = sum(wish_of(records[takers[offset]]).is_cancel for offset in gone)
        done_by.update({offset: offset not in gone for offset in keys})
        for offset in keys:
            del waiting[offset]
        due = [offset for offset in keys if offset not in gone]
        fired = [offset for offset in due if offset not in rejected]
        late_arrivals = sum(wish_of(records[offset]).due_ms < end_ms for offset in due)
        said = (seal.due, seal.fired, seal.rejected, seal.late_arrivals, seal.fired_digest, seal.cancelled, seal.moved)
        counts = (len(due), len(fired), len(due) - len(fired), late_arrivals)
        meant = (*counts, fired_digest(number, fired), cancelled, len(gone) - cancelled)
        if said != meant:
            raise PromiseError(f"P8: seal {index} of {seal.end_ms} says {said}, requests say {meant}: {sorted(keys)}")
        left = [offset for offset in waiting if takers.get(offset, seal.fence) >= seal.fence]
        if any(lies_at(offset, sweeps, repeated) < seal.restore_from for offset in left):
            raise PromiseError(f"P8: {min(left)} waits below restore_from {seal.restore_from} of {seal.end_ms}")
        known = sum(offset < seal.fence and takers.get(offset) is None for offset in left)
        if seal.pending < known:
            raise PromiseError(f"P8: {seal.end_ms} says that {seal.pending} wait, {known} do")
        if seal.HasField("through"):
            scan = seal.end_ms, seal.fence
        else:
            end_ms, fence, scan = seal.end_ms, seal.fence, None
    if not waiting and seals and seals[-1].pending:
        raise PromiseError(f"P8: the last seal says that {seals[-1].pending} wait, none does")
    return done_by
