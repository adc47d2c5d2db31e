"""
The larger trouble of a history: brokers, disks, topics, the group and whole processes.

Each kind is one method; a random history draws among them, a told story calls the one that it is about.
"""

import asyncio
import random
from collections.abc import Callable

from kafka_timers.core.wire import Sealed, is_complete
from simulation.clients import MOODY, Clients
from simulation.group import Group
from simulation.kafka import NODES, Kafka
from simulation.loop import SeededLoop
from simulation.network import Network

# The troubles that a random history draws from; each is a method of `Nemesis`.
TROUBLES = (
    *("kill", "pause", "deafen", "rebalance", "back_up", "cancel_late"),
    *("freeze", "kill_broker", "black_out", "elect", "cut_off", "slow_down"),
    *("fill_disk", "spoil_topic", "hold_up_replies", "retain", "compact", "sweep"),
)
# How long a broker is silent before the others lead in its place.
_SESSION_S = 3.0


class Nemesis:
    """
    The maker of trouble.

    Args:
        loop: of the history.
        kafka: its brokers.
        network: the way to them.
        group: of the workers.
        clients: the clients that ask for timers.
        seed: decides which trouble happens when.
        say: takes a line for each trouble.
    """

    def __init__(
        self,
        loop: SeededLoop,
        kafka: Kafka,
        network: Network,
        group: Group,
        clients: Clients,
        seed: object,
        say: Callable[[str], None],
    ) -> None:
        self._loop, self._kafka, self._network = loop, kafka, network
        self._group, self._clients = group, clients
        self._seed, self._rng = seed, random.Random(f"{seed}/nemesis")
        self._say = say
        self._kinds: list[Callable[[], None]] = []
        self._pause_s = 1.0
        self._sweeps_s = 0.0

    def draw(self, kinds: frozenset[str]) -> None:
        """Draw which of *kinds* of trouble a history has, and how much of it."""
        if self._rng.random() < 0.9:
            self._kinds = [getattr(self, kind) for kind in TROUBLES if kind in kinds and self._rng.random() < 0.5]
        self._pause_s = self._rng.choice((0.7, 1.5, 4.0))
        if "sweep" in kinds:
            self._sweeps_s = random.Random(f"{self._seed}/sweeps").choice((0.0, 0.5, 2.0))

    async def run(self, until_s: float) -> None:
        """Make trouble, until a moment of the loop's time."""
        if self._sweeps_s:
            self._loop.outside(self._sweeps_s, self._sweep_on, until_s)
        while self._kinds and self._loop.time() < until_s:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            kind = self._rng.choice(self._kinds)
            self._say(f"-- {kind.__name__.replace('_', ' ')}")
            kind()

    def end(self) -> None:
        """End all trouble; questions to frozen brokers are answered or not."""
        self._network.slow = False
        for node in NODES:
            self._thaw(node)
            self._network.down.discard(node)
            self._bring_back(node)
        for disk in self._group.disks:
            disk.is_full = False
        self._mend_topic()
        self._let_replies_in()
        self._group.resume_all()

    # --- workers -----------------------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        """Hand partitions over."""
        self._group.rebalance_soon()

    def kill(self) -> None:
        """Kill a worker; another one is started on its disk, on none, or on an old copy of it."""
        if members := self._group.members:
            dice = self._rng.random()
            self._group.kill(
                self._rng.choice(members), keeps=dice < 0.7, old=dice < 0.3, for_s=self._rng.choice((0, 2))
            )

    def pause(self) -> None:
        """Pause a worker; others get its partitions, and it goes on later without knowing."""
        if len(members := self._group.members) > 1:
            self._group.pause(self._rng.choice(members), self._rng.choice((0.5, 2.0, 5.0)))

    def cancel_late(self) -> None:
        """Have a cancel become readable only when its timer has fired, and pause the owner of before until then."""
        members = self._group.members
        owners = [(member, number) for member in members for number in member.owners]
        if len(members) > 1 and owners:
            owner, number = self._rng.choice(owners)
            readable_s = 2.1 + self._rng.random()
            self._clients.cancel_late(number, readable_s)
            self._loop.outside(0.5, self._group.pause, owner, readable_s - 0.5 + self._rng.choice((-0.2, 0.0, 0.1)))

    def deafen(self) -> None:
        """Give a worker's partitions to others without its hearing of that for a while."""
        if len(members := self._group.members) > 1:
            self._group.deafen(self._rng.choice(members), self._rng.choice((0.5, 2.0, 5.0)))

    # --- brokers -----------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Have a broker answer nothing for a while; the others lead in its place soon, and it wakes without knowing."""
        if self._network.frozen or self._network.down:
            return
        node = self._rng.choice(NODES)
        self._network.freeze(node)
        self._loop.outside(self._rng.random() * _SESSION_S, self._miss, node)
        self._loop.outside(self._rng.choice((0.5, 3.0, 8.0)), self._thaw, node)

    def _miss(self, node: int) -> None:
        if node in self._network.frozen:
            self._replace(node)
        else:
            self._depose(node)

    def _thaw(self, node: int) -> None:
        self._network.thaw(node, answers=self._rng.random() < 0.7)
        self._loop.outside(self._rng.choice((0.0, 0.3, 1.0)), self._bring_back, node)

    def kill_broker(self) -> None:
        """Kill a broker, or stop it: it takes no connections for a while, and others lead soon or at once."""
        if self._network.frozen or self._network.down:
            return
        node = self._rng.choice(NODES)
        self._network.down.add(node)
        self._loop.outside(self._rng.choice((0.0, self._rng.random() * _SESSION_S)), self._depose, node)
        self._loop.outside(self._rng.choice((0.5, 3.0, 8.0)), self._network.down.discard, node)

    def black_out(self) -> None:
        """Kill all brokers, or freeze them, for a while: where there is only one, that is all there are."""
        if self._network.frozen or self._network.down:
            return
        ends_s, dies = self._rng.choice((0.5, 3.0)), self._rng.random() < 0.5
        for node in NODES:
            if dies:
                self._network.down.add(node)
                self._loop.outside(ends_s, self._network.down.discard, node)
            else:
                self._network.freeze(node)
                self._loop.outside(ends_s, self._thaw, node)

    def _depose(self, node: int) -> None:
        others = [other for other in NODES if other != node]
        for log in self._kafka.logs.values():
            if log.leader == node:
                log.leader = self._rng.choice(others)
        if self._kafka.coordinator == node:
            self._kafka.coordinator = self._rng.choice(others)

    def elect(self) -> None:
        """Have another broker lead, as when partitions are spread anew."""
        self._depose(self._rng.choice(NODES))

    def cut_off(self) -> None:
        """Cut a broker off from the others; clients still reach it, and get its old answers."""
        node = self._rng.choice(NODES)
        self._replace(node)
        self._loop.outside(self._rng.choice((2.0, 6.0)), self._bring_back, node)

    def _replace(self, node: int) -> None:
        """Have others lead in place of *node*, which does not hear of it."""
        if self._kafka.coordinator == node:
            self._kafka.former_coordinator = node
        for log in self._kafka.logs.values():
            if log.leader == node:
                log.cut_off(node, self._rng.choice([other for other in NODES if other != node]))
        self._depose(node)

    def _bring_back(self, node: int) -> None:
        for log in self._kafka.logs.values():
            log.out_of_date.pop(node, None)
        if self._kafka.former_coordinator == node:
            self._kafka.former_coordinator = 0

    def slow_down(self) -> None:
        """Have everything take longer for a while."""
        self._network.slow = True
        self._loop.outside(3.0, setattr, self._network, "slow", False)

    # --- disks and topics --------------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Fill a worker's disk for a while."""
        if members := self._group.members:
            disk = self._group.disk_of(self._rng.choice(members))
            disk.is_full = True
            self._loop.outside(self._rng.choice((0.01, 0.5, 3.0)), setattr, disk, "is_full", False)

    def back_up(self) -> None:
        """Copy a worker's disk."""
        if members := self._group.members:
            self._group.disk_of(self._rng.choice(members)).back_up()

    def spoil_topic(self) -> None:
        """Remove the moody topic, have it refuse records that its settings allow, or have its replicas be away."""
        topic = self._kafka.topics[MOODY]
        setattr(topic, *self._rng.choice((("exists", False), ("refuses", True), ("is_short", True))))
        self._loop.outside(self._rng.choice((0.5, 2.0, 6.0, 15.0)), self._mend_topic)

    def _mend_topic(self) -> None:
        topic = self._kafka.topics[MOODY]
        topic.exists, topic.refuses, topic.is_short = True, False, False

    def hold_up_replies(self) -> None:
        """Have the topic of answers take none for a while, as when its replicas are away."""
        self._kafka.topics[self._kafka.own.replies].is_short = True
        self._loop.outside(self._rng.choice((0.5, 3.0, 8.0)), self._let_replies_in)

    def _let_replies_in(self) -> None:
        self._kafka.topics[self._kafka.own.replies].is_short = False

    def retain(self) -> None:
        """Delete the records below `restore_from` of the last seal: no pending request may expire."""
        for number in range(self._kafka.topics[self._kafka.own.requests].partitions):
            seals = [Sealed.FromString(seal.value or b"") for seal in self._kafka.sealed(number).committed()]
            log = self._kafka.requests(number)
            complete = [seal for seal in seals if is_complete(seal)]
            if complete:
                log.start = max(log.start, complete[-1].restore_from)

    def _sweep_on(self, until_s: float) -> None:
        """Have workers sweep again and again, and the log be trimmed behind them, until all has fired."""
        self.sweep()
        self.retain()
        if self._loop.time() < until_s + 10:
            self._loop.outside(self._sweeps_s, self._sweep_on, until_s)

    def sweep(self) -> None:
        """Have workers repeat what waits in some of their logs."""
        for member in self._group.members:
            for number, owner in member.owners.items():
                end = self._kafka.requests(number).end
                owner.sweep(self._rng.randrange(end // 2, end + 1))

    def compact(self) -> None:
        """Compact the seals that are there by now."""
        for number in range(self._kafka.topics[self._kafka.own.sealed].partitions):
            log = self._kafka.sealed(number)
            log.start = log.stable
