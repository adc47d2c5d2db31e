"""
Answer a POST whose Idempotency-Key is known: with the timer that stands, if the same body has made it.

The request of a POST has the digest of its body in a header of its record, which nothing else has. Where that record
has left `timer-request`, nobody can compare bodies, and the answer is the timer that stands.
"""

from collections.abc import Sequence

from kafka_timers.client.request import Answer
from kafka_timers.console.actions import Service
from kafka_timers.console.bodies import AnswerOut, answer_out, due_of
from kafka_timers.core.outcomes import State, accepted_in
from kafka_timers.core.wire import BODY_HEADER, Condition, Record, future_from
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.find import Found


class OtherBodyError(KafkaTimersError):
    """The Idempotency-Key was used with another body."""


class OtherTimerError(KafkaTimersError):
    """The timer of this id was not made by a POST."""


async def replay_of(service: Service, timer_id: str, answer: Answer, digest: str) -> AnswerOut:
    """
    Return the timer that stands under *timer_id*.

    Args:
        answer: IGNORED, the answer to the request that was made again.
        digest: of the body of that request.

    Raises:
        OtherBodyError: another body has made the timer.
        OtherTimerError: something else than a POST has made it.
        LateError: the log is still being read.
    """
    if answer.waits and answer.request:
        found = await service.placed(answer.request)
        # Of one that was moved since, the log has the first request.
        if found.has_left or (found.record and _digest_in(found.record)):
            _check(timer_id, [found.record] if found.record else [], digest)
            told = answer_out(timer_id, answer, service.clock.wall_s())
            return told.model_copy(update={"state": State.PENDING, "replay": True})
    records = await service.records(timer_id)
    _check(timer_id, _makers(records), digest)
    last = records.stands
    if last is None:
        return answer_out(timer_id, answer, service.clock.wall_s()).model_copy(update={"replay": True})
    return AnswerOut(
        timer_id=timer_id,
        outcome=answer.outcome,
        state=last.state,
        reason=last.reason,
        replay=True,
        request=records.place_of(last),
        **due_of(last.due_ms),
    )


def _makers(found: Found) -> list[Record]:
    """Return the records in the log that have made a timer of the id, and not moved one."""
    accepted = {each.offset for each in accepted_in(found.outcomes) if each.appended_ms is not None}
    return [
        record
        for record in found.records
        if record.offset in accepted and future_from(record.value or b"").condition != Condition.IF_PENDING
    ]


def _check(timer_id: str, makers: Sequence[Record], digest: str) -> None:
    digests = [_digest_in(each) for each in makers]
    told = [each for each in digests if each]
    if told and told[-1] != digest:
        raise OtherBodyError(
            f"the Idempotency-Key {timer_id!r} came with another body before: give each timer a key of its own"
        )
    if makers and not told:
        raise OtherTimerError(f"a timer is known as {timer_id!r}, and no request with this Idempotency-Key has made it")


def _digest_in(record: Record) -> str:
    return (dict(record.headers).get(BODY_HEADER) or b"").decode("ascii", "replace")
