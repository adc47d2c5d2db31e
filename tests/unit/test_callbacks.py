"""Whether a callback fits into its topic."""

from kafka_timers.core.callbacks import OVERHEAD_BYTES, Target, fits
from kafka_timers.core.wire import Future, Header, Request


def test_a_request_well_below_the_limit_of_its_topic_fits() -> None:
    request = Request(callBackTopic=b"small", callBack=b"x" * 500)
    size = request.ByteSize()
    assert fits(request, size, Target(1, size + OVERHEAD_BYTES))


def test_fields_that_the_callback_does_not_carry_do_not_count_near_the_limit() -> None:
    """The request has the names of two topics beside the fields that are passed on."""
    future = Future(callBackTopic="t" * 249, callBack=b"x" * 500, replyTopic="r" * 249)
    request = Request.FromString(future.SerializeToString())
    assert fits(request, future.ByteSize(), Target(1, 850))
    assert not fits(request, future.ByteSize(), Target(1, 600))


def test_headers_token_and_id_count() -> None:
    headers = [Header(key="name", value=b"v" * 100) for _ in range(3)]
    for more in ({"headers": headers}, {"token": b"t" * 330}, {"timerId": b"t" * 330}):
        request = Request(callBackTopic=b"small", callBack=b"x" * 500, **more)  # type: ignore[arg-type]
        assert not fits(request, request.ByteSize(), Target(1, 900))


def test_a_topic_takes_callbacks_without_a_key_unless_it_is_known_not_to() -> None:
    """Where its settings may not be read, for example."""
    assert not Target(1, 1_048_588).needs_key


def test_a_topic_that_wants_a_key_takes_callbacks_of_the_same_size() -> None:
    request = Request(callBackTopic=b"small", callBack=b"x" * 500)
    size = request.ByteSize()
    for limit in (size + OVERHEAD_BYTES, 600):
        assert fits(request, size, Target(1, limit)) == fits(request, size, Target(1, limit, needs_key=True))
