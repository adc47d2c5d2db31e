"""The receiver's side: of all callbacks, the one it waits for, once."""

import pytest

from kafka_timers import TokenGuard, request_from, token_from


def test_callback_of_the_timer_waited_for_is_accepted_once() -> None:
    guard = TokenGuard()
    token = guard.new()
    assert guard.accept(token)
    assert not guard.accept(token)


def test_callback_of_a_cancelled_timer_is_ignored() -> None:
    guard = TokenGuard()
    token = guard.new()
    guard.cancel()
    assert not guard.accept(token)


def test_new_token_cancels_the_one_before() -> None:
    guard = TokenGuard()
    first, second = guard.new(), guard.new()
    assert first != second
    assert not guard.accept(first)
    assert guard.accept(second)


def test_stale_callback_does_not_end_the_wait() -> None:
    guard = TokenGuard()
    token = guard.new()
    assert not guard.accept("another")
    assert guard.accept(token)


@pytest.mark.parametrize("stored", [None, ""])
@pytest.mark.parametrize("token", [None, "", "x"])
def test_guard_that_waits_for_nothing_accepts_nothing(stored: str | None, token: str | None) -> None:
    assert not TokenGuard(stored).accept(token)


def test_stored_token_is_waited_for_after_a_restart() -> None:
    token = TokenGuard()
    stored = token.new()
    guard = TokenGuard(stored)
    assert guard == token
    assert guard.accept(stored)
    assert guard.token is None


def test_token_as_bytes_is_a_mistake_and_not_a_stale_callback() -> None:
    guard = TokenGuard()
    token = guard.new()
    with pytest.raises(TypeError, match="token_from"):
        guard.accept(token.encode())  # type: ignore[arg-type]  # the mistake under test
    assert guard.accept(token)


def test_token_and_request_are_read_from_headers() -> None:
    headers = [("timer-token", b"abc"), ("timer-request", b"3:17")]
    assert token_from(headers) == "abc"
    assert request_from(headers) == "3:17"


def test_record_without_the_headers_has_neither() -> None:
    assert token_from(()) is None
    assert request_from([("timer-request", None)]) is None


def test_header_forged_by_a_request_does_not_hide_that_of_the_service() -> None:
    assert request_from([("timer-request", b"3:17"), ("timer-request", b"0:0")]) == "3:17"


def test_token_that_is_no_text_is_never_accepted() -> None:
    assert not TokenGuard("abc").accept(token_from([("timer-token", b"\xff")]))
