"""Requests in place of those whose callback topic was unavailable."""

from kafka_timers.core.set_aside import instead_of
from kafka_timers.core.wire import Condition, Copy, Forwarded, Future, Header

SECOND, MILLIS = 1_800_000_000, 250
DUE_MS = SECOND * 1000 + MILLIS
DAY_MS = 86_400_000


def after(future: Future, waited_ms: int) -> tuple[int, Future] | None:
    """Return second and Future of the request in place of *future* at 7:40, which has waited so long."""
    asked = Future(millis=MILLIS)
    asked.MergeFrom(future)
    found = instead_of(asked.SerializeToString(), "7:40", SECOND, DUE_MS + waited_ms)
    return found and (int(found[0]), Future.FromString(found[1]))


def test_it_waits_half_as_long_again_5_s_at_least_and_15_minutes_at_most() -> None:
    for waited_ms, then_ms in ((0, 5_000), (10_000, 5_000), (60_000, 30_000), (DAY_MS - 1, 900_000)):
        found = after(Future(callBackTopic="c"), waited_ms)
        assert found is not None
        assert DUE_MS + waited_ms + then_ms <= found[0] * 1000 < DUE_MS + waited_ms + then_ms + 1000


def test_a_timer_is_given_up_a_day_after_it_was_due_at_first() -> None:
    assert after(Future(callBackTopic="c"), DAY_MS) is None
    found = after(Future(callBackTopic="c"), 60_000)
    assert found is not None
    later = instead_of(found[1].SerializeToString(), "7:50", SECOND + 90, DUE_MS + DAY_MS)
    assert later is None


def test_it_asks_for_the_same_callback_and_names_the_first_request_of_the_timer() -> None:
    future = Future(callBackTopic="c", callBackKey="k", callBack=b"v", token="t", headers=[Header(key="h", value=b"1")])
    found = after(future, 0)
    assert found is not None
    second, asked = found
    assert (asked.insteadOf.request, asked.insteadOf.dueMs) == ("7:40", DUE_MS)
    last = instead_of(asked.SerializeToString(), "7:50", second, DUE_MS + 9_000)
    assert last is not None
    assert Future.FromString(last[1]) == asked
    asked.ClearField("insteadOf")
    assert asked == future


def test_one_with_an_id_stands_only_if_no_later_request_of_the_id_does() -> None:
    future = Future(
        callBackTopic="c",
        timerId="a",
        millis=250,
        replyTopic="r",
        condition=Condition.IF_PENDING,
        ifRequest="7:3",
        copy=Copy(offset=3),
        forwarded=Forwarded(fromOffset=1),
    )
    found = after(future, 0)
    assert found is not None
    asked = found[1]
    assert (asked.condition, asked.ifRequest) == (Condition.IF_ABSENT, "7:40")
    kept = {field.name for field, _ in asked.ListFields()}
    assert not kept & {"replyTopic", "millis", "copy", "forwarded"}
