"""
Turn the results of this package, timers and answers into JSON documents: plain dicts and lists.

Pure. `kafka-timers … --json` prints these documents, so their names and values are an interface to other programs.
Bytes appear as text. Bytes that are not UTF-8 appear in base64, under their name with `_base64` appended.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import ConsumerRecord

from kafka_timers.broker.odd_batches import shown
from kafka_timers.client.request import Answer, Timer
from kafka_timers.core.lake_progress import LakeProgress
from kafka_timers.core.outcomes import Outcome
from kafka_timers.core.text import json_of
from kafka_timers.core.wire import ID_HEADER, REQUEST_HEADER, TOKEN_HEADER, last_second_of
from kafka_timers.operate.acls import Acl
from kafka_timers.operate.capacity import Need
from kafka_timers.operate.find import Found
from kafka_timers.operate.health import ServiceStatus, overdue_of, problems_of
from kafka_timers.operate.watch import lateness_of

# Not what the lake asks of it besides.
_OF_AN_OUTCOME = ("offset", "appended_ms", "due_ms", "cancel", "topic", "state", "reason", "second")

Document = dict[str, Any]


def timer_document(timer: Timer) -> Document:
    """Return *timer* as JSON."""
    return dataclasses.asdict(timer) | {"second": timer.second, "request": timer.request}


def answer_document(timer_id: str, answer: Answer) -> Document:
    """Return the *answer* to a cancel, a move or a create of *timer_id* as JSON."""
    told = dataclasses.asdict(answer)
    del told["kept"]
    return {"timer_id": timer_id} | told | {"second": answer.second}


def status_document(status: ServiceStatus) -> Document:
    """Return *status* as JSON: its fields, how long each partition may be overdue, and the problems found."""
    rows = [
        dataclasses.asdict(row) | {"overdue_s": overdue_of(row, status.requests, status.seal_every_s).age_s}
        for row in status.partitions
    ]
    return {
        "partitions": rows,
        "workers": status.workers and [dataclasses.asdict(worker) for worker in status.workers],
        "doors": [dataclasses.asdict(door) for door in status.doors],
        "planners": dataclasses.asdict(status.planners) if status.planners else None,
        "refused": dataclasses.asdict(status.refused) if status.refused else None,
        "lake": _lake_document(status.lake) if status.lake and status.lake.horizon_s else None,
        "problems": problems_of(status),
    }


def _lake_document(lake: LakeProgress) -> Document:
    return {
        "horizon_s": lake.horizon_s,
        "promoted_s": lake.told_s,
        "behind_s": lake.behind_s,
        "overdue_s": lake.overdue_s,
        "far": lake.far,
    }


def found_document(timer_id: str, found: Found) -> Document:
    """Return the records *found* for *timer_id* as JSON."""
    return {
        "timer_id": timer_id,
        "partition": found.partition,
        "start": found.start,
        "end": found.end,
        "sealed": last_second_of(found.seal) if found.seal else None,
        "problem": found.problem,
        "stands": None if found.stands is None else _record_document(found.stands),
        "records": [_record_document(each) for each in found.outcomes],
    }


def _record_document(outcome: Outcome) -> Document:
    return {name: getattr(outcome, name) for name in _OF_AN_OUTCOME} | json_of("key", outcome.key)


def capacity_document(needs: Iterable[Need]) -> Document:
    """Return *needs* as JSON, amounts by name."""
    return {need.name: need.amount for need in needs}


def acls_document(acls: Iterable[Acl], principals: Mapping[str, str]) -> list[Document]:
    """Return *acls* as JSON, each with the principal of its process."""
    return [dataclasses.asdict(acl) | {"principal": principals[acl.process]} for acl in acls]


def callback_document(record: ConsumerRecord, now_s: float) -> Document:
    """
    Return *record*, which was read from a callback topic, as JSON.

    `second`, `due_ms` and `lateness_ms` are null for a record that is not a callback. *record* arrived at the UNIX time
    *now_s*.
    """
    headers = dict(reversed(record.headers))
    due_ms, lateness_ms = lateness_of(record, now_s)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "second": None if due_ms is None else due_ms // 1000,
        "due_ms": due_ms,
        "lateness_ms": lateness_ms,
        **json_of("request", headers.get(REQUEST_HEADER)),
        **json_of("timer_id", headers.get(ID_HEADER)),
        **json_of("token", headers.get(TOKEN_HEADER)),
        **json_of("key", record.key),
        **json_of("value", record.value),
        "headers": [{"name": shown(name), **json_of("value", value)} for name, value in record.headers],
    }


def row_document(row: Mapping[str, Any]) -> Document:
    """Return a *row* of a lake table as JSON. A value without a JSON type, such as a date, becomes text."""
    plain: Document = {}
    for name, value in row.items():
        plain |= json_of(name, value) if isinstance(value, bytearray | bytes) else {name: _plain(value)}
    # Such a value may also lie deeper, for example a date in an array.
    return dict(json.loads(json.dumps(plain, default=str)))


def _plain(value: Any) -> Any:
    """Return *value*, and all values in it, as JSON types."""
    if isinstance(value, Mapping):
        return row_document({str(name): each for name, each in value.items()})
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, bytearray | bytes) else value
