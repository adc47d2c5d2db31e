"""What leaves a partition in one transaction, as its seal tells it."""

from kafka_timers.core.contents import digest_of


def test_digests_of_parts_add_up_in_any_order() -> None:
    offsets = [0, 1, 5, 2**40, 2**63]
    whole = digest_of(offsets)
    assert whole == digest_of(reversed(offsets)) < 2**64
    assert whole == (digest_of(offsets[:2]) + digest_of(offsets[2:])) % 2**64
    assert digest_of([0]) == 1
    assert digest_of([]) == 0
