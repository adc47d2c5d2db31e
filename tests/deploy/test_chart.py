"""The manifests of the chart, for each file of values in deploy/chart/ci: valid, as expected, with least rights."""

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kafka_timers.broker.connection import PROPERTIES, Kafka
from kafka_timers.broker.environment import env_name
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.serve.serve_settings import ServeSettings
from kafka_timers.settings import LakeSettings, OscillatorSettings, WorkerSettings

CHART = Path(__file__).parents[2] / "deploy" / "chart"
SCENARIOS = sorted(path.name for path in (CHART / "ci").glob("*-values.yaml"))
# Objects of operators, whose schemas Kubernetes does not bring.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "ScheduledSparkApplication"}
KUBERNETES = "1.33"
HELM = os.environ.get("HELM", "helm")
KAFKA = {"bootstrap", "kafka_config", "topic_prefix"}
PROPERTY_NAMES = {env_name(name) for name in PROPERTIES}
# What reads the variables of a pod, by the command that it starts.
READERS = {
    "oscillator": (OscillatorSettings,),
    "worker": (WorkerSettings,),
    "console": (ConsoleSettings,),
    "serve": (ServeSettings, OscillatorSettings, WorkerSettings, ConsoleSettings),
}

Manifest = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)


@cache
def rendered(scenario: str, chart: str = str(CHART)) -> tuple[Manifest, ...]:
    """Return the objects of a scenario, hooks among them."""
    values = str(CHART / "ci" / scenario)
    made = helm("template", "timers", chart, "--namespace", "orders", "--values", values, "--kube-version", KUBERNETES)
    assert made.returncode == 0, made.stderr
    return tuple(each for each in yaml.safe_load_all(made.stdout) if each)


def one(scenario: str, kind: str, name: str) -> Manifest:
    [found] = [each for each in rendered(scenario) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods(scenario: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the pods of a scenario, each with the name of the object that makes it."""
    for each in rendered(scenario):
        spec, name = each.get("spec", {}), each["metadata"]["name"]
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if each["kind"] in ("StatefulSet", "Deployment", "Job", "CronJob"):
            yield name, spec["template"]


def env_of(pod: Manifest) -> dict[str, str | None]:
    [container] = pod["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


# --- it is valid -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_helm_and_kubernetes_have_nothing_to_say(scenario: str) -> None:
    linted = helm("lint", "--strict", str(CHART), "--values", str(CHART / "ci" / scenario))
    assert linted.returncode == 0, linted.stdout + linted.stderr
    for each in rendered(scenario):
        if each["kind"] not in FOREIGN:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered(scenario)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--set", "worker.replicas=1"], "kafka"),
        (["--set", "kafka.bootstrap=nowhere"], "bootstrap"),
        (["--set", "kafka.bootstrap=k:1", "--set", "oscillator.replicas=5"], "replicas"),
        (["--set", "kafka.bootstrap=k:1", "--set", "worker.settings.slice_row=5"], "slice_row"),
        (["--set", "kafka.bootstrap=k:1", "--set", "worker.setings.slice_rows=5"], "setings"),
        (["--set", "kafka.bootstrap=k:1", "--set", "lake.enabled=true"], "lake.path is needed"),
        (
            ["--set", "kafka.bootstrap=k:1", "--set", "worker.queries.enabled=true"],
            "worker.queries.tokenSecret is needed",
        ),
        (["--set", "kafka.bootstrap=k:1", "--set", "console.enabled=true"], "worker.queries.enabled is needed"),
        (
            [
                "--set",
                "kafka.bootstrap=k:1,worker.queries.enabled=true,worker.queries.tokenSecret=s,console.enabled=true",
            ],
            "console.tokensSecret is needed",
        ),
        (["--set", "kafka.bootstrap=k:1", "--set", r"worker.kafka.config.sasl\.password=p"], "sasl.password"),
        (["--set", "kafka.bootstrap=k:1", "--set", "mode=all"], "mode"),
        (["--set", "kafka.bootstrap=k:1", "--set", "worker.replicas=5"], "worker.replicas is at most 4"),
        (["--set", "kafka.bootstrap=k:1", "--set", "oscillator.kafka.secret=s"], "worker.kafka is the login of all"),
        (
            ["--set", "kafka.bootstrap=k:1", "--set", "worker.settings.partitions=8"],
            "worker.settings.partitions needs mode: split",
        ),
        (
            ["--set", "kafka.bootstrap=k:1,lake.enabled=true,lake.path=hdfs://n:1/t,lake.horizonS=179"],
            "lake.horizonS is at least 180",
        ),
    ],
)
def test_wrong_values_are_named(given: list[str], words: str) -> None:
    made = helm("template", "timers", str(CHART), *given)
    assert made.returncode != 0
    assert words in made.stderr


def test_settings_are_the_options_of_the_processes() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    # `worker.queries` has all that they need: the address of each pod, and a mounted Secret.
    queries = {field.name for field in dataclasses.fields(WorkerSettings) if field.name.startswith("query_")}
    known = {
        "oscillator": (OscillatorSettings, {*KAFKA, "replica", "host", "port"}),
        "worker": (
            WorkerSettings,
            {*KAFKA, "group", "data_dir", "host", "port", "processes", *queries},
        ),
        # Topics and seals are as workers have them, and TLS is an Ingress's.
        "console": (
            ConsoleSettings,
            {*KAFKA, *queries, "query_ca", "group", "allowed_topics", "seal_every_s", "host", "port", "writable"}
            | {"token_file", "certificate", "key"},
        ),
    }
    for part, (settings, given) in known.items():
        fields = {field.name for field in dataclasses.fields(settings)} - given
        assert set(schema[part]["properties"]["settings"]["properties"]) == fields, part


# --- the processes accept it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_variable_is_an_option_of_its_process(scenario: str) -> None:
    for name, pod in pods(scenario):
        [container] = pod["spec"]["containers"]
        readers = READERS.get(container["args"][0], (LakeSettings,))
        fields = {field.name for reader in readers for field in dataclasses.fields(reader)}
        names = {name for name in env_of(pod) if name.startswith("KAFKA_TIMERS_")}
        assert names <= set(map(env_name, fields)) | PROPERTY_NAMES, name
        assert env_name("bootstrap") in names


@pytest.mark.parametrize(
    ("scenario", "part", "replicas"), [("least-values.yaml", "worker", 2), ("full-values.yaml", "oscillator", 3)]
)
def test_each_oscillator_has_a_rank_of_its_own(scenario: str, part: str, replicas: int) -> None:
    ticking = one(scenario, "StatefulSet", f"timers-kafka-timers-{part}")["spec"]
    assert ticking["replicas"] == replicas
    [rank] = [
        each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in ticking["template"]["spec"]["containers"][0]["env"]
        if each["name"] == env_name("replica")
    ]
    assert rank == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_one_set_of_pods_is_all_unless_processes_are_to_be_apart() -> None:
    """Such a pod has the name and the disk of a worker, so that you can go from one mode to the other."""
    sets = {
        scenario: {name: pod["spec"]["containers"][0]["args"][0] for name, pod in pods(scenario)}
        for scenario in ("least-values.yaml", "full-values.yaml", "console-values.yaml", "secured-values.yaml")
    }
    name = "timers-kafka-timers"
    all_in_one = {f"{name}-worker": "serve", f"{name}-topics": "topics"}
    apart = {f"{name}-oscillator": "oscillator", f"{name}-worker": "worker"}
    assert sets["least-values.yaml"] == sets["console-values.yaml"] == all_in_one
    assert sets["full-values.yaml"] == apart
    assert sets["secured-values.yaml"].items() > (apart | {f"{name}-console": "console"}).items()
    # What Kubernetes does not let you change later.
    kept = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
    together, split = (
        one(f"{each}-values.yaml", "StatefulSet", f"{name}-worker")["spec"] for each in ("least", "secured")
    )
    assert [together[field] for field in kept] == [split[field] for field in kept]


@pytest.mark.parametrize("scenario", ["least-values.yaml", "console-values.yaml", "lake-cronjob-values.yaml"])
def test_each_process_of_a_pod_has_its_settings(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = one(scenario, "StatefulSet", "timers-kafka-timers-worker")["spec"]["template"]
    [container] = pod["spec"]["containers"]
    for name, value in env_of(pod).items():
        monkeypatch.setenv(name, value if value is not None else {env_name("replica"): "1"}.get(name, "10.0.0.1"))
    _, *options = container["args"]
    given = {name[2:].replace("-", "_"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    serve = ServeSettings.from_env(**(given | {"port": int(given["port"])}))
    assert serve.oscillator.replica == 1
    assert (serve.worker.data_dir, serve.worker.host) == ("/data/store", "0.0.0.0")
    assert serve.port == container["ports"][0]["containerPort"]
    if scenario == "console-values.yaml":
        assert (serve.console.host, serve.console.port) == ("0.0.0.0", 8074)
        assert serve.worker.allowed_topics == serve.console.allowed_topics == "orders-*"
        assert serve.worker.seal_every_s == 2
        assert (serve.worker.query_port, serve.worker.query_address) == (8083, "10.0.0.1")
    else:
        # Whoever may forward a port of the pod reaches it.
        assert serve.console.host == serve.worker.query_host == "127.0.0.1"
    assert serve.worker.horizon_s == (86_400 if scenario.startswith("lake") else WorkerSettings.horizon_s)


def test_values_reach_the_processes() -> None:
    worker = one("full-values.yaml", "StatefulSet", "timers-kafka-timers-worker")["spec"]
    env = env_of(worker["template"])
    assert env[env_name("allowed_topics")] == "orders-*,mails"
    assert env[env_name("slice_rows")] == "10000"
    assert env[env_name("door_require_caller")] == "true"
    assert env[env_name("topic_prefix")] == "orders."
    assert env[env_name("group")] == "orders-timers"
    oscillator = one("full-values.yaml", "StatefulSet", "timers-kafka-timers-oscillator")["spec"]["template"]
    assert env_of(oscillator)[env_name("catch_up_s")] == "86400000"
    assert env_of(oscillator)[env_name("max_clock_skew_s")] == "0.5"
    [claim] = worker["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
    assert worker["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_each_process_logs_in_as_its_own_user() -> None:
    """Its environment has the login to Kafka; the password is in no manifest."""
    for name, pod in pods("secured-values.yaml"):
        part = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        user, [container] = f"timers-{part}", pod["spec"]["containers"]
        secret = {each["name"]: each["valueFrom"] for each in container["env"] if "valueFrom" in each}
        taken = {"name": user, "key": "password", "optional": True}
        assert secret[env_name("sasl_password")] == {"secretKeyRef": taken}, name
        env = {key: value for key, value in env_of(pod).items() if value is not None}
        kafka = Kafka.of(env[env_name("bootstrap")], env=env | {env_name("sasl_password"): "from the Secret"})
        assert str(kafka) == f"kafka-bootstrap:9093 (SASL_SSL, SCRAM-SHA-512 as {user})"
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in pod["spec"]["volumes"]}
        assert volumes[mounted[str(Path(kafka.properties["ssl.ca.location"]).parent)]] == "cluster-ca"
        assert volumes[mounted["/etc/kafka/user"]] == user


def test_workers_and_lake_have_the_same_horizon() -> None:
    for scenario in ("lake-cronjob-values.yaml", "lake-executors-values.yaml"):
        worker = one(scenario, "StatefulSet", "timers-kafka-timers-worker")["spec"]["template"]
        horizons = {
            env_of(pod)[env_name("horizon_s")] for name, pod in pods(scenario) if re.search("land|promote", name)
        }
        assert horizons == {env_of(worker)[env_name("horizon_s")]} == {"86400"}
    jobs = [each for each in rendered("lake-operator-values.yaml") if each["kind"] == "ScheduledSparkApplication"]
    assert {each["spec"]["template"]["arguments"][1] for each in jobs} == {"land", "promote", "optimize", "expire"}


def test_the_daily_audit_reads_the_callbacks() -> None:
    audit = one("lake-cronjob-values.yaml", "CronJob", "timers-kafka-timers-audit")
    [container] = audit["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-3:] == ["lake", "audit", "--callbacks"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_selectors_find_their_pods(scenario: str) -> None:
    labels = [pod["metadata"]["labels"] for _, pod in pods(scenario)]
    for each in rendered(scenario):
        wanted = {
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "StatefulSet": lambda spec: spec["selector"]["matchLabels"],
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
        }.get(each["kind"])
        if wanted and each["metadata"]["name"] != "timers-kafka-timers-lake":
            assert any(wanted(each["spec"]).items() <= found.items() for found in labels), each["metadata"]["name"]
    services = [each["metadata"]["labels"] for each in rendered(scenario) if each["kind"] == "Service"]
    for each in rendered(scenario):
        if each["kind"] == "ServiceMonitor":
            assert any(each["spec"]["selector"]["matchLabels"].items() <= found.items() for found in services)


# --- least rights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pods_have_least_rights(scenario: str) -> None:
    for name, pod in pods(scenario):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        starts_pods = scenario == "lake-executors-values.yaml" and "lake" in spec["serviceAccountName"]
        assert spec["automountServiceAccountToken"] is starts_pods, name
        for container in spec["containers"]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"], name
            assert not rights["allowPrivilegeEscalation"], name
            assert rights["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_only_jobs_that_start_executors_may_ask_kubernetes(scenario: str) -> None:
    roles = [each for each in rendered(scenario) if each["kind"] in ("Role", "ClusterRole")]
    assert bool(roles) == (scenario in ("lake-executors-values.yaml", "lake-operator-values.yaml"))
    for role in roles:
        assert role["kind"] == "Role"
        assert not any("*" in (*rule["verbs"], *rule["resources"]) for rule in role["rules"])


def test_nothing_but_names_and_brokers_is_reached() -> None:
    policy = one("full-values.yaml", "NetworkPolicy", "timers-kafka-timers")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    names, brokers = policy["egress"]
    assert {each["port"] for each in names["ports"]} == {53}
    assert [each["port"] for each in brokers["ports"]] == [9093]
    assert brokers["to"]
    assert policy["ingress"][0]["from"]


# --- the console -----------------------------------------------------------------------------------------------------


def test_a_console_apart_starts_with_its_settings_and_finds_the_workers() -> None:
    scenario = "secured-values.yaml"
    console = one(scenario, "Deployment", "timers-kafka-timers-console")["spec"]["template"]
    worker = one(scenario, "StatefulSet", "timers-kafka-timers-worker")["spec"]["template"]
    [container] = console["spec"]["containers"]
    env = {name: value for name, value in env_of(console).items() if value is not None}
    assert ConsoleSettings.from_env(env, host="0.0.0.0").operators == "ann,ben"
    of_worker = env_of(worker)
    for name in ("allowed_topics", "group", "query_token_file", "topic_prefix"):
        assert env[env_name(name)] == of_worker[env_name(name)], name
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in console["spec"]["volumes"]}
    assert volumes[mounted["/etc/kafka-timers/queries"]] == "timers-queries"
    probe = container["livenessProbe"]["httpGet"]
    assert (probe["path"], probe["httpHeaders"]) == ("/livez", [{"name": "Host", "value": "localhost"}])


def test_the_console_is_known_by_its_names_and_reached_by_permitted_pods() -> None:
    scenario, name = "console-values.yaml", "timers-kafka-timers-console"
    pod = one(scenario, "StatefulSet", "timers-kafka-timers-worker")["spec"]["template"]
    env = env_of(pod)
    assert (
        env[env_name("allowed_hosts")]
        == f"{name},{name}.orders,{name}.orders.svc,{name}.orders.svc.cluster.local,timers.example.com"
    )
    assert env[env_name("token_file")] == "/etc/kafka-timers/console/tokens"
    mounted = {each["mountPath"]: each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in pod["spec"]["volumes"]}
    assert volumes[mounted["/etc/kafka-timers/console"]] == "timers-console"
    service = one(scenario, "Service", name)["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] == 8074
    policy = one(scenario, "NetworkPolicy", name)["spec"]
    [let_in], [asks] = policy["ingress"], policy["egress"]
    assert [each["port"] for each in let_in["ports"]] == [8074]
    assert let_in["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ingress"}
    assert asks["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"
    [told] = one(scenario, "NetworkPolicy", "timers-kafka-timers-queries")["spec"]["ingress"]
    assert [each["port"] for each in told["ports"]] == [int(env[env_name("query_port")] or 0)]
    parts = [each["podSelector"]["matchLabels"] for each in told["from"]]
    assert parts[0] == {"app": "lists"}
    assert parts[1]["app.kubernetes.io/component"] == "worker"
    apart = one("secured-values.yaml", "NetworkPolicy", name)["spec"]
    assert apart["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "console"
    assert "ingress" not in apart


# --- monitoring ------------------------------------------------------------------------------------------------------


def test_alarms_are_installed_as_they_are() -> None:
    rule = one("full-values.yaml", "PrometheusRule", "timers-kafka-timers")
    alarms = yaml.safe_load((CHART / "alarms.yaml").read_text())
    assert rule["spec"]["groups"] == alarms["groups"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_each_alarm_pages_somebody_or_opens_a_ticket() -> None:
    [group] = yaml.safe_load((CHART / "alarms.yaml").read_text())["groups"]
    assert all(rule["labels"]["severity"] in ("page", "ticket") for rule in group["rules"])
