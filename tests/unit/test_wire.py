"""The bytes that every client relies on: compatible with the message of three fields, and headers as written down."""

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor

from kafka_timers.client.callback import token_from
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future, Header, Request, Sealed, callback_headers, future_from, sealed_from
from kafka_timers.errors import WireError
from kafka_timers.v1 import future_pb2, reply_pb2, run_pb2, schedule_pb2, sealed_pb2

WIRE_PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()

# The bytes of {callBackTopic: "reminders", callBackKey: "order-7", callBack: 00 ff} by the protobuf specification.
THREE_FIELDS = b"\x0a\x09reminders\x12\x07order-7\x1a\x02\x00\xff"


def original_future() -> type:
    """The message as it was published first, from a descriptor of its own."""
    file = descriptor_pb2.FileDescriptorProto(name="original.proto", package="original", syntax="proto3")
    message = file.message_type.add(name="Future")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        [("callBackTopic", kinds.TYPE_STRING), ("callBackKey", kinds.TYPE_STRING), ("callBack", kinds.TYPE_BYTES)], 1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("original.Future"))


def test_generated_code_has_no_two_names_alike_in_any_language() -> None:
    """Constants of Java are all capitals, and accessors of C++ have none: two fields may not differ by those alone."""
    for file in (future_pb2, reply_pb2, run_pb2, schedule_pb2, sealed_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            names = [field.name.lower().replace("_", "") for field in message.fields]
            assert len(set(names)) == len(names), message.full_name


def test_three_fields_have_the_bytes_of_the_original_message() -> None:
    future = Future(callBackTopic="reminders", callBackKey="order-7", callBack=b"\x00\xff")
    assert future.SerializeToString() == THREE_FIELDS
    original = original_future()(callBackTopic="reminders", callBackKey="order-7", callBack=b"\x00\xff")
    assert original.SerializeToString() == THREE_FIELDS


def test_bytes_of_the_original_message_are_a_future() -> None:
    future = future_from(THREE_FIELDS)
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("reminders", "order-7", b"\x00\xff")
    assert len(future.ListFields()) == 3


def test_a_client_of_the_original_message_reads_its_fields_from_a_full_future() -> None:
    full = Future(
        callBackTopic="reminders",
        callBackKey="order-7",
        callBack=b"\x00\xff",
        timerId="id",
        token="token",
        millis=7,
        headers=[Header(key="trace", value=b"1")],
        cancel=True,
        replyTopic="answers",
    )
    original = original_future().FromString(full.SerializeToString())
    assert (original.callBackTopic, original.callBackKey, original.callBack) == ("reminders", "order-7", b"\x00\xff")


def test_bytes_that_are_no_future_name_their_place() -> None:
    with pytest.raises(WireError, match=r"timer-request partition 3 offset 17") as caught:
        future_from(b"\xff\xff", topic="timer-request", partition=3, offset=17)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("timer-request", 3, 17)


def test_bytes_that_are_no_seal_name_their_place() -> None:
    with pytest.raises(WireError, match=r"timer-sealed partition 0 offset 2"):
        sealed_from(b"\xff\xff", topic="timer-sealed", partition=0, offset=2)


def test_callback_of_three_fields_says_its_second_and_its_request() -> None:
    assert callback_headers(Request.FromString(THREE_FIELDS), 1_700_000_000, b"3:17") == [
        ("timer-expiry", b"1700000000"),
        ("timer-request", b"3:17"),
    ]


def test_callback_headers_are_token_id_second_request_and_then_those_of_the_request() -> None:
    own = [("trace", b"1"), ("null", None), ("empty", b""), ("trace", b"2")]
    future = Future(token="tök", timerId="id", headers=[Header(key=key, value=value) for key, value in own])
    service = [("timer-token", "tök".encode()), ("timer-id", b"id"), ("timer-expiry", b"5"), ("timer-request", b"0:0")]
    assert callback_headers(Request.FromString(future.SerializeToString()), 5, b"0:0") == service + own
    future.forwarded.fromPartition, future.forwarded.fromOffset = 2, 9
    sent_on = [*service, ("timer-forwarded", b"2:9"), *own]
    assert callback_headers(Request.FromString(future.SerializeToString()), 5, b"0:0") == sent_on


@pytest.mark.parametrize("token", ["", "true"])
def test_a_requester_cannot_speak_for_the_service(token: str) -> None:
    """Whether a receiver takes the first header of a name or the last; also where the service sets none of it."""
    names = ["timer-token", "timer-id", "timer-expiry", "timer-request", "Timer-Token"]
    future = Future(token=token, headers=[Header(key=name, value=b"forged") for name in names])
    headers = callback_headers(Request.FromString(future.SerializeToString()), 5, b"0:0")
    for seen in (dict(headers), dict(reversed(headers))):
        assert seen == {
            **({"timer-token": b"true"} if token else {}),
            "timer-expiry": b"5",
            "timer-request": b"0:0",
            "Timer-Token": b"forged",
        }
    assert token_from(headers) == (token or None)


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        # From Kafka's own UtilsTest.testMurmur2.
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_partition_is_that_of_every_java_client(name: str, hashed: int) -> None:
    for partitions in (1, 2, 8, 12, 100, 4099):
        assert partition_of(name, partitions) == (hashed & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize(
    "message",
    [Future.DESCRIPTOR, Sealed.DESCRIPTOR, *schedule_pb2.DESCRIPTOR.message_types_by_name.values()],
    ids=lambda message: message.name,
)
def test_wire_page_names_every_field_with_its_number(message: Descriptor) -> None:
    for field in message.fields:
        assert f"`{field.name}` = {field.number}" in WIRE_PAGE


def test_wire_page_names_every_reason_of_a_rejection_and_no_other() -> None:
    table = WIRE_PAGE.partition("| reason | the request |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == sorted(reason.value for reason in Reason)
