"""The terminals on the first page of the docs show the output of the commands."""

from pathlib import Path

from aiokafka import ConsumerRecord

from kafka_timers.cli.render import callback_lines, moment_text
from kafka_timers.core.wire import EXPIRY_HEADER, MILLIS_HEADER, REQUEST_HEADER

PAGE = (Path(__file__).parents[2] / "docs" / "index.md").read_text()
DUE_MS = 1_795_766_404_218


def test_the_terminal_of_the_first_page_shows_the_output_of_send_and_watch() -> None:
    headers = ((EXPIRY_HEADER, b"1795766404"), (REQUEST_HEADER, b"2:0"), (MILLIS_HEADER, b"218"))
    record: ConsumerRecord[bytes, bytes] = ConsumerRecord(
        "callbacks", 1, 0, DUE_MS + 9, 1, b"order-7", b"pay now", None, 7, 7, headers
    )
    printed = [line.rstrip() for line in callback_lines(record, DUE_MS / 1000, 80)]
    assert f"fires at {moment_text(DUE_MS)}, request 2:0\n" in PAGE
    assert "\n" + "\n".join(printed) + "\n" in PAGE
