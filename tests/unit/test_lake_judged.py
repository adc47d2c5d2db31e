"""Whether a record is a request, a cancel, a copy or refused: many at once come to the same as one by one."""

import random

import pyarrow as pa

from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import KEPT_KEY, Copy, Future, Kept
from kafka_timers.lake.records import judged_at_once, judged_one_by_one


def future(**more: object) -> bytes:
    return Future(**({"callBackTopic": "t", "callBack": b"v"} | more)).SerializeToString()  # type: ignore[arg-type]


def test_batches_are_judged_as_their_records_are() -> None:
    """The quick way for usual records gives the same result as the worker's own judgement, or leaves them to that."""
    for seed in range(300):
        batch, odd = some_batch(seed)
        quick = judged_at_once(batch, 3)
        assert quick is None or quick == judged_one_by_one(batch, 3), seed
        assert quick is not None or odd, seed


def some_batch(seed: int) -> tuple[pa.RecordBatch, bool]:
    """Return records of one kind, and whether one that is unusual is among them."""
    rand = random.Random(seed)
    keys = [b"1800000000", b"1", b"99999999999", b"1800000001"]
    values = [future(), future(token="x", headers=[{"key": "a"}], tombstoneTopic="c"), future(replyTopic="r")]
    if seed % 2:
        # As an id may be: in its partition, with an empty one beside it.
        ids = [f"id-{n}" for n in range(99) if partition_of(f"id-{n}", 3) == 1]
        values += [future(timerId=each) for each in ids] + [future(timerId=""), future(millis=0)]
    chosen = [(rand.choice(keys), rand.choice(values), 1) for _ in range(rand.randrange(1, 20))]
    unusual = [
        (b"soon", values[0], 1),
        (None, values[0], 1),
        (b"1800000000000", values[0], 1),
        (keys[0], None, 1),
        (keys[0], b"", 1),
        (keys[0], b"{}", 1),
        (keys[0], b"\x0a\x01\xff", 1),  # no UTF-8
        (keys[0], future(millis=1), 1),
        (keys[0], future(millis=1_000), 1),
        (keys[0], future(callBackTopic=""), 1),
        (keys[0], future(copy=Copy(offset=1)), 1),
        (keys[0], Future(cancel=True, timerId="id-1").SerializeToString(), 1),
        (keys[0], Future(cancel=True).SerializeToString(), 1),
        (keys[0], future(timerId="id-1"), 1 + partition_of("id-1", 3)),
        (keys[0], values[0], 2),
        (KEPT_KEY, Future(kept=Kept(begun=1)).SerializeToString(), 1),
    ]
    odd = seed % 4 > 1
    if odd:
        chosen.insert(rand.randrange(len(chosen) + 1), rand.choice(unusual))
    kinds = [pa.binary(), pa.binary(), pa.int32()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*chosen, strict=True), kinds, strict=True)]
    columns.append(pa.array(range(len(chosen)), pa.int64()))
    return pa.RecordBatch.from_arrays(columns, ["key", "value", "partition", "offset"]), odd
