"""Fetch sessions (KIP-227), as Kafka's brokers keep them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

from kafka_timers.broker import codes
from kafka_timers.broker.requests import Fetch

# Leader epoch and offset by partition.
Positions = Mapping[int, tuple[int, int]]


@dataclass
class _Session:
    id: int
    fetches: int = 1
    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    # By partition: the end and the start of the log that were told last.
    told: dict[int, tuple[int, int]] = field(default_factory=dict)


class Sessions:
    """The sessions of one process with all brokers."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[int, int], _Session] = {}
        self._ids = count(1)

    def forget(self) -> None:
        """Forget all sessions, as brokers do that have too many or were started again."""
        self._sessions.clear()

    def positions(self, node: int, request: Fetch) -> Positions:
        """Return what *request* to broker *node* asks for, with what the broker knows from before."""
        session = self._sessions.get((node, request.session[0]))
        known = session.positions if session and request.session[1] > 0 else {}
        return {number: at for number, at in (known | request.positions).items() if number not in request.forgotten}

    def answer(self, node: int, request: Fetch, part: Callable[[int, int, int], tuple[Any, ...]]) -> Any:
        """
        Return the answer of broker *node* to *request*.

        Args:
            node: the broker.
            request: the request.
            part: gives the answer for a partition, of its number, leader epoch and offset.
        """
        key, fetches = (node, request.session[0]), request.session[1]
        if fetches < 0:
            parts = [part(number, *at) for number, at in request.positions.items()]
            return SimpleNamespace(error_code=0, session=0, topics=[(request.topic, parts, {})])
        if fetches == 0:
            self._sessions.pop(key, None)
            session = _Session(next(self._ids))
            self._sessions[node, session.id] = session
        elif key not in self._sessions:
            return SimpleNamespace(error_code=codes.FETCH_SESSION_ID_NOT_FOUND, session=0, topics=[])
        else:
            session = self._sessions[key]
            if fetches != session.fetches:
                return SimpleNamespace(error_code=codes.INVALID_FETCH_SESSION_EPOCH, session=0, topics=[])
            session.fetches += 1
        session.positions = {**self.positions(node, request)}
        parts = [part(number, *at) for number, at in session.positions.items()]
        # The last stable offset alone is no news to Kafka.
        news = [each for each in parts if fetches == 0 or _is_news(each, session)]
        session.told |= {number: (end, start) for number, _, end, _, start, *_ in parts}
        return SimpleNamespace(error_code=0, session=session.id, topics=[(request.topic, news, {})])


def _is_news(part: tuple[Any, ...], session: _Session) -> bool:
    number, code, end, _, start, _, _, records, _ = part
    return bool(code or records) or session.told.get(number) != (end, start)
