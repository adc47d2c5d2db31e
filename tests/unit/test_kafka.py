"""How to connect: settings from a file and the environment, refused ones, and that no secret is shown."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme

from kafka_timers.broker.connection import PROPERTIES, Kafka
from kafka_timers.errors import SettingsError
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.settings import WorkerSettings

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "timers",
    "sasl.password": "s3cret",
}


def test_without_anything_it_is_plain_text() -> None:
    kafka = Kafka.of("k:9092", env={})
    assert kafka.client_options() == {"bootstrap_servers": "k:9092", "client_id": "kafka-timers"}
    assert kafka.java_options() == {
        "bootstrap.servers": "k:9092",
        "client.id": "kafka-timers",
        "security.protocol": "PLAINTEXT",
    }
    assert str(kafka) == "k:9092"


def test_a_file_says_how_to_connect_and_the_environment_goes_over_it(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# of the cluster\n\n security.protocol = sasl_ssl\nsasl.mechanisms=PLAIN\nsasl.username=a\nsasl.password=b=c\n"
    )
    options = Kafka.of("k:9092", str(file), env={"KAFKA_TIMERS_SASL_USERNAME": "d"}).client_options()
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_SSL", "PLAIN")
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("d", "b=c")


def test_no_secret_is_printed() -> None:
    kafka = Kafka("k:9092", SCRAM)
    assert str(kafka) == "k:9092 (SASL_SSL, SCRAM-SHA-512 as timers)"
    assert "s3cret" not in repr(kafka)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"security.protocl": "SSL"}, "security.protocl: not known"),
        ({"security.protocol": "TLS"}, "give one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "GSSAPI: give one of PLAIN"),
        ({**SCRAM, "sasl.password": ""}, "SCRAM-SHA-512 needs sasl.password"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "sasl.oauthbearer.token.endpoint.url",
        ),
        ({**SCRAM, "security.protocol": "SSL"}, "sasl.mechanism, sasl.username, sasl.password with"),
        ({"ssl.ca.location": "ca.pem"}, "ssl.ca.location with security.protocol PLAINTEXT"),
    ],
)
def test_properties_that_do_not_fit_are_named(properties: Mapping[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Kafka("k:9092", properties)
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named_without_its_content(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.properties cannot be read"):
        Kafka.of("k:9092", str(tmp_path / "missing.properties"))
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\ns3cret\n")
    with pytest.raises(SettingsError, match="line 2: give name=value") as raised:
        Kafka.of("k:9092", str(file))
    assert "s3cret" not in str(raised.value)


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "user.pem").write_text("no certificate")
    for given in ({"ssl.ca.location": "no-ca.pem"}, {"ssl.certificate.location": str(tmp_path / "user.pem")}):
        kafka = Kafka("k:9092", {"security.protocol": "SSL", **given})
        for options in (kafka.client_options, kafka.java_options):
            if options == kafka.java_options and "ssl.certificate.location" in given:
                continue  # Java reads its value
            with pytest.raises(SettingsError) as raised:
                options()
            assert next(iter(given.values())) in str(raised.value)


def test_java_gets_certificates_and_key_as_text(tmp_path: Path) -> None:
    """So that no file has to be on each machine that an executor runs on."""
    authority, user = trustme.CA(), tmp_path / "user.pem"
    ca, key = tmp_path / "ca.pem", tmp_path / "user.key"
    authority.cert_pem.write_to_path(str(ca))
    issued = authority.issue_cert("user.example.org")
    issued.cert_chain_pems[0].write_to_path(str(user))
    issued.private_key_pem.write_to_path(str(key))
    files = {"ssl.ca.location": str(ca), "ssl.certificate.location": str(user), "ssl.key.location": str(key)}
    options = Kafka("k:9092", {"security.protocol": "SSL", **files}).java_options()
    assert options["ssl.truststore.certificates"] == ca.read_text()
    assert options["ssl.keystore.certificate.chain"] == user.read_text()
    assert options["ssl.keystore.key"] == key.read_text()
    assert options["ssl.truststore.type"] == options["ssl.keystore.type"] == "PEM"


def test_clients_share_the_certificates_read_for_tls() -> None:
    """The system's certificates take long to read, and a worker makes a client for each partition."""
    settings = WorkerSettings(bootstrap="k:9092")
    assert settings.kafka is settings.kafka
    kafka = Kafka("k:9092", {"security.protocol": "SSL"})
    assert kafka.client_options()["ssl_context"] is kafka.client_options()["ssl_context"]


def test_a_password_may_have_characters_with_a_meaning_to_java() -> None:
    options = Kafka("k:9092", {**SCRAM, "sasl.password": '"; \\ x'}).java_options()
    assert options["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="timers" password="\"; \\ x";'
    )


def test_settings_name_the_problem_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        WorkerSettings(kafka_config=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="not a list of Kafka brokers"):
        WorkerSettings(bootstrap="")
    with pytest.raises(SettingsError, match="give bootstrap too"):
        DevSettings(kafka_config="client.properties")


def test_security_page_names_every_property() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert [name for name in PROPERTIES if f"`{name}`" not in page] == []
