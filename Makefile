# make validate   checks the claims and measures this machine; writes the run record and the report
# make evidence   the same in slices of 9 minutes, each of which goes on; the result is kept in results/
# make test       what a contributor and CI check: claims, benchmarks in their quick form, the suite's own tests, lint, types
#                 side by side on the cores there are; each part prints when it ends
# make prove      plants every fault; runs what else takes long, a thousand seeds of each drawn test of the claims, and
#                 50 mutants of the code; compares what the claims' tests try with what their statements cover
# make lint       lint, types, import rules and workflows
# make docs       builds the site into site/; read it with: python -m http.server --directory site
#
# PYTHON=... is the Python to validate, by default the active one. It is used unchanged if it has the packages; otherwise
# a .venv is made, to which pip adds what is missing. ARGS=... is handed to pytest:
# make validate ARGS="--device cpu --claim flops"

PYTHON ?= $(or $(shell command -v python3 || command -v python),python3)
ARGS ?=

# Here and not in pytest.ini: a new torch release must not fail the run of someone who validates a machine.
STRICT = -W error -W default::pytest_benchmark.logger.PytestBenchmarkWarning

AGE = import sys; sys.exit(sys.version_info < (3, 10) and "prooflops needs Python 3.10 or later, but " \
	+ sys.executable + " is " + sys.version.split()[0] + "; name another: make PYTHON=/path/to/python ...")
# The requirements in pyproject.toml: a user's, and for all but validate and evidence those of `dev`.
USER = -e '/^dependencies = \[/,/^\]/p'
# Optional: installed with a .venv, and without it one process runs all tests.
PARALLEL = -e '/^parallel = \[/,/^\]/p'
DEV = -e '/^dev = \[/,/^\]/p'
TESTS = $(filter-out validate evidence,$(or $(MAKECMDGOALS),validate))
LISTS = $(USER) $(if $(TESTS),$(DEV))
# Tests import a third of the modules of torch and transformers, which take pip half a minute to compile.
COMPILING = $(if $(TESTS),--no-compile)
needs = sed -n $(LISTS) $(1) pyproject.toml prooflops_gate/pyproject.toml | sed -n -e '/"prooflops-gate/d' -e 's/^ *"\([^"]*\)".*/\1/p'
# pip itself says whether the active Python has them: it can find no other package.
HAS_ALL = $(call needs) | PIP_CONFIG_FILE=/dev/null "$(PYTHON)" -m pip --isolated install --dry-run --no-index --requirement /dev/stdin \
	>/dev/null 2>&1
python = $(eval python := $(shell $(HAS_ALL) && echo '"$(PYTHON)"' || echo .venv/bin/python))$(python)
# A torch that is there is never replaced: .venv sees it, and its version is the constraint. Where there is none, .venv is apart
# from the active Python's packages, with the versions of constraints.txt.
TORCH = import importlib.metadata as m; print("torch==" + m.version("torch"))
define SETUP
"$(PYTHON)" -c '$(AGE)' && { $(HAS_ALL) || { torch=$$("$(PYTHON)" -c '$(TORCH)' 2>/dev/null); \
	{ .venv/bin/python -c "" 2>/dev/null || "$(PYTHON)" -m venv --clear $${torch:+--system-site-packages} .venv; } \
	&& if [ "$$torch" ]; then echo "$$torch" > .venv/constraints.txt && "$(PYTHON)" -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> "$$(echo .venv/lib/python*/site-packages)/active.pth"; else cp constraints.txt .venv; fi \
	&& $(call needs,$(PARALLEL)) | .venv/bin/python -m pip install --quiet $(COMPILING) --constraint .venv/constraints.txt --requirement /dev/stdin; }; }
endef

# The longest first, so that none is left over at the end; few, as each imports torch and more for itself: 10 CPU seconds.
# Only lint imports none, while the first ones compile its modules for all: pip leaves that out.
CHECKS = meta-rest meta-gate lint meta-suite claims benchmarks
# Whole training steps of seconds, of which others run in make test; these in make prove.
LONG = 'bench/test_training.py::test_accumulation[transformer]' 'bench/test_training.py::test_checkpointing[deep-linear]'

# The parts run side by side, and all of them even if the first fails. make before 4.0 cannot keep their output apart.
ifneq ($(filter output-sync,$(.FEATURES)),)
# One more than there are cores: tests of the gate and the runner sleep for a fifth of their time.
SIDE_BY_SIDE = --jobs=$(shell expr 1 + `nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2`) --output-sync
endif

# Parts run side by side, and each has as many threads as there are cores: one that waits shall sleep, and not spin.
$(CHECKS): export OMP_WAIT_POLICY ?= passive
# A history is what its owner measured: the project's own tests, side by side and on a simulated card, record elsewhere.
$(CHECKS): export PROOFLOPS_HISTORY ?= .prooflops/of-tests

# The tests start hundreds of processes; without compiled files each of them would compile the suite for itself.
export PYTHONDONTWRITEBYTECODE =

.PHONY: validate evidence test prove setup docs $(CHECKS)

# What the page repeats: the command that was given.
validate evidence: export PROOFLOPS_MADE = $@ $(ARGS)

validate: setup
	@exec $(python) -m prooflops.suite.evidence $(ARGS)

evidence: setup
	@exec $(python) -m prooflops.suite.evidence --out results --minutes 9 $(ARGS)

test: setup
	@$(MAKE) --no-print-directory --keep-going $(SIDE_BY_SIDE) SETUP=: $(CHECKS)

$(CHECKS): setup

setup:
	@$(SETUP)

strict = exec $(python) -m pytest $(if $(filter prove,$@),,--quick) $(STRICT) --doctest-modules --doctest-glob='*.md' $(1) $(ARGS)

claims:
	@$(call strict,test_claims)

benchmarks:
	@$(call strict,README.md CONTRIBUTING.md docs accounting prooflops prooflops_gate bench $(LONG:%=--deselect=%))

meta-gate:
	@$(call strict,meta_tests/prooflops_gate)

meta-suite:
	@$(call strict,meta_tests/prooflops/suite meta_tests/prooflops/model)

meta-rest:
	@$(call strict,meta_tests --ignore=meta_tests/prooflops_gate --ignore=meta_tests/prooflops/suite --ignore=meta_tests/prooflops/model)

prove: setup
	@$(call strict,meta_tests -m prove)
ifeq ($(ARGS),)  # ARGS choose among the tests above
	@$(call strict,$(LONG))
	@$(python) -m meta_tests.faults
	@$(python) -m meta_tests.cover
	@$(python) -m meta_tests.seeds
	@$(python) -m meta_tests.mutants
endif

lint:
	@$(python) -m ruff check && $(python) -m ruff format --check && $(python) -m mypy \
		&& $(python) -c "import importlinter.cli as cli, sys; sys.exit(cli.lint_imports())" \
		&& PATH="$$($(python) -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$$PATH" \
		zizmor --offline --no-progress --quiet .github action.yml docs/workflows/gate.yml

docs: setup
	@NO_MKDOCS_2_WARNING=1 exec $(python) -m mkdocs build --strict
