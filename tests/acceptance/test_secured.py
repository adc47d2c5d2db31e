"""The service on a Kafka with TLS, SASL and an authorizer: all of the live path, each way to log in, and no leak."""

import asyncio
import base64
import json
import re
import shlex
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import pytest
import test_live_path
import trustme
from brokers import kafka_configs
from click.testing import CliRunner
from patience import LIMIT_S
from secured import Right, SecuredKafka, SecuredService, token_for

from kafka_timers import BrokerError, TimerClient
from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import tell_closed
from kafka_timers.cli.program import program
from kafka_timers.core.wire import Future
from kafka_timers.dev.broker import free_port
from kafka_timers.operate.acls import acls_of

TOKEN_URL = "sasl_oauthbearer_token_endpoint_url"
CLIENT_ID, CLIENT_SECRET = "sasl_oauthbearer_client_id", "sasl_oauthbearer_client_secret"
SCOPE = "sasl_oauthbearer_scope"

# Its worker needs rights of its own; with the fixture `service` of this module.
test_at_least_once_fires_without_transactions = test_live_path.test_at_least_once_fires_without_transactions


@pytest.fixture(scope="module")
async def secured(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredKafka]:
    """A broker for all tests of this module."""
    async with SecuredKafka(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture
async def service(secured: SecuredKafka, prefix: str, tmp_path: Path) -> AsyncIterator[SecuredService]:
    """A service whose users have just the rights that they need, and write to this test's own callback topics."""
    secured.allow(prefix, "--allowed-topics", f"{prefix}callbacks*")
    async with SecuredService(secured, prefix, tmp_path) as opened:
        yield opened


@pytest.fixture
def token_endpoint() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """An endpoint that gives tokens to clients with the secret, and the requests that it got."""
    asked: list[dict[str, list[str]]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked.append(form)
            user, _, secret = base64.b64decode(self.headers["Authorization"].split()[1]).decode().partition(":")
            known = secret == "s3cret" and form["grant_type"] == ["client_credentials"]
            body = json.dumps({"access_token": token_for(user), "expires_in": 600} if known else {}).encode()
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "token file", "token endpoint", "certificate"])
async def test_clients_and_workers_may_log_in_in_any_way(
    way: str, service: SecuredService, token_endpoint: tuple[str, list[dict[str, list[str]]]], tmp_path: Path
) -> None:
    """Oscillator, worker and client; a cancel too, whose answer is read over a connection of its own."""
    secured, url = service.kafka, token_endpoint[0]

    def login(user: str) -> tuple[str, Path]:
        if way == "certificate":
            return secured.tls, secured.certified(user)
        if way == "token file":
            token = tmp_path / f"{user}.token"
            token.write_text(token_for(user))
            return secured.sasl, secured.config(user, "OAUTHBEARER", **{TOKEN_URL: token.as_uri()})
        if way == "token endpoint":
            more = {TOKEN_URL: url, CLIENT_ID: user, CLIENT_SECRET: "s3cret", SCOPE: "timers"}
            return secured.sasl, secured.config(user, "OAUTHBEARER", **more)
        return secured.sasl, secured.config(user, way)

    await service.start_as("oscillator", *login("oscillator"))
    await service.until_serving(await service.start_as("worker", *login("worker")))
    where, config = login("client")
    async with TimerClient(Kafka.of(where, str(config)), topic_prefix=service.prefix) as client:
        await client.after(0, topic=service.callbacks, value=b"fires")
        await client.after(3600, topic=service.callbacks, value=b"does not", timer_id="t-1")
        answer = await client.cancel("t-1")
    assert answer.outcome == "CANCELLED"
    [callback] = await service.read(service.callbacks, 1)
    assert callback.value == b"fires"
    if way == "token endpoint":
        assert token_endpoint[1][0]["scope"] == ["timers"]


async def test_the_console_needs_no_more_than_its_rights(service: SecuredService) -> None:
    await service.start("oscillator")
    worker = await service.worker("--query-port", str(free_port()), "--seal-every-s", "1")
    await worker.until("/readyz", lambda status, _: status == 200)
    console = await service.start("console", "--writable", "--group", service.prefix + "workers")
    await console.until("/livez", lambda status, _: status == 200)
    url, lost = f"http://127.0.0.1:{console.port}/v1", service.prefix + "callbacks-lost"
    await service.request(int(time.time()), Future(callBackTopic=lost, callBack=b"v", timerId="lost"))

    async with aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: object = None, status: int = 200) -> Any:
            async with session.request(method, url + path, json=body) as response:
                said = json.loads(await response.read())
                assert response.status == status, said
                return said

        made = {"timerId": "t-1", "after": 3600, "topic": service.callbacks}
        await ask("POST", "/timers", made, 201)
        assert (await ask("PATCH", "/timers/t-1", {"value": "v"}))["outcome"] == "MOVED"
        assert (await ask("GET", "/timers/t-1"))["state"] == "pending"
        await service.until_sealed(int(time.time()))
        assert [each["timerId"] for each in (await ask("GET", "/timers"))["timers"]] == ["t-1"]
        assert (await ask("DELETE", "/timers/t-1"))["outcome"] == "CANCELLED"
        end_s, found = time.monotonic() + LIMIT_S, []
        while not found and time.monotonic() < end_s:
            found = (await ask("GET", "/rejected"))["rejected"]
        assert (await ask("POST", f"/rejected/{found[0]['place']}/redrive", {}))["outcome"] == "ACCEPTED"
        assert (await ask("GET", "/status"))["workers"]
        again = await ask("POST", "/timers", made | {"timerId": "t-2"}, 201)
        assert (await ask("GET", f"/requests/{again['request']}"))["timerId"] == "t-2"
        await service.until_sealed(int(time.time()))
        told = {each["name"]: each["partitions"] for each in (await ask("GET", "/topics"))["topics"]}
        assert told == {service.callbacks: 4, lost: None}
        await ask("PUT", "/schedules/s", {"everyS": 60, "topic": service.callbacks})
        assert (await ask("POST", "/schedules/s/skip"))["skips"]
        asked = await ask("POST", "/schedules/s/run")
        end_s, last = time.monotonic() + LIMIT_S, None
        while not last and time.monotonic() < end_s:
            last = (await ask("GET", "/schedules/s"))["lastRun"]
        assert last["timerId"] == asked["timerId"]
        assert [each["scheduleId"] for each in (await ask("GET", "/schedules"))["schedules"]] == ["s"]
        async with session.get(f"{url}/events?topic={service.callbacks}") as response:
            assert (response.status, await response.content.readline()) == (200, b": follows\n")


async def test_a_topic_that_the_worker_may_not_write_to_is_refused_and_stops_nothing(service: SecuredService) -> None:
    foreign = service.prefix + "foreign"
    await service.create_topic(foreign)
    await service.worker()
    second = int(time.time()) - 100
    refused = await service.request(second, Future(callBackTopic=foreign, callBack=b"not for you"), 1)
    await service.requests(second, ["fires"], 1)
    await service.tick(second)
    [callback] = await service.read(service.callbacks, 1)
    assert callback.value == b"fires"
    [rejected] = await service.read(service.topics.rejected, 1)
    headers = {name: value.decode() for name, value in rejected.headers}
    at = f"{headers['timer-rejected-partition']}:{headers['timer-rejected-offset']}"
    assert (at, headers["timer-rejected-reason"]) == (refused, "topic-refused")
    assert await service.read(foreign, 1, limit_s=1) == []


async def test_a_door_takes_records_in_once_with_the_rights_that_acls_prints(
    secured: SecuredKafka, prefix: str, tmp_path: Path
) -> None:
    """Also where another worker goes on from the offset that the first one has committed."""
    theirs = prefix + "theirs"
    secured.allow(prefix, "--allowed-topics", f"{prefix}callbacks*", "--door", f"headers={theirs}")
    headers = [("timer-expiry", b"%d" % (time.time() + 100_000)), ("timer-callback-topic", b"t")]
    async with SecuredService(secured, prefix, tmp_path) as service:
        await service.create_topic(theirs)
        for number in range(2):
            worker = await service.worker("--door", f"headers={theirs}")
            await service.producer.send_and_wait(theirs, b"v", b"%d" % number, headers=headers, partition=0)
            requests = await service.read(service.topics.requests, number + 1)
            await worker.until("/metrics", lambda *_, of=worker: of.metric("kafka_timers_door_requests_total") == 1)
            assert worker.metric("kafka_timers_door_failures_total") == 0
            await worker.child.stop(LIMIT_S)
    assert sorted(Future.FromString(record.value).timerId for record in requests) == ["0", "1"]


async def test_no_password_is_in_logs_command_lines_metrics_or_output(service: SecuredService, tmp_path: Path) -> None:
    """Also with --log-level debug, and when a login fails; the password comes by the environment."""
    secured = service.kafka
    # The command line of a fork is that of another program.
    service.forks = None
    config = secured.write(
        {"security.protocol": "SASL_SSL", "ssl.ca.location": str(secured.ca), "sasl.mechanism": "PLAIN"}
    )
    shown = []
    processes = []
    for user in ("worker", "oscillator"):
        env = {"KAFKA_TIMERS_SASL_USERNAME": user, "KAFKA_TIMERS_SASL_PASSWORD": secured.passwords[user]}
        processes.append(await service.start_as(user, secured.sasl, config, "--log-level", "debug", env=env))
    await service.until_serving(processes[0])
    second = int(time.time()) - 100
    await service.requests(second, ["fires"])
    await service.callback_names(["fires"])
    await processes[0].until("/readyz", lambda status, _: status == 200)
    where = ["--bootstrap", secured.sasl, "--kafka-config", str(config), "--topic-prefix", service.prefix]
    for password, code in ((secured.passwords["observer"], 0), ("wr0ng-passw0rd", 1)):
        env = {
            "KAFKA_TIMERS_SASL_USERNAME": "observer",
            "KAFKA_TIMERS_SASL_PASSWORD": password,
            "KAFKA_TIMERS_GROUP": f"{service.prefix}workers",
        }
        for command in ("status", "topics check"):
            told = await asyncio.to_thread(
                CliRunner().invoke, program, [*command.split(), *where], env=env, catch_exceptions=False
            )
            assert told.exit_code == code, told.output
            shown.append(told.output)
    assert "SASL_SSL, PLAIN as observer" in shown[-1]
    # The bytes of the log are told to users that may describe the cluster.
    assert any(re.search(r"^request log +\d+ records$", output, re.MULTILINE) for output in shown)
    for process in processes:
        shown += [process.get(path)[1] for path in ("/metrics", "/readyz", "/livez")]
        shown.append(command_line(process.child.pid))
        await process.child.stop(LIMIT_S)
        shown.append(process.child.log.read_text())
    secrets = ["wr0ng-passw0rd", *secured.passwords.values()]
    assert not [(secret, text) for secret in secrets for text in shown if secret in text]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


async def test_a_process_that_cannot_log_in_says_so(service: SecuredService) -> None:
    """In plain text against TLS, with a certificate of nobody, with a password that is wrong."""
    secured = service.kafka
    strangers = trustme.CA()
    ca = secured.folder / "strangers.pem"
    strangers.cert_pem.write_to_path(str(ca))
    plain, scram = secured.write({}), {"sasl.username": "client", "sasl.password": "no"}
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(secured.ca), "sasl.mechanism": "SCRAM-SHA-512"}
    for config in (plain, secured.write(tls | scram), secured.write(tls | scram | {"ssl.ca.location": str(ca)})):
        kafka = Kafka.of(secured.sasl, str(config))
        with pytest.raises(BrokerError) as raised:
            await topics.counts(kafka, service.prefix)
        assert str(kafka) in str(raised.value)


async def test_brokers_know_a_process_by_its_client_id(service: SecuredService) -> None:
    secured = service.kafka
    process = await service.start_as("worker", secured.sasl, secured.config("worker", client_id="orders-timers"))
    await service.until_serving(process)
    group = f"{service.prefix}workers"
    told = secured.admin.describe_consumer_groups([group])[group].result(30)
    assert [member.client_id.startswith("orders-timers") for member in told.members] == [True]


@pytest.mark.parametrize("entity", ["users", pytest.param("clients", marks=pytest.mark.chaos)])
async def test_a_quota_holds_back_its_user_and_nobody_else(entity: str, service: SecuredService) -> None:
    """By user and by client id, set as docs/security.md tells."""
    secured, client_id = service.kafka, service.prefix + "batch"
    login = Kafka.of(secured.sasl, str(secured.config("client", client_id=client_id)))
    large = 300_000
    await service.worker()
    second = int(time.time()) - 100
    async with (
        quota(service.bootstrap, entity, {"users": "client", "clients": client_id}[entity], 15_000),
        TimerClient(login, topic_prefix=service.prefix) as client,
    ):
        # A request beyond the quota is taken in; the next one waits, some 10 s here, until the quota is met again.
        await client.at(second, topic=service.callbacks, value=b"before".ljust(large))
        waiting = asyncio.create_task(client.at(second, topic=service.callbacks, value=b"behind".ljust(large)))
        await service.requests(second, ["from another"])
        await service.tick(second)
        callbacks = await service.read(service.callbacks, 2)
        assert sorted(callback.value.strip() for callback in callbacks) == [b"before", b"from another"]
        assert not waiting.done()
        await waiting
        await service.tick(second + 1)
        assert len(await service.read(service.callbacks, 3)) == 3


@asynccontextmanager
async def quota(bootstrap: str, entity: str, name: str, bytes_per_s: int) -> AsyncIterator[None]:
    """Let an entity of Kafka write so much while inside."""
    told = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    [line] = re.findall(rf"^kafka-configs\.sh (.* --entity-type {entity} .*)$", told, re.MULTILINE)
    words = shlex.split(line)
    for option, value in (("--bootstrap-server", bootstrap), ("--entity-name", name)):
        words[words.index(option) + 1] = value
    at = words.index("--add-config")
    await kafka_configs(*words[:at], "--add-config", f"producer_byte_rate={bytes_per_s}")
    try:
        yield
    finally:
        await kafka_configs(*words[:at], "--delete-config", "producer_byte_rate")


NEEDED = [
    (acl.process, operation, acl.why)
    for acl in acls_of("", "kafka-timers", "callbacks*")
    for operation in acl.operations
    # Of its own topics it reports the problems, of callback topics the size limit.
    if acl.process in ("oscillator", "worker") and operation != "DescribeConfigs"
    # There are none.
    if acl.why != "requests in added partitions"
]


async def works(service: SecuredService) -> bool:
    """
    Tell whether timers fire, a cancel is answered, an impossible request is rejected, the worker shows the progress of
    a lake, and the request log is trimmed, each within some seconds.

    The second timer fires by a worker that took over from the first one's seals.
    """
    await service.start("oscillator")
    second = int(time.time()) + 2
    await tell_closed(Kafka.of(service.kafka.sasl, str(service.kafka.config("lake"))), service.prefix, second, {})
    worker = await service.start("worker", "--horizon-s", "3600")
    await service.request(second, Future(callBackTopic=service.callbacks, callBack=b"v"), 1)
    await service.request(second, Future(callBackTopic=service.topics.sealed), 1)
    await service.request(0, Future(timerId="a", cancel=True, replyTopic=service.topics.replies))
    for topic, limit_s in ((service.callbacks, 12), (service.topics.rejected, 3), (service.topics.replies, 3)):
        if not await service.read(topic, 1, limit_s=limit_s):
            return False
    try:
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_lake_closed_second") == second, 12)
    except AssertionError:
        return False
    await worker.child.stop(LIMIT_S)
    worker = await service.start("worker", "--keep-s", "1", "--seal-every-s", "1")
    await service.request(int(time.time()), Future(callBackTopic=service.callbacks, callBack=b"v"), 1)
    if len(await service.read(service.callbacks, 2, limit_s=12)) != 2:
        return False
    try:
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") > 0, 12)
    except AssertionError:
        return False
    return True


@pytest.mark.chaos
@pytest.mark.parametrize("but", [None, *NEEDED], ids=str)
async def test_no_right_is_given_that_is_not_needed(
    but: Right | None, secured: SecuredKafka, prefix: str, tmp_path: Path
) -> None:
    secured.allow(prefix, "--allowed-topics", f"{prefix}callbacks*", but=but)
    async with SecuredService(secured, prefix, tmp_path) as service:
        assert await works(service) is (but is None)
