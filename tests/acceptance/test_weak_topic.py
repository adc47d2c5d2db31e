"""A callback topic that takes nothing while one of three brokers is away, beside topics that take all."""

import time
from collections import Counter
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic
from brokers import make_topic, make_topics, until_in_sync
from partable import PartableCluster
from service import Service

# A partition that one broker leads, and whose other replica is on the broker that goes. That is all of the minimum, or
# the only replica.
_WEAK = {
    "two of two": ([2, 1], {"min.insync.replicas": "2"}),
    "one of one": ([1], {"min.insync.replicas": "1"}),
    "three of three": ([2, 3, 1], {"min.insync.replicas": "3"}),
}

pytestmark = pytest.mark.chaos


async def fires_beside(service: Service, weak: str, numbers: range) -> dict[str, int]:
    """Ask for a timer on *weak* and on another topic for each of the next seconds; return the seconds of the latter."""
    now = int(time.time())
    strong = service.callbacks
    seconds = {f"strong-{number}": now + 2 + at for at, number in enumerate(numbers)}
    for name, second in seconds.items():
        await service.requests(second, [name], partition=int(name.rpartition("-")[2]) % service.partitions)
    service.callbacks = weak
    for name, second in seconds.items():
        number = int(name.rpartition("-")[2])
        await service.requests(second, [f"weak-{number}"], partition=number % service.partitions)
    service.callbacks = strong
    return seconds


@pytest.mark.parametrize("ends", ["kill", "stop"])
@pytest.mark.parametrize("kind", _WEAK)
async def test_a_topic_that_lacks_replicas_holds_up_no_timer_of_another_one(
    kind: str, ends: str, cluster: PartableCluster, prefix: str, tmp_path: Path
) -> None:
    """Its own timers fire once it is well, each once; the others go on some seconds after the broker has gone."""
    replicas, settings = _WEAK[kind]
    weak = prefix + "weak"
    stamped, placed = {"message.timestamp.type": "LogAppendTime"}, dict.fromkeys(range(4), replicas)
    await make_topics(cluster.bootstrap, NewTopic(weak, -1, -1, placed, topic_configs=settings | stamped))
    async with Service(cluster.bootstrap, prefix, tmp_path) as service:
        service.callbacks = prefix + "strong"
        await make_topic(cluster.bootstrap, service.callbacks, 4, stamped, 3)
        await until_in_sync(cluster)
        for name in ("oscillator", "worker"):
            worker = await service.start(name)
        await worker.until("/readyz", lambda status, _: status == 200)
        seconds = await fires_beside(service, weak, range(60))
        await service.read(weak, 2)
        await getattr(cluster.nodes[1], ends)()
        gone_at = time.time()
        strong = await service.read_all(service.callbacks, len(seconds))
        late_s = {r.value.decode(): r.timestamp / 1000 - seconds[r.value.decode()] for r in strong}
        print(kind, ends, {name: round(s, 1) for name, s in late_s.items() if s > 0.5})
        assert Counter(r.value.decode() for r in strong) == Counter(seconds.keys())
        # An election takes 9 s and more, and a busy machine needs some time to catch up.
        after = [s for name, s in late_s.items() if seconds[name] > gone_at + 30]
        assert after
        assert max(after) < 3
        assert worker.get("/livez")[0] == 200
        await cluster.nodes[1].start()
        await until_in_sync(cluster)
        names = Counter(f"weak-{number}" for number in range(60))
        found = await service.read_all(weak, len(names), quiet_s=5)
        assert Counter(r.value.decode() for r in found) == names
        rejected = await service.read(service.topics.rejected, 1, 1)
        assert dict(rejected[0].headers)["timer-rejected-reason"] == b"topic-unavailable"
