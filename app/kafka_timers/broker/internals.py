"""
The private names of aiokafka and Faust that the service cannot do without; no other module touches any.

A private name may change with any version, and nothing would tell: one that is set would be set in vain, one that is
read could mean something else. So they are all here, each with what is relied on, and tests/unit/test_internals.py
tries that on the installed versions. Faust itself is not imported, since a client of the service need not have it.
"""

from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer

__all__ = ["ProducerIdentity", "connection_of", "identity_of", "set_fetch_wait", "transactional_id_of"]

_CONNECTION = (
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)


class ProducerIdentity(NamedTuple):
    """What the broker knows a transactional producer by; the next one with its transactional id has another epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


def transactional_id_of(producer: AIOKafkaProducer) -> str | None:
    """
    Return the transactional id that *producer* was made with; None without one.

    aiokafka keeps it in the transaction manager, which an idempotent producer has as well, and any other has not.
    """
    manager = producer._txn_manager
    return None if manager is None else manager.transactional_id


def identity_of(producer: AIOKafkaProducer) -> ProducerIdentity:
    """
    Return what the broker knows *producer* by, which is started and transactional.

    The broker gives id and epoch to `start`. aiokafka keeps them in the transaction manager and never asks for others.
    """
    manager = producer._txn_manager
    return ProducerIdentity(manager.transactional_id, manager.producer_id, manager.producer_epoch)


def connection_of(producer: AIOKafkaProducer) -> tuple[str, dict[str, Any]]:
    """
    Return how *producer* connects: its brokers, host:port, comma separated, and the options of TLS and SASL.

    aiokafka's client keeps each option as it was given, under its name with an underscore before it. A consumer takes
    the same options.
    """
    client = producer.client
    brokers = client._bootstrap_servers
    where = brokers if isinstance(brokers, str) else ",".join(brokers)
    return where, {name: getattr(client, f"_{name}") for name in _CONNECTION}


def set_fetch_wait(app: Any, wait_ms: int) -> None:
    """
    Have the consumer of *app* wait for new records for *wait_ms* in each fetch; Faust has no setting for it.

    Args:
        app: of Faust; its consumer has been started, as it is whenever partitions are assigned.
        wait_ms: taken up by the next fetch, since aiokafka's fetcher reads its field anew for each.
    """
    app.consumer._thread._consumer._fetcher._fetch_max_wait_ms = wait_ms
