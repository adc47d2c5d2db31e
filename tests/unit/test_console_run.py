"""The start of the console."""

import socket

import pytest

from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.console.run import run
from kafka_timers.errors import SettingsError


def test_a_taken_port_is_refused_with_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"^port {port} on 127.0.0.1 is taken; give another one$"):
            run(ConsoleSettings(host="127.0.0.1", port=port))
