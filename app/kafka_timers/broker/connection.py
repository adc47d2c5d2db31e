"""
Address of Kafka and login. This is the only module that deals with TLS and SASL.

Settings have librdkafka's names, so you can use the same file as kcat or a client in another language:

    security.protocol=SASL_SSL
    ssl.ca.location=/etc/kafka/ca.crt
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=timers
    sasl.password=…                  or KAFKA_TIMERS_SASL_PASSWORD in the environment
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from aiokafka.helpers import create_ssl_context

from kafka_timers.broker.environment import env_name
from kafka_timers.broker.oauth import login_tokens_of
from kafka_timers.errors import SettingsError

_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)
_USER, _PASSWORD = "sasl.username", "sasl.password"
_TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
)
_NAME = "client.id"

# All settings; docs/security.md explains them.
PROPERTIES = (
    *(_PROTOCOL, _NAME),
    *(_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD),
    *(_MECHANISM, _USER, _PASSWORD),
    *(_TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE),
)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_JAVA = "org.apache.kafka.common.security."
# Alternative names.
_ALSO = {"sasl.mechanisms": _MECHANISM}


def _is_address_list(text: str) -> bool:
    """Tell whether *text* can be a list of broker addresses: host:port, comma separated."""
    for address in text.split(","):
        port = address.strip().rpartition(":")[2]
        if not address.strip() or (":" in address and not (port.isdecimal() and 0 < int(port) < 65536)):
            return False
    return True


@dataclass(frozen=True)
class Kafka:
    """
    Address and login of a Kafka cluster.

    Attributes:
        bootstrap: brokers, host:port, comma separated.
        properties: connection settings, named as in `PROPERTIES`; empty for plain text. Left out of the repr.

    Raises:
        SettingsError: the addresses are malformed, or properties are unknown, missing or contradictory.
    """

    bootstrap: str = "127.0.0.1:9092"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # A process waits for a broker that does not answer. It would wait for a malformed address for ever.
        if not _is_address_list(self.bootstrap):
            raise SettingsError(
                f"bootstrap {self.bootstrap!r} is not a list of Kafka brokers: give host:port, comma separated"
            )
        given = {_ALSO.get(name, name): value for name, value in self.properties.items()}
        for name in (_PROTOCOL, _MECHANISM):
            if name in given:
                given[name] = given[name].upper()
        object.__setattr__(self, "properties", given)
        _check(given)

    @classmethod
    def of(cls, bootstrap: str, file: str = "", env: Mapping[str, str] = os.environ, name: str = "") -> Self:
        """
        Return the Kafka at *bootstrap* with the settings in *file* and *env*.

        Args:
            file: path of a file with lines name=value; # begins a comment. Empty: no file.
            env: environment, which wins over the file. `KAFKA_TIMERS_SASL_PASSWORD` sets `sasl.password`, and so on.
            name: client id where no setting has one; empty for the default.

        Raises:
            SettingsError: the file cannot be read, or a setting does not fit.
        """
        properties = ({_NAME: name} if name else {}) | (_read(file) if file else {})
        for key in PROPERTIES:
            value = env.get(env_name(key))
            if value is not None:
                properties[key] = value
        return cls(bootstrap, properties)

    @property
    def protocol(self) -> str:
        """Security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return self.properties.get(_PROTOCOL, "PLAINTEXT")

    @property
    def mechanism(self) -> str:
        """SASL mechanism; empty without SASL."""
        return self.properties[_MECHANISM] if "SASL" in self.protocol else ""

    @property
    def client_id(self) -> str:
        """Name of this client for brokers."""
        return self.properties.get(_NAME, "kafka-timers")

    def __str__(self) -> str:
        """Return address, protocol and user, for messages; no secrets."""
        if not self.mechanism:
            return self.bootstrap if self.protocol == "PLAINTEXT" else f"{self.bootstrap} ({self.protocol})"
        user = self.properties.get(_USER) or self.properties.get(_CLIENT_ID)
        return f"{self.bootstrap} ({self.protocol}, {self.mechanism}{f' as {user}' if user else ''})"

    def client_options(self) -> dict[str, Any]:
        """
        Return the connection options for aiokafka's clients.

        Raises:
            SettingsError: a TLS file cannot be read.
        """
        options: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "client_id": self.client_id}
        if self.protocol == "PLAINTEXT":
            return options
        options["security_protocol"] = self.protocol
        if "SSL" in self.protocol:
            options["ssl_context"] = self._ssl_context
        if self.mechanism:
            options["sasl_mechanism"] = self.mechanism
            if self.mechanism == "OAUTHBEARER":
                given = [self.properties.get(name, "") for name in (_TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE)]
                options["sasl_oauth_token_provider"] = login_tokens_of(*given)
            else:
                options["sasl_plain_username"] = self.properties[_USER]
                options["sasl_plain_password"] = self.properties[_PASSWORD]
        return options

    def java_options(self) -> dict[str, str]:
        """
        Return the connection settings for Kafka's Java client, secrets included.

        Certificates and keys are passed as text, so the other machines need no files.

        Raises:
            SettingsError: a TLS file cannot be read.
        """
        options = {"bootstrap.servers": self.bootstrap, "client.id": self.client_id, "security.protocol": self.protocol}
        given = self.properties
        if "SSL" in self.protocol:
            if _CA in given:
                options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(given, _CA)}
            if _CERTIFICATE in given:
                options |= {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.certificate.chain": _text(given, _CERTIFICATE),
                    "ssl.keystore.key": _text(given, _KEY if _KEY in given else _CERTIFICATE),
                }
            if _KEY_PASSWORD in given:
                options["ssl.key.password"] = given[_KEY_PASSWORD]
        if self.mechanism:
            options |= {"sasl.mechanism": self.mechanism} | self._jaas()
        return options

    def _jaas(self) -> dict[str, str]:
        more = {}
        if self.mechanism == "OAUTHBEARER":
            module = f"{_JAVA}oauthbearer.OAuthBearerLoginModule"
            names = {"clientId": _CLIENT_ID, "clientSecret": _CLIENT_SECRET, "scope": _SCOPE}
            handler = f"{_JAVA}oauthbearer.OAuthBearerLoginCallbackHandler"
            more = {"sasl.login.callback.handler.class": handler, _TOKEN_URL: self.properties[_TOKEN_URL]}
        else:
            module = _JAVA + ("plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule")
            names = {"username": _USER, "password": _PASSWORD}
        words = "".join(
            f" {name}={_quoted(self.properties[of])}" for name, of in names.items() if of in self.properties
        )
        return {"sasl.jaas.config": f"{module} required{words};"} | more

    @cached_property
    def _ssl_context(self) -> Any:
        # Reading the system's trusted certificates takes 50 ms, and a takeover makes a client for each partition.
        given = self.properties
        try:
            return create_ssl_context(
                cafile=given.get(_CA),
                certfile=given.get(_CERTIFICATE),
                keyfile=given.get(_KEY, given.get(_CERTIFICATE)),
                password=given.get(_KEY_PASSWORD),
            )
        except OSError as error:
            files = ", ".join(f"{name} {given[name]}" for name in (_CA, _CERTIFICATE, _KEY) if name in given)
            raise SettingsError(f"{files}: not all of it can be read, or a key does not fit: {error}") from error


def _read(file: str) -> dict[str, str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from error
    properties = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals:
            # The line itself is left out of the message: it may be a secret.
            raise SettingsError(f"{file}, line {number}: give name=value")
        properties[name] = value
    return properties


def _check(given: Mapping[str, str]) -> None:
    if unknown := sorted(given.keys() - set(PROPERTIES)):
        raise SettingsError(f"{', '.join(unknown)}: not known; known are {', '.join(PROPERTIES)}")
    protocol = given.get(_PROTOCOL, "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"{_PROTOCOL} {protocol}: give one of {', '.join(_PROTOCOLS)}")
    if "SASL" in protocol:
        mechanism = given.get(_MECHANISM, "")
        if mechanism not in _MECHANISMS:
            raise SettingsError(f"{_MECHANISM} {mechanism or 'is missing'}: give one of {', '.join(_MECHANISMS)}")
        wanted = [_TOKEN_URL] if mechanism == "OAUTHBEARER" else [_USER, _PASSWORD]
        if mechanism == "OAUTHBEARER" and not given.get(_TOKEN_URL, "").startswith("file:"):
            wanted += [_CLIENT_ID, _CLIENT_SECRET]
        if missing := [name for name in wanted if not given.get(name)]:
            raise SettingsError(f"{_MECHANISM} {mechanism} needs {' and '.join(missing)}")
    # A setting without effect is a mistake that could end in a plain text connection.
    unused = [name for name in given if name.startswith("ssl.") and "SSL" not in protocol]
    unused += [name for name in given if name.startswith("sasl.") and "SASL" not in protocol]
    if unused:
        raise SettingsError(f"{', '.join(unused)} with {_PROTOCOL} {protocol}: give a protocol that uses it")


def _text(given: Mapping[str, str], name: str) -> str:
    try:
        return Path(given[name]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} {given[name]} cannot be read: {error}") from error


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
