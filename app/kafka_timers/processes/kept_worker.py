"""
A worker that another process keeps running: one of `worker --processes N`, which uses all cores of a host, as one
Python process cannot; or the worker of `serve` and `dev`.

It is started as by hand, with its own group membership, folder and port. When it is killed, that is reported to the
group, which would otherwise notice only at the end of the session. For that purpose each worker stores its member id in
its folder.
"""

import asyncio
import dataclasses
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError

from kafka_timers.broker.groups import remove_member
from kafka_timers.processes.supervisor import Part, Supervisor, env_of, own_command
from kafka_timers.settings import WorkerSettings

log = logging.getLogger(__name__)

# Others have its partitions by then. If it came back earlier, they would be taken over twice in a row.
_RESTART_S = 3.0
# Longer than a worker needs to hand its partitions over.
_END_S = 15.0
# By then the group has noticed by itself.
_REPORT_S = 5.0
_MEMBER = "member"


def keep_member_id(folder: Path, member_id: str) -> None:
    """Store the member id of a worker in its *folder*, for the process that keeps it running."""
    # If the disk is full, the group has to notice by itself.
    with suppress(OSError):
        file = folder / _MEMBER
        # A worker may be killed during the write.
        new = file.with_suffix(".new")
        new.write_text(member_id)
        new.replace(file)


def settings_of(settings: WorkerSettings, number: int) -> WorkerSettings:
    """Return the settings of worker process *number*, from 0, with its own folder and ports."""
    folder = str(Path(settings.data_dir) / f"process-{number}")
    port, query_port = (first + number if first else 0 for first in (settings.port, settings.query_port))
    return dataclasses.replace(settings, processes=1, data_dir=folder, port=port, query_port=query_port)


def worker_part(name: str, settings: WorkerSettings, **more: Any) -> Part:
    """Return the worker with these *settings* as a part that ends before others, with *more* of its attributes."""
    return Part(
        name=name,
        command=own_command("worker"),
        env=env_of(settings),
        pause_s=_RESTART_S,
        end_s=_END_S,
        died=partial(_report, name, settings),
        **more,
    )


async def run_all(settings: WorkerSettings, stop: asyncio.Event) -> int:
    """
    Run `settings.processes` workers until *stop* is set, or until one of them gives up.

    Returns:
        0, or the exit code of the worker that gave up, for example because it cannot start. That worker has logged the
        reason.
    """
    numbers = range(settings.processes)
    parts = [worker_part(f"worker process {number}", settings_of(settings, number)) for number in numbers]
    return await Supervisor(parts).run(stop)


async def _report(name: str, settings: WorkerSettings) -> None:
    """Report to the group that a worker is dead, so that others get its partitions at once."""
    group = settings.group
    try:
        member_id = (Path(settings.data_dir) / _MEMBER).read_text()
        if await remove_member(settings.kafka, group, member_id, _REPORT_S):
            log.info("%s is out of group %s: others get its partitions", name, group)
    except FileNotFoundError:
        pass  # it has not joined yet
    except (OSError, KafkaError) as error:
        why = str(error) or f"no answer within {_REPORT_S:.0f} s"
        log.warning("%s could not be taken out of group %s: %s", name, group, why)
