"""The workflows that docs/ci.md tells its readers to use.

Every shell step of them runs, in a fresh folder.

Only what needs a network, GitHub or GitLab is replaced: `apt-get` does nothing, `gh` and `curl`
keep comments in a file.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from meta_tests.conftest import ROOT
from meta_tests.prooflops_gate.foreign_repo import run_git
from meta_tests.prooflops_gate.forked_processes import FORKED
from prooflops_gate.options import HISTORY
from prooflops_gate.report.files import MARK

WORKFLOW = ROOT / "docs" / "workflows" / "gate.yml"
JOBS = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((ROOT / "docs" / "workflows" / "gate.gitlab-ci.yml").read_text("utf-8"))
MODULE = '[project]\nname = "work"\nversion = "1"\n[tool.setuptools]\npy-modules = ["work"]\n'
# In place of python3: a virtual environment with the packages that are here, whose pip needs no
# network; with INSTALLED, which names where pip has put the same before, it has these too.
PYTHON = """#!{python}
import os, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[-1])
subprocess.run([{python!r}, "-m", "venv", "--without-pip", folder], check=True)
(site,) = folder.glob("lib/*/site-packages")
there = [{site!r}, *os.environ.get("INSTALLED", "").split()]
(site / "shared.pth").write_text("\\n".join(there))
for name, code in {scripts!r}.items():
    (folder / "bin" / name).write_text(f"#!{{folder}}/bin/python\\n{{code}}")
    (folder / "bin" / name).chmod(0o755)
"""
SCRIPTS = {
    "pytest": "import sys, pytest\nsys.exit(pytest.main())\n",
    "pip": """
import os, sys
if "INSTALLED" in os.environ:
    assert sys.argv[1:] == ["install", os.environ["PROOFLOPS"], "-e", "."], sys.argv
else:
    import pip._internal.cli.main
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "-q"]
    sys.exit(pip._internal.cli.main.main(sys.argv[1:] + offline))
""",
}
# In place of GitHub's command: keeps the comments of one pull request in a file.
GH = """#!{python}
import json, os, sys
from pathlib import Path
store, (api, *words) = Path(os.environ["STORE"]), sys.argv[1:]
comments = json.loads(store.read_text())
if "--jq" in words:
    assert words[:2] == ["--paginate", "repos/o/r/issues/5/comments"], words
    assert {mark!r} in words[-1], words
    print(*[number for number, text in comments.items() if text.startswith({mark!r})], sep="\\n")
else:
    (path,) = (word for word in words if word.startswith("repos/o/r/issues/"))
    assert path.endswith("5/comments") or words[:2] == ["--method", "PATCH"], words
    number = path.rpartition("comments/")[2] if "PATCH" in words else "20"
    comments[number] = Path(words[-1][6:]).read_text()
    store.write_text(json.dumps(comments))
"""
# In place of curl: GitLab's notes of one merge request, in the same file.
CURL = """#!{python}
import json, os, sys
from pathlib import Path
store, words = Path(os.environ["STORE"]), sys.argv[1:]
notes, address = json.loads(store.read_text()), words[-1]
assert "PRIVATE-TOKEN: secret" in words and "/projects/7/merge_requests/5/notes" in address, words
if "--data-urlencode" in words:
    number = address.rpartition("/")[2] if "PUT" in words else "20"
    body = words[words.index("--data-urlencode") + 1]
    notes[number] = Path(body.removeprefix("body@")).read_text()
    store.write_text(json.dumps(notes))
else:
    print(json.dumps([dict(id=int(number), body=text) for number, text in notes.items()]))
"""
EXPRESSIONS = {"github.token": "t", "github.repository": "o/r", "github.event.number": "5"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A folder with the programs of a runner in `tools`, and `env`, where the action has installed
    the gate, from a copy of this clone, and a project of one module.
    """
    if find_spec("pip") is None or find_spec("setuptools") is None:
        pytest.skip("needs pip and setuptools, to install without a network")
    root = tmp_path_factory.mktemp("machine")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT / "prooflops_gate", root / "clone" / "prooflops_gate", ignore=ignored)
    here = {
        "python": sys.executable,
        "site": str(Path(pytest.__file__).parents[1]),
        "scripts": SCRIPTS,
        "mark": MARK,
    }
    (root / "tools").mkdir()
    for name, script in {
        "python3": PYTHON.format(**here),
        "gh": GH.format(**here),
        "curl": CURL.format(**here),
        "sudo": "#!/bin/sh\n",
        "apt-get": "#!/bin/sh\n",
    }.items():
        (root / "tools" / name).write_text(script)
        (root / "tools" / name).chmod(0o755)
    subprocess.run([root / "tools" / "python3", root / "env"], check=True)
    project = root / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(MODULE)
    (project / "work.py").touch()
    install, *_ = steps_of_the_action()
    done = shell(install, project, environment(root) | {"GITHUB_ACTION_PATH": str(root / "clone")})
    assert done.returncode == 0
    return root


def environment(machine):
    """That of a runner's shell."""
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "GITHUB"))
    }
    return inherited | {"PATH": f"{machine}/tools:{machine}/env/bin:{os.environ['PATH']}"}


@pytest.fixture
def runner(machine, foreign, tmp_path):
    """The environment of a job, whose installations are there."""
    store = tmp_path / "comments.json"
    store.write_text('{"9": "of another"}')
    (site,) = machine.glob("env/lib/*/site-packages")
    return environment(machine) | {
        "INSTALLED": str(site),
        "STORE": str(store),
        "PYTHONPATH": str(tmp_path / "path"),
        "PYTEST_ADDOPTS": "-p quick_plan",
        FORKED: "1",
        "PROOFLOPS": str(machine / "clone" / "prooflops_gate"),
        "GITHUB_BASE_REF": "main",
        "GITHUB_REPOSITORY": "o/r",
        "RUNNER_TEMP": str(tmp_path),
    }


def steps_of_the_action():
    """Its shell steps, with the defaults of its inputs."""
    given = {f"inputs.{name}": each["default"] for name, each in ACTION["inputs"].items()}
    given |= {"inputs.base": "origin/main", "inputs.options": "-p no:cacheprovider"}
    steps = shell_steps(ACTION["runs"])
    for step in steps:
        for name, value in given.items():
            own = step.get("env", {})
            step["env"] = {
                key: text.replace(f"${{{{ {name} }}}}", value) for key, text in own.items()
            }
    return steps


def shell(step, folder, environment):
    """Runs a step as a runner does."""
    own = {name: str(text) for name, text in step.get("env", {}).items()}
    for name, value in EXPRESSIONS.items():
        own = {key: text.replace(f"${{{{ {name} }}}}", value) for key, text in own.items()}
    command = ["bash", "-e", "-c", step["run"]]
    environment = {**environment, **own}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(step["run"], done.stdout, done.stderr, sep="\n")
    return done


def shell_steps(job):
    return [step for step in job["steps"] if "run" in step]


def clone_of_a_package(foreign, here):
    """A clone of the repository, as a package of one module whose branch is `main`."""
    (foreign / "test_more.py").unlink()
    (foreign / "pyproject.toml").write_text(MODULE)
    for words in (["add", "-A"], ["commit", "-qm", "a package"], ["branch", "-qM", "main"]):
        run_git(foreign, *words)
    subprocess.run(["git", "clone", "-q", foreign, here], check=True)


def make_slower(here):
    """Commits a change that slows the benchmark down."""
    work = here / "work.py"
    work.write_text(work.read_text().replace("STEPS = 300", "STEPS = 1500"))
    run_git(here, "commit", "-qam", "slower")


def commented(tmp_path):
    """The one comment of the gate, beside another's."""
    comments = json.loads((tmp_path / "comments.json").read_text())
    assert list(comments) == ["9", "20"], "one comment, which the second run updates"
    return comments["20"]


def test_every_shell_step_works_in_a_fresh_folder(foreign, tmp_path, runner):
    here = tmp_path / "here"
    clone_of_a_package(foreign, here)
    beside, own = (shell_steps(job) for job in JOBS.values())
    for step in own:
        if "pull_request" not in step.get("if", ""):
            assert shell(step, here, runner).returncode == 0
    make_slower(here)
    codes = [shell(step, here, runner).returncode for step in [*beside, beside[-1]]]
    assert codes == [0, 0, 1, 0, 0], "to install, gate, comment, and comment again"
    comment = commented(tmp_path)
    assert "is gone" not in comment
    assert "SLOWER (1)" in comment
    assert json.loads((here / "gate.json").read_text())["fails"]
    done = shell(own[-1], here, runner)
    assert done.returncode == 1
    assert "gate: fails: 1 SLOWER" in done.stdout


def test_every_shell_step_of_the_action_works_in_a_fresh_folder(foreign, tmp_path, runner):
    here = tmp_path / "here"
    clone_of_a_package(foreign, here)
    make_slower(here)
    # The first one has installed what the others need.
    _, *steps = steps_of_the_action()
    environment = runner | {"GITHUB_ACTIONS": "true"}
    codes = [shell(step, here, environment).returncode for step in [*steps, steps[-1]]]
    assert codes == [0, 1, 0, 0], "to have valgrind, compare, comment, and comment again"
    assert "SLOWER (1)" in commented(tmp_path)
    assert json.loads((tmp_path / "gate.json").read_text())["fails"]


def test_every_line_of_the_gitlab_job_works_in_a_fresh_folder(foreign, tmp_path, runner):
    here = tmp_path / "here"
    clone_of_a_package(foreign, here)
    make_slower(here)
    job = GITLAB["gate"]
    environment = runner | {
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_API_V4_URL": "https://gitlab.invalid/api/v4",
        "CI_PROJECT_ID": "7",
        "CI_MERGE_REQUEST_IID": "5",
        "GATE_TOKEN": "secret",
    }
    lines = [*job["before_script"], *job["script"], *job["after_script"], *job["after_script"]]
    codes = [shell({"run": line}, here, environment).returncode for line in lines]
    assert codes == [0, 0, 0, 1, 0, 0], "to install, valgrind, fetch, compare, comment, and again"
    assert "SLOWER (1)" in commented(tmp_path)


def test_the_workflow_has_all_commits_and_restores_the_records_it_saved():
    cached = {}
    for name, job in JOBS.items():
        assert job["steps"][0]["with"] == {"fetch-depth": 0}, (
            f"{name} has no other commit to run beside"
        )
        for step in job["steps"]:
            action, _, _ = step.get("uses", "").partition("@")
            cached[action] = step.get("with")
    saved, restored = cached["actions/cache/save"], cached["actions/cache/restore"]
    assert restored["path"] == saved["path"] == HISTORY
    assert saved["key"].startswith(restored["restore-keys"]), (
        f"{restored} never finds {saved['key']}"
    )
