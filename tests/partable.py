"""
Three brokers that a test can part from each other, and from their clients (Linux only).

Brokers reach each other through relays of this process, one for each listener and direction. So a broker can be
separated from the others, both ways, while clients reach it:

    broker 1 ──▶ kafka-2 = 127.0.1.2 ──▶ relay ──▶ 127.0.0.1 broker 2
    broker 3 ──▶ kafka-2 = 127.0.3.2 ──▶ relay ──▶ 127.0.0.1 broker 2

Brokers advertise themselves to each other by name, and each broker's Java has a hosts file of its own. So the address
that a relay listens on tells which broker calls which. Kafka's settings alone cannot tell that, because a broker or
controller advertises one address to all others.
"""

from pathlib import Path

from relay import Relay

from kafka_timers.dev.broker import HOST, free_port
from kafka_timers.dev.three_brokers import NODES, EmbeddedCluster

__all__ = ["PartableCluster"]


class PartableCluster(EmbeddedCluster):
    """
    Three brokers of your own that can be parted. Code that blocks the event loop also holds up the relays.

    Args:
        folder: folder with one folder for each broker; created if it does not exist.
        client_relay: let clients reach brokers through relays; `hold_clients` and `cut_clients` need it.
    """

    def __init__(self, folder: Path, *, client_relay: bool = False) -> None:
        internal, controller = ({node: free_port(inner=True) for node in NODES} for _ in range(2))
        self._ports = {node: free_port() for node in NODES}
        # The ports that the brokers themselves listen on for clients.
        behind = {node: free_port(inner=True) for node in NODES} if client_relay else self._ports
        self._between = {
            (origin, to): [
                Relay((f"127.0.{origin}.{to}", port[to]), (HOST, port[to])) for port in (internal, controller)
            ]
            for origin in NODES
            for to in NODES
            if origin != to
        }
        self._to_clients = {
            node: Relay((HOST, self._ports[node]), (HOST, behind[node])) for node in NODES if client_relay
        }
        voters = ",".join(f"{node}@{_name(node)}:{controller[node]}" for node in NODES)
        super().__init__(folder, behind.values())
        for node, broker in self.nodes.items():
            addresses = {"CLIENT": (HOST, self._ports[node])}
            addresses |= {"INTERNAL": (_name(node), internal[node]), "CONTROLLER": (_name(node), controller[node])}
            broker.properties |= {
                "controller.quorum.voters": voters,
                "listeners": f"CLIENT://{HOST}:{behind[node]},INTERNAL://{HOST}:{internal[node]},"
                f"CONTROLLER://{HOST}:{controller[node]}",
                "advertised.listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in addresses.items()),
            }
            broker.environment["JAVA_TOOL_OPTIONS"] = f"-Djdk.net.hosts.file={self._hosts(node)}"

    @property
    def bootstrap(self) -> str:
        """The addresses of all three for clients, host:port, comma separated."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    async def start(self) -> None:
        """
        Start the brokers that do not run, and return once each of them answers.

        Raises:
            KafkaSetupError: as for `EmbeddedCluster.start`.
            OSError: a relay's address is taken, or does not belong to this machine.
        """
        await self.mend()
        await super().start()

    async def stop(self) -> None:
        """End all brokers gently, by force after 20 s. Returns once they are gone."""
        await self.mend()
        await super().stop()
        await self._close()

    async def kill(self) -> None:
        """End all brokers as a crash would (SIGKILL). Returns once they are gone."""
        await super().kill()
        await self._close()

    async def hold(self, node: int) -> None:
        """Separate *node* from the other brokers: nothing passes, but no connection ends. Clients still reach it."""
        for relay in self._around(node):
            await relay.hold()

    async def cut(self, node: int) -> None:
        """Separate *node* from the other brokers: connections are reset, new ones refused. Clients still reach it."""
        for relay in self._around(node):
            await relay.cut()

    async def hold_clients(self, node: int) -> None:
        """Separate *node* from clients: nothing passes, but no connection ends. The other brokers still reach it."""
        await self._to_clients[node].hold()

    async def cut_clients(self, node: int) -> None:
        """Separate *node* from clients: connections are reset, new ones refused. The other brokers still reach it."""
        await self._to_clients[node].cut()

    async def mend(self) -> None:
        """Let everything pass again; held bytes arrive."""
        for relay in self._relays():
            await relay.flow()

    def _around(self, node: int) -> list[Relay]:
        return [relay for ends, relays in self._between.items() if node in ends for relay in relays]

    def _relays(self) -> list[Relay]:
        return [*(relay for relays in self._between.values() for relay in relays), *self._to_clients.values()]

    async def _close(self) -> None:
        for relay in self._relays():
            await relay.cut()

    def _hosts(self, origin: int) -> Path:
        lines = [f"{HOST} localhost"]
        lines += [f"{HOST if node == origin else f'127.0.{origin}.{node}'} {_name(node)}" for node in NODES]
        hosts = self.folder / f"hosts-{origin}"
        hosts.write_text("\n".join(lines) + "\n")
        return hosts


def _name(node: int) -> str:
    return f"kafka-{node}"
