"""The pages for users and operators name all that the code has; their links lead somewhere."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_tools import protoc
from prometheus_client import CollectorRegistry

from kafka_timers.adapters import DOORS
from kafka_timers.adapters.commands import Refusal
from kafka_timers.core.refused import Reason
from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.worker.faults import REACTIONS
from kafka_timers_oscillator.replica_health import Metrics

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
OPERATE, WIRE, README, MIGRATE, DESIGN, FAULTS = (
    ROOT / name
    for name in (
        *("docs/operate.md", "docs/wire.md", "README.md", "docs/migrate.md", "docs/design.md", "docs/faults.md"),
    )
)

WORKER, OWNER, OSCILLATOR = (
    ROOT / name
    for name in (
        "app/kafka_timers/processes/worker.py",
        "app/kafka_timers/worker/owner.py",
        "oscillator/kafka_timers_oscillator/replica_health.py",
    )
)


def exposed(registry: CollectorRegistry) -> set[str]:
    """Return the names as a scraper sees them."""
    return {family.name + "_total" * (family.type == "counter") for family in registry.collect()}


def test_operators_find_every_metric() -> None:
    oscillator, planner = CollectorRegistry(), CollectorRegistry()
    Metrics(oscillator)
    PlannerMetrics(planner)
    names = exposed(WorkerMetrics().registry) | exposed(LakeMetrics().registry) | exposed(oscillator) | exposed(planner)
    assert names == set(re.findall(r"^\| `(kafka_timers_\w+)` \|", OPERATE.read_text(), re.MULTILINE))


def fragments(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the words of all strings below *nodes*, without the filled-in values."""
    for node in nodes:
        for below in ast.walk(node):
            if (
                isinstance(below, ast.Constant)
                and isinstance(below.value, str)
                and len(below.value.strip(" ():;,{}")) > 3
            ):
                yield below.value.strip(" ():;,{}")


def functions(path: Path, *names: str) -> list[ast.AST]:
    """Return the bodies of functions, docstrings left out."""
    found = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    assert sorted(node.name for node in found) == sorted(names)
    return [statement for node in found for statement in node.body[ast.get_docstring(node) is not None :]]


def values_of(path: Path, attribute: str) -> list[ast.AST]:
    """Return all values assigned to `self.`*attribute*."""
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Attribute) and target.attr == attribute for target in node.targets)
    ]


TROUBLES = [ast.Constant(reaction.trouble) for reaction in REACTIONS.values()]


@pytest.mark.parametrize(
    ("where", "reasons"),
    [
        ("worker", [*functions(WORKER, "_unready", "_dead"), *values_of(WORKER, "_skewed")]),
        ("partition", [*functions(OWNER, "problem"), *values_of(OWNER, "_trouble"), *TROUBLES]),
        ("oscillator", functions(OSCILLATOR, "live", "ready", "_skew")),
    ],
)
def test_operators_find_every_reason_that_health_gives(where: str, reasons: list[ast.AST]) -> None:
    words = sorted(set(fragments(reasons)))
    assert len(words) > 3, f"{where}: the reasons are made elsewhere now"
    page = OPERATE.read_text()
    assert [word for word in words if word not in page] == []


def test_clients_find_every_reason_for_which_a_request_is_refused() -> None:
    table = WIRE.read_text().split("| reason | the request |\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(Reason)


def test_users_of_doors_find_every_reason_for_which_a_record_is_refused() -> None:
    table = MIGRATE.read_text().split("| reason | the record |\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE) == list(Refusal)
    assert set(re.findall(r"`--door ([a-z0-9]+)=", MIGRATE.read_text())) - {"NAME"} == set(DOORS)


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return where a link into *page* may lead, as GitHub names it."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"


def tracked() -> list[Path]:
    """Return all files of the checkout."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not names:
        pytest.skip("not a git checkout")
    return [path for name in names.splitlines() if (path := ROOT / name).is_file()]


def test_the_tests_and_files_that_the_design_names_are_there() -> None:
    page = re.sub(r"\s*\n\s*", " ", without_code(DESIGN))
    code = set(re.findall(r"`([^`]+)`", page))
    paths = [str(path.relative_to(ROOT)) for path in tracked()]
    tests = {
        name
        for path in ROOT.glob("tests/**/*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert {word for word in code if re.fullmatch(r"test_\w+", word)} <= tests
    files = {word for word in code if re.fullmatch(r"[\w/]+\.py", word)}
    assert {file for file in files if not any(f"/{path}".endswith(f"/{file}") for path in paths)} == set()


def test_every_decision_that_is_pointed_to_is_in_the_design() -> None:
    numbers = re.findall(r"^#### ADR-(\d+) ", DESIGN.read_text(), re.MULTILINE)
    assert len(numbers) == len(set(numbers)), "two decisions have one number"
    texts = [path for path in tracked() if path.suffix in {".py", ".md", ".proto", ".toml", ".yaml", ".yml"}]
    told = {number for path in texts for number in re.findall(r"\bADR-(\d+)\b", path.read_text())}
    assert told <= set(numbers)


def test_the_index_of_decisions_has_all_of_them_in_order_of_number() -> None:
    page = DESIGN.read_text()
    decisions = re.findall(r"^#### ADR-(\d+) (.+)$", page, re.MULTILINE)
    index = re.findall(r"^\| \[ADR-(\d+)\]\(#adr-\d+-.+?\) \| (.+?) \| in force", page, re.MULTILINE)
    assert index == sorted(decisions, key=lambda decision: int(decision[0]))


def test_newcomers_find_every_target_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    known = {
        "help",
        "run",
        "check",
        "pythons",
        "test",
        "test-wheel",
        "test-deploy",
        "wheel",
        "release",
        "docs",
        "mutants",
        "lint",
        "proto",
        "proto-released",
        "bench",
        "bench-questions",
        "bench-lake",
        "bench-schedules",
        "soak",
        "faults",
        "brokers",
        "rolling",
        "chaos",
        "chaos-lake",
        "trimmed",
    }
    assert told == known
    assert {"make run", "make test"} == set(re.findall(r"^make .*$", README.read_text(), re.MULTILINE))
    assert re.findall(r"^make .*$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE) == ["make test", "make lint"]


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len(README.read_text().split()) <= 900


def test_the_readme_tells_no_more_timers_under_faults_than_the_page_of_faults_has() -> None:
    told = re.search(r"\| ([\d.]+) million, (\d+) runs \|", README.read_text())
    assert told is not None
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| [\d,]+ \| ([\d,]+) \| (.*)$", FAULTS.read_text(), re.MULTILINE)
    assert int(told[2]) <= sum(int(runs) for runs, *_ in rows)
    assert float(told[1]) * 1e6 <= sum(int(timers.replace(",", "")) for _, timers, _ in rows)
    # Missing, doubled, early.
    assert {tuple(rest.split(" | ")[:3]) for *_, rest in rows} == {("0", "0", "0")}


def test_ci_runs_under_each_python_that_the_package_promises() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    workflow = ROOT / ".github/workflows/ci.yml"
    if not workflow.exists():
        pytest.skip("not a git checkout")
    matrix = re.search(r"python: \[(.*)\]", workflow.read_text())
    assert matrix is not None
    assert re.findall(r'"([^"]+)"', matrix[1]) == classifiers
    assert "bash .ci/run\n" in workflow.read_text()


def test_contributors_find_every_file_that_they_are_told_of() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`(?:\S+ )?((?:app|tests|docs|deploy|proto|\.ci)/[\w./-]*)", text)
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert missing == {"app/kafka_timers/adapters/other.py"}
    targets = set(re.findall(r"`make ([a-z-]+)`", text))
    assert targets <= set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_newcomers_find_every_folder() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not listed:
        pytest.skip("not a git checkout")
    folders = {path.partition("/")[0] for path in listed if "/" in path}
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert folders == set(re.findall(r"^\| `([^/]+)/` \|", page, re.MULTILINE))


def test_generated_code_is_the_same_as_make_proto_makes(tmp_path: Path) -> None:
    protos = [str(path) for path in (ROOT / "proto").rglob("*.proto")]
    arguments = [f"-I{ROOT / 'proto'}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main([sys.argv[0], *arguments, *protos]) == 0
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    package = ROOT / "app"
    committed = {path.relative_to(package): path.read_text() for path in package.glob("kafka_timers/v1/*_pb2.py*")}
    assert made == committed, "run: make proto"


def test_a_package_lists_modules_that_it_has() -> None:
    """What is indented by four spaces in the docstring of a package begins with the name of a module."""
    lists = ("adapters", "cli", "console", "operate")
    for folder in (ROOT / "app" / "kafka_timers" / name for name in lists):
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        listed = re.findall(r"^    (\w+) ", docstring, re.MULTILINE)
        assert listed
        assert [name for name in listed if not (folder / f"{name}.py").exists()] == []


def test_each_alarm_has_a_section_with_steps_to_take_and_a_series_that_rings_it() -> None:
    alarms = re.findall(r"- alert: (\w+)", (ROOT / "deploy/chart/alarms.yaml").read_text())
    assert alarms == re.findall(r"^### (Timers\w+)$", OPERATE.read_text(), re.MULTILINE)
    series = (ROOT / "tests/deploy/alarms.yaml").read_text()
    assert {*alarms} == {*re.findall(r"alertname: (\w+)\n +exp_alerts", series)}
