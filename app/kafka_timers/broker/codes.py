"""Error numbers of Kafka's protocol, grouped by the client's reaction."""

from aiokafka.errors import for_code

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER = 6
REQUEST_TIMED_OUT = 7
RECORD_LIST_TOO_LARGE = 18
MESSAGE_TOO_LARGE = 10
NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 19, 20
TOPIC_AUTHORIZATION_FAILED = 29
INVALID_CONFIG, POLICY_VIOLATION = 40, 44
DUPLICATE_SEQUENCE_NUMBER = 46
CONCURRENT_TRANSACTIONS = 51
OPERATION_NOT_ATTEMPTED = 55
UNSTABLE_OFFSET_COMMIT = 88
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75

FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71

_COORDINATOR_LOADING, _COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR = 14, 15, 16
_INVALID_PRODUCER_EPOCH, _PRODUCER_FENCED = 47, 90

# Another producer has taken over the transactional id.
FENCED = frozenset((_INVALID_PRODUCER_EPOCH, _PRODUCER_FENCED))
# The transactional id has expired at the broker, or another producer has it under a new producer id.
INVALID_PRODUCER_ID_MAPPING = 49
# Look the coordinator up, then ask again.
ELSEWHERE = frozenset((_COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR))
# Ask again: a transaction is about to complete, which takes milliseconds.
COMPLETING = frozenset((CONCURRENT_TRANSACTIONS, UNSTABLE_OFFSET_COMMIT))
DELAYS_OF_COORDINATORS = frozenset((_COORDINATOR_LOADING, *ELSEWHERE, *COMPLETING))
# Ask again: the leader has moved or is not ready, replicas are missing, or the transaction before is not complete.
DELAYS_OF_LEADERS = frozenset(
    (
        *(2, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT, 8, 9, 13),
        *(_COORDINATOR_LOADING, *ELSEWHERE, CONCURRENT_TRANSACTIONS, 56),
        *(NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        *(FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, 78, 89),
    )
)
# For how many seconds to wait for a partition that takes nothing before going on without it. An election takes 9 s and
# more. Replicas that a leader lacks will be missing for long; a replica that has just died times requests out.
UNAVAILABLE_AFTER_S = {
    NOT_ENOUGH_REPLICAS: 2.0,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: 2.0,
    REQUEST_TIMED_OUT: 12.0,
    LEADER_NOT_AVAILABLE: 15.0,
}
# These errors concern the producer or its request. An error in none of these sets is a refusal by the topic itself.
OF_THE_PRODUCER = FENCED | {INVALID_PRODUCER_ID_MAPPING, -1, 31, 33, 35, 42, 45, 48, 53, 58, 59, 120}

# Codes for which aiokafka has no name, or another one than Kafka.
_NAMES = {
    MESSAGE_TOO_LARGE: "MESSAGE_TOO_LARGE",
    FENCED_LEADER_EPOCH: "FENCED_LEADER_EPOCH",
    UNKNOWN_LEADER_EPOCH: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    UNSTABLE_OFFSET_COMMIT: "UNSTABLE_OFFSET_COMMIT",
    32: "INVALID_TIMESTAMP",
    INVALID_CONFIG: "INVALID_CONFIG",
    POLICY_VIOLATION: "POLICY_VIOLATION",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
    _PRODUCER_FENCED: "PRODUCER_FENCED",
    120: "TRANSACTION_ABORTABLE",
}


def reason_of(code: int) -> int:
    """
    Return the code that stands for all for which a partition takes no batch for the same reason.

    That brokers do not know it, and that its leader lacks replicas, are reasons of their own. All others are one: a
    partition that moves gives several codes in turn.
    """
    if code == NOT_ENOUGH_REPLICAS_AFTER_APPEND:
        return NOT_ENOUGH_REPLICAS
    return code if code in (UNKNOWN_TOPIC_OR_PARTITION, NOT_ENOUGH_REPLICAS) else 0


def name_of(code: int) -> str:
    """Return Kafka's name of *code*."""
    known = for_code(code)
    return str(_NAMES.get(code) or (known.message if known.errno == code else f"error {code}"))
