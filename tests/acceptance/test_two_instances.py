"""Two instances on one Kafka: a topic prefix is enough to separate them."""

import asyncio
from pathlib import Path

from patience import LIMIT_S
from service import Service

DUE_S = 1_700_000_000


async def fires(service: Service, name: str) -> bool:
    """Tell whether the instance fires a timer in each partition."""
    names = [f"{name}-{number}" for number in range(service.partitions)]
    await service.requests(DUE_S, names)
    await service.until_sealed(DUE_S)
    return {*names} <= {*await service.callback_names(names)}


async def test_a_worker_in_the_group_of_another_instance_ends_alone_and_says_why(
    service: Service, bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with Service(bootstrap, f"{prefix}other-", tmp_path / "other", partitions=2) as other:
        # The group follows from the topic prefix, also where it is given and empty.
        worker, beside = await asyncio.gather(service.worker("--group", ""), other.worker("--group", ""))
        stray = await other.start("worker", "--group", f"{prefix}kafka-timers")
        assert await asyncio.wait_for(stray.child.wait(), LIMIT_S) == 1
        said = stray.child.last_words()
        assert f"group {prefix}kafka-timers is that of workers on topic {prefix}oscillator" in said, said
        assert "leave --group out" in said
        assert await fires(service, "ours")
        assert await fires(other, "theirs")
        for process in (worker, beside):
            await process.child.stop(LIMIT_S)
            assert process.child.returncode == 0
