"""OAuth tokens for clouds, without the clouds: of what they are made, how long they serve, and what is told without."""

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kafka_timers.broker import connection, oauth
from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.running import log_to_stderr
from kafka_timers.errors import LoginError, SettingsError

AWS, GOOGLE = "aws_msk_iam", "gcp"
SECRET = "a secret of tests"
BOOTSTRAP = (
    "b-1.orders.a1b2c3.c4.kafka.eu-west-1.amazonaws.com:9098,b-2.orders.a1b2c3.c4.kafka.eu-west-1.amazonaws.com:9098"
)


def by(provider: str, bootstrap: str = BOOTSTRAP, **more: str) -> Kafka:
    """Return a Kafka to which one logs in with tokens of *provider*."""
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    return Kafka(bootstrap, login | {"sasl.oauthbearer.metadata.authentication.type": provider} | more)


async def token_of(kafka: Kafka) -> str:
    """Return the token with which aiokafka would log in."""
    token: str = await kafka.client_options()["sasl_oauth_token_provider"].token()
    return token


def decoded(part: str) -> str:
    """Return what is coded as base64 without its end."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without tokens, and without credentials of whoever runs the tests."""
    for tokens in (oauth.tokens_of_aws, oauth.tokens_of_google):
        tokens.cache_clear()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
                 "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_MANAGED_KAFKA_AUTH_PRINCIPAL"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clocks of the module are ahead, in a list of one."""
    ahead_s, own, wall = [0.0], time.monotonic, time.time

    class Ahead:
        monotonic = staticmethod(lambda: own() + ahead_s[0])
        time = staticmethod(wall)

    monkeypatch.setattr(oauth, "time", Ahead)
    return ahead_s


# --- Amazon ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have credentials as AWS's tools find them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


async def test_a_token_for_msk_is_a_signed_request_to_connect_in_the_region_of_the_brokers(
    aws: None, caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("debug")
    caplog.set_level(logging.DEBUG)
    kafka = by("AWS_MSK_IAM")
    token = await token_of(kafka)
    asked = urlsplit(decoded(token))
    query = {name: value for name, [value] in parse_qs(asked.query).items()}
    assert (asked.scheme, asked.netloc) == ("https", "kafka.eu-west-1.amazonaws.com")
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
    assert query["X-Amz-Credential"].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert (query["X-Amz-Expires"], len(query["X-Amz-Signature"])) == ("900", 64)
    for shown in (caplog.text, repr(kafka), str(kafka), repr(kafka.client_options())):
        assert not any(secret in shown for secret in (SECRET, token, query["X-Amz-Signature"]))


async def test_a_token_for_msk_is_made_anew_before_its_quarter_of_an_hour_is_over(
    aws: None, later: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await token_of(by(AWS))
    # Two of one second may be alike.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDANOTHER")
    later[0] = 700
    assert await token_of(by(AWS)) == first
    later[0] = 740
    assert "AKIDANOTHER" in decoded(await token_of(by(AWS)))


async def test_the_region_of_msk_may_be_given_where_brokers_have_other_names(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="no region is in kafka:9098: set AWS_REGION"):
        by(AWS, "kafka:9098")
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert "https://kafka.us-east-2.amazonaws.com/" in decoded(await token_of(by(AWS, "kafka:9098")))
    serverless = by(AWS, "boot-x.c2.kafka-serverless.eu-north-1.amazonaws.com:9098")
    assert "https://kafka.eu-north-1.amazonaws.com/" in decoded(await token_of(serverless))


async def test_without_credentials_of_aws_the_error_says_whose_are_missing() -> None:
    with pytest.raises(LoginError, match="no OAuth token from the AWS credentials of this process, in eu-west-1: "):
        await token_of(by(AWS))


# --- Google ----------------------------------------------------------------------------------------------------------


class Metadata(ThreadingHTTPServer):
    """
    Answers as the metadata server of a machine in Google's cloud.

    Attributes:
        tokens: how many access tokens it has given.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.tokens = 0


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that http.server calls
        account = {"email": "timers@orders.iam.gserviceaccount.com", "scopes": [], "aliases": ["default"]}
        told: Any = "orders"
        if "/service-accounts/" in self.path:
            told = account
        if "/token" in self.path:
            assert isinstance(self.server, Metadata)
            self.server.tokens += 1
            told = {"access_token": f"{SECRET} {self.server.tokens}", "expires_in": 3599, "token_type": "Bearer"}
        body = told if isinstance(told, str) else json.dumps(told)
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/text" if isinstance(told, str) else "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    """Run such a server, and be a machine that has it."""
    with Metadata() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        # Google's module read them when it was imported.
        from google.auth.compute_engine import _metadata

        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        serving.join()


async def test_a_token_for_googles_kafka_has_the_access_token_of_the_machines_account(
    metadata: Metadata, later: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("debug")
    caplog.set_level(logging.DEBUG)
    kafka = by(GOOGLE, "bootstrap.orders.europe-west1.managedkafka.orders.cloud.goog:9092")
    token = await token_of(kafka)
    header, claims, access_token = map(decoded, token.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    told = json.loads(claims)
    assert (told["iss"], told["scope"], told["sub"]) == ("Google", "kafka", "timers@orders.iam.gserviceaccount.com")
    assert 3_500 < told["exp"] - time.time() < 3_600
    assert access_token == f"{SECRET} 1"
    # All connections of a process share it, until it is old.
    later[0] = 2_700
    assert await asyncio.gather(token_of(kafka), token_of(kafka)) == [token, token]
    later[0] = 2_900
    assert decoded((await token_of(kafka)).split(".")[2]) == f"{SECRET} 2"
    assert SECRET not in caplog.text
    assert token not in repr(kafka.client_options())


async def test_without_credentials_of_google_the_error_says_whose_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(LoginError, match="no OAuth token from Google's Application Default Credentials: "):
        await token_of(by(GOOGLE))


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sasl.mechanism": "PLAIN"}, "give it with sasl.mechanism OAUTHBEARER"),
        ({"sasl.oauthbearer.client.id": "x"}, "OAUTHBEARER without sasl.oauthbearer.client.id"),
        ({"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method default: give oidc"),
        ({"security.protocol": "SSL"}, "sasl.oauthbearer.metadata.authentication.type with security.protocol SSL"),
    ],
)
def test_settings_that_do_not_fit_a_provider_are_named(more: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        by(AWS, **more)
    assert words in str(raised.value)


def test_an_unknown_provider_is_named_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError, match="azure_imds: give one of aws_msk_iam, gcp"):
        by("azure_imds")


@pytest.mark.parametrize(("provider", "extra"), [(AWS, "msk"), (GOOGLE, "google")])
def test_a_package_that_is_missing_is_named_by_its_extra(
    provider: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(package: str) -> None:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(connection, "find_spec", nothing)
    with pytest.raises(SettingsError, match=rf"pip install 'kafka-timers\[{extra}\]'"):
        by(provider)


def test_the_lake_says_that_it_cannot_log_in_with_a_provider() -> None:
    with pytest.raises(SettingsError, match="aws_msk_iam: the lake's jobs cannot log in by it; give them a user"):
        by(AWS).java_options()
