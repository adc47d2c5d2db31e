"""
Runs several workers as one command: `worker --processes N` uses all cores of a host, as one Python process cannot.

Each worker is a process of its own, as if started by hand, with its own group membership, folder and port. This module
does the work of an init system: start, restart after a crash, stop.

It also reports a killed worker to the group, which would otherwise notice only at the end of the session. For that
purpose each worker stores its member id in its folder.
"""

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from aiokafka.errors import KafkaError

from kafka_timers.broker.environment import env_name
from kafka_timers.broker.groups import remove_member
from kafka_timers.runtime.die_with_parent import die_with_us
from kafka_timers.settings import WorkerSettings

log = logging.getLogger(__name__)

# Others have its partitions by then. If it came back earlier, they would be taken over twice in a row.
_RESTART_S = 3.0
# Longer than a worker needs to hand its partitions over.
_STOP_S = 15.0
# By then the group has noticed by itself.
_REPORT_S = 5.0
_MEMBER = "member"


def keep_member_id(folder: Path, member_id: str) -> None:
    """Store the member id of a worker in its *folder*, for `run_all`."""
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


async def run_all(settings: WorkerSettings, stop: asyncio.Event) -> int:
    """
    Run `settings.processes` workers until *stop* is set, or until one of them gives up.

    Returns:
        0, or the exit code of the worker that gave up, for example because it cannot start. That worker has logged the
        reason.
    """
    keepers = [asyncio.create_task(_keep(number, settings, stop)) for number in range(settings.processes)]
    await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    return max(await asyncio.gather(*keepers))


async def _keep(number: int, settings: WorkerSettings, stop: asyncio.Event) -> int:
    """Keep one worker running. Return its exit code once it gives up or is stopped."""
    own = dataclasses.asdict(settings_of(settings, number))
    env = os.environ | {env_name(name): str(value) for name, value in own.items()}
    command = [sys.executable, "-m", "kafka_timers", "worker"]
    stopping = asyncio.create_task(stop.wait())
    while not stop.is_set():
        process = await asyncio.create_subprocess_exec(
            # In a session of its own: Ctrl-C goes to this process, which stops the others.
            *die_with_us(*command),
            env=env,
            start_new_session=True,
        )
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait([ended], timeout=_STOP_S)
            with suppress(ProcessLookupError):
                process.kill()
            await ended
            return 0
        code = ended.result()
        if code >= 0:
            return code
        log.error("worker process %d was ended by signal %d: starting it again", number, -code)
        reporting = asyncio.create_task(_report(number, settings))
        await asyncio.wait([stopping], timeout=_RESTART_S)
        await reporting
    return 0


async def _report(number: int, settings: WorkerSettings) -> None:
    """Report to the group that worker process *number* is dead, so that others get its partitions at once."""
    group = settings.group
    try:
        member_id = (Path(settings_of(settings, number).data_dir) / _MEMBER).read_text()
        if await remove_member(settings.kafka, group, member_id, _REPORT_S):
            log.info("worker process %d is out of group %s: others get its partitions", number, group)
    except FileNotFoundError:
        pass  # it has not joined yet
    except (OSError, KafkaError) as error:
        why = str(error) or f"no answer within {_REPORT_S:.0f} s"
        log.warning("worker process %d could not be taken out of group %s: %s", number, group, why)
