"""A request log that gives back what nobody needs."""

import shutil
from pathlib import Path

from service import Service

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka


async def test_a_timer_that_waits_long_holds_no_log_back(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with Service(bootstrap, prefix, tmp_path) as service:
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "4")
        await service.requests(30, ["far"], partition=0)
        names = [str(number) for number in range(30)]
        await service.requests(1, names, partition=0)
        await service.read(service.callbacks, 30)
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") >= 31)
        assert worker.metric("kafka_timers_swept_requests_total") >= 1
        worker.child.kill()
        await worker.child.wait()
        shutil.rmtree(worker.store)
        again = await service.firing("--keep-s", "4")
        assert sorted(await service.callback_names([*names, "far"])) == sorted([*names, "far"])
        code, said = await service.status()
        assert code == 0, said
        assert again.metric("kafka_timers_pending") == 0


async def test_a_worker_without_a_disk_goes_on_where_the_log_begins_by_now(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with Service(bootstrap, prefix, tmp_path) as service:
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "1")
        names = [str(number) for number in range(31)]
        await service.requests(1, names[:30], partition=0)
        await service.read(service.callbacks, 30)
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") >= 30)
        async with Cluster.open(Kafka(bootstrap)) as cluster:
            await cluster.look_up([service.topics.requests])
            starts = await LogBounds(cluster, service.topics.requests).starts([0])
        assert starts[0] >= 30
        worker.child.kill()
        await worker.child.wait()
        await service.firing("--keep-s", "1")
        await service.requests(1, names[30:], partition=0)
        assert sorted(await service.callback_names(names), key=int) == names
        code, said = await service.status()
        assert code == 0, said
