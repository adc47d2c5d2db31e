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
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from aiokafka.helpers import create_ssl_context

from kafka_timers.broker.environment import env_name
from kafka_timers.broker.oauth import LoginTokens, tokens_of_aws, tokens_of_endpoint, tokens_of_google
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
_METHOD, _PROVIDER = "sasl.oauthbearer.method", "sasl.oauthbearer.metadata.authentication.type"
_AWS, _GOOGLE = "aws_msk_iam", "gcp"
# The package with which each provider of OAuth tokens is asked, and our extra that has it.
_PROVIDERS = {_AWS: ("aws_msk_iam_sasl_signer", "msk"), _GOOGLE: ("google.auth", "google")}
# As in b-1.orders.a1b2c3.c4.kafka.eu-west-1.amazonaws.com:9098.
_AWS_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
_NAME = "client.id"

# All settings; docs/security.md explains them.
PROPERTIES = (
    *(_PROTOCOL, _NAME),
    *(_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD),
    *(_MECHANISM, _USER, _PASSWORD),
    *(_METHOD, _PROVIDER, _TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE),
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
        if _PROVIDER in given:
            given[_PROVIDER] = given[_PROVIDER].lower()
        object.__setattr__(self, "properties", given)
        _check(given)
        if given.get(_PROVIDER) == _AWS and not self._aws_region:
            raise SettingsError(f"{_PROVIDER} {_AWS}: no region is in {self.bootstrap}: set AWS_REGION")

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
                options["sasl_oauth_token_provider"] = self._login_tokens()
            else:
                options["sasl_plain_username"] = self.properties[_USER]
                options["sasl_plain_password"] = self.properties[_PASSWORD]
        return options

    def _login_tokens(self) -> LoginTokens:
        provider = self.properties.get(_PROVIDER)
        if provider == _AWS:
            return tokens_of_aws(self._aws_region)
        if provider == _GOOGLE:
            return tokens_of_google()
        given = [self.properties.get(name, "") for name in (_TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE)]
        return tokens_of_endpoint(*given)

    @property
    def _aws_region(self) -> str:
        found = _AWS_REGION.search(self.bootstrap)
        return found[1] if found else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""

    def java_options(self) -> dict[str, str]:
        """
        Return the connection settings for Kafka's Java client, secrets included.

        Certificates and keys are passed as text, so the other machines need no files.

        Raises:
            SettingsError: a TLS file cannot be read, or Java cannot log in like that.
        """
        if _PROVIDER in self.properties:
            raise SettingsError(
                f"{_PROVIDER} {self.properties[_PROVIDER]}: the lake's jobs cannot log in by it; give them a user with "
                "SCRAM or PLAIN, or a certificate"
            )
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
        if _PROVIDER in given:
            _check_provider(given)
            wanted = []
        if missing := [name for name in wanted if not given.get(name)]:
            raise SettingsError(f"{_MECHANISM} {mechanism} needs {' and '.join(missing)}")
    # A setting without effect is a mistake that could end in a plain text connection.
    unused = [name for name in given if name.startswith("ssl.") and "SSL" not in protocol]
    unused += [name for name in given if name.startswith("sasl.") and "SASL" not in protocol]
    if given.get(_METHOD, "oidc") != "oidc":
        raise SettingsError(f"{_METHOD} {given[_METHOD]}: give oidc")
    if unused:
        raise SettingsError(f"{', '.join(unused)} with {_PROTOCOL} {protocol}: give a protocol that uses it")


def _check_provider(given: Mapping[str, str]) -> None:
    provider = given[_PROVIDER]
    if provider not in _PROVIDERS:
        raise SettingsError(f"{_PROVIDER} {provider}: give one of {', '.join(_PROVIDERS)}")
    others = [name for name in (_USER, _PASSWORD, _TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE) if name in given]
    if given[_MECHANISM] != "OAUTHBEARER" or others:
        without = f" without {', '.join(others)}" * bool(others)
        raise SettingsError(f"{_PROVIDER} {provider}: give it with {_MECHANISM} OAUTHBEARER{without}")
    package, extra = _PROVIDERS[provider]
    try:
        is_there = find_spec(package) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise SettingsError(f"{_PROVIDER} {provider} needs a package: pip install 'kafka-timers[{extra}]'")


def _text(given: Mapping[str, str], name: str) -> str:
    try:
        return Path(given[name]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} {given[name]} cannot be read: {error}") from error


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
