"""
A worker that cannot handle every order the first time.

    python examples/retry/worker.py
    echo 'fail 2' | kcat -b 127.0.0.1:9092 -P -t orders -k 7

An order `fail N` fails N times. If N is no number, it always fails. The order comes back after 1, 2, 4 and 8
seconds, and goes to `orders-dead` if it fails once more. One topic is enough for all delays.
"""

import os

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_timers import Callback, RetryPolicy
from kafka_timers.sync import TimerClient

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
POLICY = RetryPolicy("orders-dead", retries=4, first=1, factor=2)


class NotNowError(Exception):
    """An order cannot be handled yet."""


def handle(value: bytes, attempt: int) -> None:
    """Handle an order that has come back for the *attempt*-th time; 0 is its first time."""
    word, _, times = value.partition(b" ")
    if word == b"fail" and attempt < int(times):
        raise NotNowError(f"failed {attempt + 1} of {int(times)} times")


def create_topics() -> None:
    """Create the two topics unless they exist."""
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for made in admin.create_topics([NewTopic(name, 4) for name in ("orders", "orders-dead")]).values():
        try:
            made.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def main() -> None:
    """Handle orders until the process is ended."""
    create_topics()
    consumer = Consumer(
        {
            "bootstrap.servers": KAFKA,
            "group.id": "orders",
            "auto.offset.reset": "earliest",
            # An order that comes back was written in a transaction.
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    with TimerClient(KAFKA) as timers:
        print("ready", flush=True)
        while True:
            record = consumer.poll(1.0)
            if record is None or record.error():
                continue
            # This is None for an order that comes for the first time: it is no callback yet.
            callback = Callback.of(record)
            attempt = callback.attempt if callback else 0
            try:
                handle(record.value() or b"", attempt)
                print("handled", record.key(), "after", attempt, flush=True)
            # Catch every error: an order that ended this worker would be read by the next one, and end it too.
            except Exception as error:
                retry = timers.retry(record, POLICY, error=error)
                print("given up" if retry.gave_up else "again", record.key(), error, flush=True)
            # Commit after retry has returned. If this process ends in between, the record is read and retried again,
            # and the service keeps one of the two.
            consumer.commit(record)


if __name__ == "__main__":
    main()
