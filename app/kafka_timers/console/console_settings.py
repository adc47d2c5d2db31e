"""The settings of the console."""

from dataclasses import dataclass

from kafka_timers.errors import SettingsError
from kafka_timers.settings import GroupSettings, QuerySettings, WorkerSettings, as_in, is_loopback, setting

_PORT_MAX = 65_535


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings(GroupSettings, QuerySettings):
    """Settings of the console."""

    allowed_topics: str = as_in(WorkerSettings, "allowed_topics")
    seal_every_s: int = as_in(WorkerSettings, "seal_every_s")
    host: str = setting("127.0.0.1", "address of the console", if_empty="give an address of this host")
    port: int = setting(8074, "port of the console", least=1, most=_PORT_MAX)
    certificate: str = setting("", "PEM file with the certificate for HTTPS and its chain; empty serves HTTP")
    key: str = setting("", "PEM file with the key of that certificate; empty is the same file")
    writable: bool = setting(False, "let users of this host ask for timers and change them without a token")
    token_file: str = setting("", "file with a line for each user: `read` or `operate`, a token, and a name")
    user_header: str = setting("", "header in which your proxy names the user; needs --proxy")
    proxy: str = setting("", "address of that proxy; the header counts for nothing from any other address")
    operators: str = setting("", "users named in that header that may change timers, comma separated", is_list=True)
    door_history: str = setting("", "topic from which etf1's admin GUI reads the history; the same as for the workers")
    allowed_hosts: str = setting(
        "", "names by which clients reach the console, beside its address and localhost, comma separated", is_list=True
    )
    log_level: str = as_in(WorkerSettings, "log_level")

    def validate(self) -> None:
        """Check fields against each other."""
        super().validate()
        if bool(self.user_header) != bool(self.proxy):
            raise SettingsError("user_header and proxy belong together: give both, or none")
        if self.operators and not self.user_header:
            raise SettingsError("operators are users that a proxy names: give user_header and proxy")
        if self.writable and (self.token_file or self.user_header):
            raise SettingsError(
                "writable is for users without a token or a proxy: leave it out, and give the roles in token_file or "
                "operators"
            )
        if self.key and not self.certificate:
            raise SettingsError("key is for TLS: give certificate too")
        if not (self.token_file or self.user_header or is_loopback(self.host)):
            raise SettingsError(
                f"host {self.host} can be reached from other hosts: give token_file, or user_header and proxy, so that "
                "not everybody may use the console"
            )
