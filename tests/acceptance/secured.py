"""
A Kafka with TLS, SASL and an authorizer, and the service on it.

The test itself uses a listener in plain text, whose user may do everything; the processes of the service
log in, each as its own user, and have the rights that `kafka-timers acls` prints.
"""

import base64
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import trustme
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from service import Process, Service

from kafka_timers.cli.program import program
from kafka_timers.dev.broker import EmbeddedKafka, free_port

USERS = ("oscillator", "worker", "topics", "client", "observer", "console", "lake")

# Process, operation and purpose, as `kafka-timers acls` prints them.
Right = tuple[str, str, str]

_MODULES = "org.apache.kafka.common.security."
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class SecuredKafka:
    """A broker: its `bootstrap` is for the test, `sasl` and `tls` for the service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passwords = {user: secrets.token_hex(12) for user in USERS}
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    async def __aenter__(self) -> Self:
        """Start the broker, and make its users."""
        plain, sasl, tls, controller = (free_port() for _ in range(4))
        self.sasl, self.tls = f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}"
        server = self.folder / "server.pem"
        server.write_bytes(pem_of(self._authority.issue_cert("127.0.0.1")))
        users = "".join(f' user_{user}="{password}"' for user, password in self.passwords.items())
        jaas = "listener.name.sasl_ssl.{}.sasl.jaas.config"
        properties = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://{self.sasl},SSL://{self.tls},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://{self.sasl},SSL://{self.tls}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            jaas.format("plain"): f"{_MODULES}plain.PlainLoginModule required{users};",
            jaas.format("scram-sha-256"): f"{_MODULES}scram.ScramLoginModule required;",
            jaas.format("scram-sha-512"): f"{_MODULES}scram.ScramLoginModule required;",
            # Takes tokens that nobody has signed, which is for tests only.
            jaas.format("oauthbearer"): f"{_MODULES}oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
        }
        self._broker = EmbeddedKafka(self.folder / "kafka", plain, properties)
        await self._broker.start()
        self.bootstrap = self._broker.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            wanted = [
                UserScramCredentialUpsertion(user, credential, password.encode())
                for user, password in self.passwords.items()
            ]
            for user in self.admin.alter_user_scram_credentials(wanted).values():
                user.result(30)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the broker."""
        await self._broker.stop()

    def allow(self, prefix: str, *options: str, but: Right | None = None) -> None:
        """Give all processes of an instance the rights that `kafka-timers acls` prints, *but* for one."""
        arguments = ["acls", "--topic-prefix", prefix, "--group", prefix + "workers", *options, "--json"]
        told = json.loads(CliRunner().invoke(program, arguments, catch_exceptions=False).stdout)
        acls = [
            AclBinding(
                _RESOURCES[acl["resource"]],
                acl["name"],
                ResourcePatternType.PREFIXED if acl["is_prefix"] else ResourcePatternType.LITERAL,
                acl["principal"],
                "*",
                _OPERATIONS[operation],
                AclPermissionType.ALLOW,
            )
            for acl in told
            for operation in acl["operations"]
            if (acl["process"], operation, acl["why"]) != but
        ]
        for made in self.admin.create_acls(acls).values():
            made.result(30)

    def config(self, user: str, mechanism: str = "SCRAM-SHA-512", **more: str) -> Path:
        """Return a file with which *user* logs in; *more* are lines in addition, with _ for dots."""
        lines = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.ca), "sasl.mechanism": mechanism}
        if mechanism != "OAUTHBEARER":
            lines |= {"sasl.username": user, "sasl.password": self.passwords[user]}
        return self.write(lines | {name.replace("_", "."): value for name, value in more.items()})

    def certified(self, user: str) -> Path:
        """Return a file with which *user* logs in by a certificate."""
        path = self.folder / f"{user}.pem"
        path.write_bytes(pem_of(self._authority.issue_cert(f"{user}.example.org", common_name=user)))
        return self.write(
            {
                "security.protocol": "SSL",
                "ssl.ca.location": str(self.ca),
                "ssl.certificate.location": str(path),
            }
        )

    def write(self, lines: Mapping[str, str]) -> Path:
        """Return a new file of *lines*."""
        path = self.folder / f"client-{secrets.token_hex(4)}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path


class SecuredService(Service):
    """A service whose processes log in."""

    def __init__(self, kafka: SecuredKafka, prefix: str, folder: Path) -> None:
        super().__init__(kafka.bootstrap, prefix, folder)
        self.kafka = kafka

    async def start(
        self,
        command: str,
        *options: str,
        data_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a process, which logs in as the user of its name."""
        login = self.kafka.sasl, self.kafka.config(command)
        return await self.start_as(command, *login, *options, data_dir=data_dir, env=env)

    async def start_as(
        self,
        command: str,
        where: str,
        config: Path,
        *options: str,
        data_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a process that logs in at address *where* as *config* says."""
        login = ["--bootstrap", where, "--kafka-config", str(config)]
        return await super().start(command, *login, *options, data_dir=data_dir, env=env)


def pem_of(issued: trustme.LeafCert) -> bytes:
    """Return key and certificates; the key as PKCS #8, the one form that Java reads."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pkcs8 + b"".join(blob.bytes() for blob in issued.cert_chain_pems)


def token_for(user: str, life_s: int = 600) -> str:
    """Return a token that nobody has signed."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + life_s})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*coded, ""])
