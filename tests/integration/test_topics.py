"""The service's topics on a real broker: made once, and every fault told."""

import asyncio
import socket
from collections.abc import Mapping

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from brokers import administering, make_topic, make_topics
from patience import LIMIT_S

from kafka_timers.broker import topics
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topic_settings import problems
from kafka_timers.clock import HostClock
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError, TopicsError
from kafka_timers.processes.worker import Worker
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.settings import WorkerSettings

DAY_MS = 86_400_000
OWN = (
    *("timer-request", "oscillator", "timer-sealed", "timer-rejected", "timer-reply"),
    *("timer-schedule", "timer-planned", "timer-door"),
)


async def settings_of(bootstrap: str, name: str) -> dict[str, str]:
    async with administering(bootstrap) as admin:
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    return {entry[0]: entry[1] for entry in response.resources[0][4]}


async def test_topics_are_made_once_and_are_then_as_they_should_be(bootstrap: str, prefix: str) -> None:
    names = [prefix + name for name in OWN]
    assert await topics.create(Kafka(bootstrap), prefix, 3) == (names, [])
    assert await topics.create(Kafka(bootstrap), prefix, 3) == ([], [])
    assert await topics.check(Kafka(bootstrap), prefix) == []
    assert await topics.counts(Kafka(bootstrap), prefix) == dict.fromkeys(names, 3)


async def test_topics_that_exist_stay_as_they_are(bootstrap: str, prefix: str) -> None:
    await topics.create(Kafka(bootstrap), prefix, 3)
    assert await topics.create(Kafka(bootstrap), prefix, 5) == ([], [])
    assert set((await topics.counts(Kafka(bootstrap), prefix)).values()) == {3}


async def test_two_that_create_at_the_same_time_share_the_work(bootstrap: str, prefix: str) -> None:
    made = await asyncio.gather(*(topics.create(Kafka(bootstrap), prefix, 2) for _ in range(3)))
    assert sorted(name for created in made for name in created.topics) == sorted(
        await topics.counts(Kafka(bootstrap), prefix)
    )
    assert await topics.check(Kafka(bootstrap), prefix) == []


async def test_missing_topics_are_not_made_with_another_count_than_the_others_have(bootstrap: str, prefix: str) -> None:
    await make_topic(bootstrap, prefix + "timer-request", 2)
    with pytest.raises(TopicsError, match=f"{prefix}timer-request has 2 partitions: create the missing"):
        await topics.create(Kafka(bootstrap), prefix, 4)
    assert await topics.counts(Kafka(bootstrap), prefix) == {prefix + "timer-request": 2}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "timer-request",
            {
                "cleanup.policy": "delete",
                "message.timestamp.type": "LogAppendTime",
                "retention.ms": "-1",
                "retention.bytes": "-1",
            },
        ),
        (
            "oscillator",
            {
                "cleanup.policy": "delete",
                "message.timestamp.type": "LogAppendTime",
                "retention.ms": str(7 * DAY_MS),
                "segment.ms": str(DAY_MS),
            },
        ),
        (
            "timer-sealed",
            {
                "cleanup.policy": "compact",
                "message.timestamp.type": "LogAppendTime",
                "min.compaction.lag.ms": str(7 * DAY_MS),
                "segment.ms": str(DAY_MS),
            },
        ),
        ("timer-rejected", {"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS)}),
        (
            "timer-reply",
            {
                "cleanup.policy": "delete",
                "message.timestamp.type": "LogAppendTime",
                "retention.ms": str(DAY_MS),
                "segment.ms": str(DAY_MS),
            },
        ),
        (
            "timer-schedule",
            {
                "cleanup.policy": "compact",
                "message.timestamp.type": "LogAppendTime",
                "min.compaction.lag.ms": str(7 * DAY_MS),
            },
        ),
        (
            "timer-planned",
            {"cleanup.policy": "compact", "segment.ms": "3600000", "min.compaction.lag.ms": "3600000"},
        ),
        (
            "timer-door",
            {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", "segment.ms": str(DAY_MS)},
        ),
    ],
)
async def test_each_topic_is_created_with_the_settings_that_its_records_need(
    bootstrap: str, prefix: str, name: str, expected: dict[str, str]
) -> None:
    await topics.create(Kafka(bootstrap), prefix, 1)
    assert (await settings_of(bootstrap, prefix + name)).items() >= expected.items()


async def test_check_names_each_missing_topic_and_makes_none(bootstrap: str, prefix: str) -> None:
    for _ in range(2):
        problems = await topics.check(Kafka(bootstrap), prefix)
        assert [problem.split(": create it with kafka-timers topics create")[0] for problem in problems] == [
            f"topic {prefix}{name} is missing" for name in OWN
        ]


SOUND = {
    "timer-request": {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
    "oscillator": {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
    "timer-sealed": {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(8 * DAY_MS),
    },
    "timer-rejected": {"message.timestamp.type": "CreateTime", "retention.ms": "1000"},
    "timer-reply": {"message.timestamp.type": "CreateTime", "retention.ms": "1000"},
    "timer-schedule": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    "timer-planned": {"message.timestamp.type": "CreateTime", "cleanup.policy": "compact"},
    "timer-door": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
}


async def make_sound(
    bootstrap: str,
    prefix: str,
    counts: Mapping[str, int] | None = None,
    configs: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Make the service's topics, with two partitions but for *counts*, and some of them with more *configs*."""
    wanted = [
        NewTopic(
            prefix + name, (counts or {}).get(name, 2), 1, topic_configs=sound | dict((configs or {}).get(name, {}))
        )
        for name, sound in SOUND.items()
    ]
    await make_topics(bootstrap, *wanted)


@pytest.mark.parametrize(
    ("name", "configs"),
    [
        ("timer-request", {"cleanup.policy": "compact"}),
        ("timer-request", {"cleanup.policy": "compact,delete"}),
        ("timer-request", {"message.timestamp.type": "CreateTime"}),
        ("timer-request", {"retention.ms": "9000000000"}),
        ("timer-request", {"retention.bytes": "9000000000"}),
        ("oscillator", {"cleanup.policy": "compact"}),
        ("oscillator", {"message.timestamp.type": "CreateTime"}),
        ("oscillator", {"retention.ms": "3600000"}),
        ("timer-sealed", {"cleanup.policy": "delete"}),
        ("timer-sealed", {"cleanup.policy": "compact,delete"}),
        ("timer-sealed", {"message.timestamp.type": "CreateTime"}),
        ("timer-rejected", {"cleanup.policy": "compact"}),
        ("timer-reply", {"cleanup.policy": "compact"}),
        ("timer-schedule", {"cleanup.policy": "delete"}),
        ("timer-schedule", {"message.timestamp.type": "CreateTime"}),
        ("timer-planned", {"cleanup.policy": "compact,delete"}),
        ("timer-door", {"cleanup.policy": "delete"}),
        *[(name, {"unclean.leader.election.enable": "true"}) for name in ("timer-request", "timer-sealed")],
    ],
)
async def test_check_names_a_wrong_setting_and_the_right_value(
    bootstrap: str, prefix: str, name: str, configs: dict[str, str]
) -> None:
    await make_sound(bootstrap, prefix, configs={name: configs})
    (problem,) = await topics.check(Kafka(bootstrap), prefix)
    ((key, value),) = configs.items()
    assert problem.startswith(f"topic {prefix}{name} has {key}={value}: set it to ")
    assert ", because " in problem


async def test_check_accepts_settings_that_an_operator_may_choose(bootstrap: str, prefix: str) -> None:
    await make_sound(bootstrap, prefix, {"timer-rejected": 5, "timer-reply": 5})
    assert await topics.check(Kafka(bootstrap), prefix) == []


async def test_check_compares_the_partitions_of_schedules_with_those_that_plan_them(
    bootstrap: str, prefix: str
) -> None:
    """A schedule in a partition without ticks is never planned, and nothing else would tell."""
    await make_sound(bootstrap, prefix, {"timer-schedule": 4, "timer-planned": 3, "timer-rejected": 5})
    problems = await topics.check(Kafka(bootstrap), prefix)
    assert [problem.split(":")[0] for problem in problems] == [
        f"topic {prefix}timer-schedule has 4 partitions and {prefix}oscillator has 2",
        f"topic {prefix}timer-schedule has 4 partitions and {prefix}timer-planned has 3",
    ]


@pytest.mark.parametrize(
    ("replicas", "in_sync", "told"),
    [
        (1, 1, None),
        (2, 1, None),
        (3, 2, None),
        (2, 2, "nothing can be written while one of their brokers is away"),
        (3, 3, "nothing can be written while one of their brokers is away"),
        (2, 3, "nothing can be written while one of their brokers is away"),
        (3, 1, "one lost broker may lose records"),
    ],
)
def test_check_compares_replicas_with_those_that_must_be_in_sync(replicas: int, in_sync: int, told: str | None) -> None:
    names = Topics.of("")
    configs = {name: sound | {"min.insync.replicas": str(in_sync)} for name, sound in SOUND.items()}
    for name in configs:
        configs[name] = {"cleanup.policy": "delete", "retention.bytes": "-1"} | configs[name]
    found = problems(names, dict.fromkeys(OWN, 2), configs, dict.fromkeys(OWN, replicas))
    assert len(found) == (len(OWN) if told else 0)
    assert all(told in problem for problem in found if told)


async def test_with_a_horizon_the_request_log_may_expire_a_week_behind_it(bootstrap: str, prefix: str) -> None:
    eight_days_ms = 8 * 86_400_000
    await make_sound(bootstrap, prefix, configs={"timer-request": {"retention.ms": str(eight_days_ms)}})
    assert await topics.check(Kafka(bootstrap), prefix, horizon_s=86_400) == []
    for horizon_s in (0, 86_401):
        (problem,) = await topics.check(Kafka(bootstrap), prefix, horizon_s)
        assert problem.startswith(f"topic {prefix}timer-request has retention.ms={eight_days_ms}: set it to ")


async def test_where_workers_sweep_the_log_may_expire_in_twice_the_time_that_they_keep(
    bootstrap: str, prefix: str
) -> None:
    await make_sound(bootstrap, prefix, configs={"timer-request": {"retention.ms": str(14 * DAY_MS)}})
    kafka, keep_s = Kafka(bootstrap), 7 * 86_400
    assert await topics.check(kafka, prefix, keep_s=keep_s) == []
    for more in ({"keep_s": keep_s + 1}, {"keep_s": keep_s, "horizon_s": 14 * 86_400}):
        (problem,) = await topics.check(kafka, prefix, **more)
        assert problem.startswith(f"topic {prefix}timer-request has retention.ms={14 * DAY_MS}: set it to ")


async def test_check_tells_partition_counts_that_differ(bootstrap: str, prefix: str) -> None:
    await make_sound(bootstrap, prefix, {"oscillator": 3})
    (problem,) = await topics.check(Kafka(bootstrap), prefix)
    assert problem.startswith(
        f"partition counts differ ({prefix}timer-request 2, {prefix}oscillator 3, {prefix}timer-sealed 2)"
    )


@pytest.mark.parametrize(
    ("served", "words"), [(2, "must not be deleted"), (4, "--alter --topic {name} --partitions 4")]
)
async def test_check_tells_the_way_back_from_another_number_than_is_served(
    bootstrap: str, prefix: str, served: int, words: str
) -> None:
    await topics.create(Kafka(bootstrap), prefix, 3)
    found = await topics.check(Kafka(bootstrap), prefix, served=served)
    names = [prefix + name for name in ("timer-request", "oscillator", "timer-sealed")]
    for name, problem in zip(names, found, strict=True):
        assert problem.startswith(f"topic {name} has 3 partitions and the service runs with {served}: ")
        assert words.format(name=name) in problem


async def test_a_broker_that_accepts_and_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BrokerError, match=f"no answer from Kafka at {address} within 0.3 s"):
            async with topics.answering(Kafka(address), timeout_s=0.3):
                await topics.check(Kafka(address), "")


async def test_a_topic_that_the_broker_refuses_is_said_with_its_reason(bootstrap: str) -> None:
    with pytest.raises(TopicsError, match="topics that cannot be created: no good-timer-request: INVALID_TOPIC"):
        await topics.create(Kafka(bootstrap), "no good-", 1)


# --- the worker's reports about them ---------------------------------------------------------------------------------


async def test_a_worker_reports_problems_of_the_topics(
    bootstrap: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make_topic(bootstrap, Topics.of(prefix).requests, 2, {"retention.ms": "3600000"})
    await topics.create(Kafka(bootstrap), prefix, 2)
    worker = Worker(WorkerSettings(bootstrap=bootstrap, topic_prefix=prefix))
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        lookup = TopicLookup(cluster, Topics.of(prefix), "*", HostClock())
        watching = asyncio.create_task(worker._watch_topics(cluster, lookup, 2))
        async with asyncio.timeout(LIMIT_S):
            while not (problems := worker.metrics.topic_problems._value.get()):  # noqa: ASYNC110  # as Prometheus asks
                await asyncio.sleep(0.05)
        watching.cancel()
    assert problems >= 2
    assert worker.metrics.retention._value.get() == 3_600
    assert "retention.ms=3600000: set it to -1" in caplog.text
