"""
Values of requests as no client should write them, drawn with a seed.

They are bytes that are no message, messages with every field at its limits, and messages with some bytes changed.
"""

import random

from kafka_timers.core.wire import Callback, Copy, Future, Header

INTEGERS = [0, 1, -1, 5, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
# Each of one character is known to some part of the service as something else.
TEXTS = ["", "a", "\0", "é\u202e\uffff", "0:3", "0:-1", "0:" + "9" * 5_000, "x" * 70_000, "callbacks", "timer-request"]


def some_future(chance: random.Random) -> bytes:
    """Return a message with any of its fields, each at any value that its type takes."""
    future = Future(callBackTopic=chance.choice(["callbacks", *TEXTS]))
    for field in Future.DESCRIPTOR.fields:
        if chance.random() < 0.7:
            continue
        if field.name in (
            "callBackKey",
            "timerId",
            "token",
            "replyTopic",
            "tombstoneTopic",
            "tombstoneKey",
            "ifRequest",
        ):
            setattr(future, field.name, chance.choice(TEXTS))
        elif field.name == "callBackRecord":
            future.callBackRecord.CopyFrom(some_callback(chance))
            if chance.random() < 0.8:
                for name in ("callBackTopic", "callBackKey", "callBack"):
                    future.ClearField(name)
        elif field.name == "callBack":
            future.callBack = chance.randbytes(chance.choice([0, 1, 900, 70_000]))
        elif field.name == "headers":
            for _ in range(chance.choice([1, 3, 300])):
                value = chance.choice([None, b"", b"v", b"\xff" * 50])
                future.headers.append(Header(key=chance.choice(TEXTS[:7]), value=value))
        elif field.name == "copy":
            numbers = [chance.choice(INTEGERS) for _ in range(4)]
            names = ("offset", "appended", "decidedOffset", "decided")
            future.copy.CopyFrom(Copy(**dict(zip(names, numbers, strict=True))))
        elif field.name == "cancel":
            future.cancel = chance.random() < 0.5
        elif field.name == "millis":
            future.millis = chance.choice([0, 1, 999, 1_000, 2**32 - 1])
        elif field.name == "tombstonePartition":
            future.tombstonePartition = chance.choice([0, 3, -1, 2**31 - 1, -(2**31)])
        elif field.name == "condition":
            future.condition = chance.choice([0, 1, 2, 3, 77, -1])
    return future.SerializeToString()


def some_callback(chance: random.Random) -> Callback:
    """Return a callback with any of its fields."""
    record = Callback(topic=chance.choice(["callbacks", *TEXTS]))
    for name in ("key", "value", "partitionKey"):
        if chance.random() < 0.5:
            setattr(record, name, chance.choice([b"", b"k", b"\xff\0", chance.randbytes(300)]))
    if chance.random() < 0.4:
        record.partition = chance.choice([0, 1, 3, -1, 2**31 - 1])
    return record


def nested(depth: int) -> bytes:
    """Return a group in a group and so on, of a field that nobody knows: a parser stops at some depth."""
    return b"\x9b\x06" * depth + b"\x9c\x06" * depth


def some_value(chance: random.Random) -> bytes | None:
    """Return bytes that may be a message."""
    kind = chance.random()
    if kind < 0.05:
        return None
    if kind < 0.2:
        return chance.randbytes(chance.choice([0, 1, 5, 300]))
    value = bytearray(some_future(chance))
    if kind < 0.3:
        value += nested(chance.randrange(90, 110))
    if kind < 0.6 and value:
        for _ in range(chance.randrange(1, 6)):
            value[chance.randrange(min(len(value), 200))] = chance.randrange(256)
        if chance.random() < 0.3:
            del value[chance.randrange(len(value)) :]
    return bytes(value)
