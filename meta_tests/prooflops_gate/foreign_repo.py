"""A small repository under git that knows nothing of the gate, and runs of the gate in it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT, fork_pytest
from meta_tests.prooflops_gate.forked_processes import FORKED
from prooflops_gate.git import environment
from prooflops_gate.report.files import SCHEMA_FILE

# These runs do not test the plan, which confirms nothing with fewer than 13 pairs: four are enough.
# Nor do they wait for a core at full speed, or repeat a pair that other work disturbed.
QUICK = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from prooflops_gate import process, question
    from prooflops_gate.instruments import memory, times
    times.LEAST_REPEATS = process.PATIENCE = process.PATIENCE_S = 0
    from prooflops_gate.statistics.decision_rule import Plan
    def plan(benchmarks, *, most=None, all_pairs=False):
        looks = (most if all_pairs else 2,)
        often = {"alarm_rate": 0.3, "confirmation_level": 0.3}
        return Plan(benchmarks=1, looks=looks, confirming_pairs=2, **often)
    question.plan_for = plan
    memory.PROCESSES_PER_SIDE = 2
    if "FORKED_PROCESSES" in os.environ:
        from forked_processes import fork_processes
        fork_processes()
"""
# Loading the other installed plugins takes a third of each process's time.
INI = "[pytest]\naddopts = --strict-markers -p benchmark\ngate_by = time\n"
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
PLUGINS = ("-p", "prooflops_gate.plugin", "-p", "quick_plan")

MORE_TESTS = """
import pytest
import work

def test_{name}(benchmark):
    benchmark.pedantic(work.busy, args=(400,), rounds=30, iterations=4)

def test_slow(benchmark):
    benchmark.pedantic(work.busy, args=({steps},), rounds=30, iterations=4)

@pytest.mark.gate(ignore=True)
def test_searched_anew(benchmark):
    benchmark.extra_info["flops"] = {steps}
    benchmark.pedantic(work.busy, args=({steps},), rounds=3)

def test_that_fails():
    assert {steps} == 400, "the test's own failure"

def test_that_is_skipped_now(benchmark):
    if {steps} != 400:
        pytest.skip("one call takes too long")
    benchmark.pedantic(work.busy, args=(400,), rounds=3)
"""


def write_quick_plan(folder, more=""):
    """Writes the plugin `quick_plan` and what it imports into a folder of the import path."""
    folder.mkdir()
    (folder / "quick_plan.py").write_text(QUICK + more)
    shutil.copy(Path(__file__).with_name("forked_processes.py"), folder)


def import_path(repo):
    """The value of PYTHONPATH with the quick plan and the package."""
    return f"{repo.parent / 'path'}:{ROOT}"


def add_hooks(repo, hooks):
    """Appends to the repository's conftest.py."""
    with open(repo / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(hooks)


def run_git(repo, *words, text=None):
    """Runs git in a repository, and returns what it printed."""
    command = ["git", "-c", "user.name=Ada", "-c", "user.email=a@b", *words]
    return subprocess.run(
        command,
        cwd=repo,
        env=environment(),
        input=text,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def commit_all(repo, message="as it is"):
    """Commits every file that git does not ignore."""
    run_git(repo, "add", "-A")
    run_git(repo, "commit", "-qm", message)


def run(repo, *options, **variables):
    """Runs pytest with the gate and the quick plan, whose processes are forks."""
    return fork_pytest(
        repo, *PLUGINS, *options, path=import_path(repo), **ALONE | {FORKED: "1"}, **variables
    )


def worktrees(repo):
    return run_git(repo, "worktree", "list").count("\n")


def config_in(root, *options):
    """The configuration of a run of pytest in this folder, with these options."""
    return pytest.Config.fromdictargs({}, [f"--rootdir={root}", str(root), *options])


def valid_json(path):
    """The content of the file of --gate-json, validated by its schema."""
    content = json.loads(path.read_text())
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, of the [dev] packages")
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(content)
    return content
