"""The workflows that docs/how-to/ci.md tells its readers to use, and the tutorials.

Every shell step of them runs, in a fresh folder.

Only what needs a network, GitHub or GitLab is replaced: `apt-get` does nothing, `gh` and `curl`
keep comments in a file.
"""

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meta_tests.conftest import ROOT, child_environment
from meta_tests.golden import masked
from meta_tests.prooflops_gate.foreign_repo import ALONE, commit_all, import_path, run_git
from meta_tests.prooflops_gate.forked_processes import FORKED
from prooflops_gate.report.files import MARK

EXPRESSIONS = {"github.token": "t", "github.repository": "o/r", "github.event.number": "5"}


def loaded(name, **values):
    """A file of YAML with these expressions and those of each job replaced by their values."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for expression, value in (EXPRESSIONS | values).items():
        text = text.replace(f"${{{{ {expression} }}}}", value)
    return yaml.safe_load(text)


JOBS = loaded("docs/workflows/gate.yml")["jobs"]
ACTION = loaded("action.yml")
GITLAB = loaded("docs/workflows/gate.gitlab-ci.yml")
# They stand in for programs of a runner: the tests run with the packages that are here.
PYTEST = "#!{python}\nimport sys, pytest\nsys.exit(pytest.main())\n"
PIP = """#!{python}
import os, sys
install, path, *more = (word for word in sys.argv[1:] if word not in ("-q", "-e"))
assert install == "install" and more in ([], ["."], ["./prooflops"]), sys.argv
assert os.path.exists(os.path.join(path, "pyproject.toml")), sys.argv
"""
PYTHON = """#!{python}
import os, shutil, sys
from pathlib import Path
if sys.argv[1:3] == ["-m", "venv"]:
    shutil.copytree(Path(__file__).parent, Path(sys.argv[3]) / "bin")
elif sys.argv[1:3] != ["-m", "pip"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
# In place of GitHub's command: keeps the comments of one pull request in a file.
GH = """#!{python}
import json, os, sys
from pathlib import Path
store, (api, *words) = Path(os.environ["STORE"]), sys.argv[1:]
comments = json.loads(store.read_text())
if "--jq" in words:
    assert words[:2] == ["--paginate", "repos/o/r/issues/5/comments"], words
    assert "{mark}" in words[-1], words
    print(*[number for number, text in comments.items() if text.startswith("{mark}")], sep="\\n")
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


@pytest.fixture
def runner(foreign, tmp_path):
    """The environment of a job."""
    store, tools = tmp_path / "comments.json", tmp_path / "tools"
    store.write_text('{"9": "of another"}')
    tools.mkdir()
    programs = {"pytest": PYTEST, "pip": PIP, "python3": PYTHON, "gh": GH, "curl": CURL}
    programs |= dict.fromkeys(("sudo", "apt-get"), "#!/bin/sh\n")
    programs["python"] = '#!/bin/sh\nexec {python} "$@"\n'
    for name, script in programs.items():
        (tools / name).write_text(
            script.replace("{python}", sys.executable).replace("{mark}", MARK)
        )
        (tools / name).chmod(0o755)
    return child_environment(
        import_path(foreign),
        PATH=f"{tools}:{os.environ['PATH']}",
        STORE=str(store),
        PYTEST_ADDOPTS="-p prooflops_gate.plugin -p quick_plan",
        PROOFLOPS=str(ROOT / "prooflops_gate"),
        GITHUB_ACTION_PATH=str(ROOT),
        GITHUB_BASE_REF="main",
        GITHUB_REPOSITORY="o/r",
        RUNNER_TEMP=str(tmp_path),
        GITHUB_OUTPUT=str(tmp_path / "output"),
        **ALONE,
        **{FORKED: "1"},
    )


def steps_of_the_action():
    """Its shell steps, with the defaults of its inputs."""
    given = {f"inputs.{name}": each["default"] for name, each in ACTION["inputs"].items()}
    given |= {"inputs.base": "origin/main", "inputs.options": "-p no:cacheprovider"}
    return shell_steps(loaded("action.yml", **given)["runs"])


def shell(step, folder, environment):
    """Runs a step as a runner does."""
    own = {name: str(value or "") for name, value in step.get("env", {}).items()}
    command = ["bash", "-e", "-c", step["run"]]
    environment = {**environment, **own}
    folder = folder / step.get("working-directory", ".")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(step["run"], done.stdout, done.stderr, sep="\n")
    return done


def shell_steps(job):
    return [step for step in job["steps"] if "run" in step]


def clone_of(foreign, here):
    """A clone of the repository, whose branch is `main`."""
    (foreign / "test_more.py").unlink()
    commit_all(foreign)
    run_git(foreign, "branch", "-qM", "main")
    subprocess.run(["git", "clone", "-q", foreign, here], check=True)


def make_slower(here, main):
    """Commits a change that slows the benchmark down; so does `main` after the clone was made."""
    for repo in (here, main):
        work = repo / "work.py"
        work.write_text(work.read_text().replace("STEPS = 300", "STEPS = 1500"))
        commit_all(repo, f"slower in {repo.name}")
    run_git(here, "fetch", "-q")


def commented(tmp_path):
    """The one comment of the gate, beside another's."""
    comments = json.loads((tmp_path / "comments.json").read_text())
    assert list(comments) == ["9", "20"], "one comment, which the second run updates"
    return comments["20"]


BESIDE, OWN = map(shell_steps, JOBS.values())
OF_GITLAB = {
    "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
    "CI_API_V4_URL": "https://gitlab.invalid/api/v4",
    "CI_PROJECT_ID": "7",
    "CI_MERGE_REQUEST_IID": "5",
    "GATE_TOKEN": "secret",
}
SCRIPTS = [GITLAB["gate"][part] for part in ("before_script", "script", "after_script")]
# The steps that gate a pull request, and the variables of its service.
TEMPLATES = {
    "action": (steps_of_the_action(), {"GITHUB_ACTIONS": "true"}),
    "workflow": (BESIDE, {}),
    "GitLab": ([{"run": line} for script in SCRIPTS for line in script], OF_GITLAB),
}
NOT_THE_ACTION = [pytest.param(name, marks=pytest.mark.prove) for name in TEMPLATES][1:]


@pytest.mark.parametrize("template", ["action", *NOT_THE_ACTION])
def test_every_shell_step_works_in_a_fresh_folder(foreign, tmp_path, runner, template):
    here = tmp_path / "here"
    clone_of(foreign, here)
    make_slower(here, foreign)
    steps, variables = TEMPLATES[template]
    # The last one comments, and the second time it updates the comment.
    fails = [shell(step, here, runner | variables).returncode for step in [*steps, steps[-1]]]
    assert fails == ["--gate-versus" in step["run"] for step in [*steps, steps[-1]]]
    comment = commented(tmp_path)
    assert "is gone" not in comment
    assert "gate: fails: 1 SLOWER" in comment
    if template == "action":
        told = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        assert told.pop("verdict") == "fails"
        assert told.keys() == ACTION["outputs"].keys() - {"verdict"}
        assert all(Path(file).is_file() for file in told.values())


@pytest.mark.prove
def test_an_own_machine_gates_against_the_baseline_that_it_recorded(foreign, tmp_path, runner):
    here = tmp_path / "here"
    clone_of(foreign, here)
    *recording, gating = OWN
    assert [shell(step, here, runner).returncode for step in recording] == [0, 0]
    make_slower(here, foreign)
    done = shell(gating, here, runner)
    assert done.returncode == 1
    assert "gate: fails: 1 SLOWER" in done.stdout


def steps_of(page):
    """A tutorial's files, each written by a command, and its commands with what each prints."""
    for file, block in re.findall(
        r"^```(?:python\n# (\S+)|console)\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ):
        if file:
            yield f"cat > {file} <<'END'\n{block}END", ""
        else:
            yield from re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


# The tests in the clone of a tutorial: a claim, and a product with a floor.
FEW_TESTS = ("test_dtype.py", "test_matmul.py")
# These two tests alone, and in one process, as without xdist.
ON_HARDWARE = {
    "ARGS": "--quick",
    "PYTEST_ADDOPTS": "-p pytest_benchmark.plugin -k 'fp16_makes_0 or fp32-sustainable'",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPATH": "{path}/hides_xdist:{path}/start/prooflops",
}


@pytest.mark.parametrize(
    ("tutorial", "view", "variables"),
    [
        ("gate", masked, {}),
        pytest.param("model", str, {}, marks=pytest.mark.prove),
        pytest.param("hardware", str, ON_HARDWARE, marks=pytest.mark.prove),
    ],
)
def test_each_step_of_a_tutorial_prints_what_it_shows(tutorial, view, variables, tmp_path, runner):
    if tutorial != "gate":
        pytest.importorskip("torch", reason="this tutorial needs torch")
    # The first command of a tutorial clones this.
    source = tmp_path / "start" / "URL"
    left_out = shutil.ignore_patterns(".*", "meta_tests", "*.jsonl", "*.html", "reports", "site")
    shutil.copytree(ROOT, source, ignore=left_out)
    for file in source.glob("*/test_*.py"):
        if file.name not in FEW_TESTS:
            file.unlink()
    run_git(source, "init", "-q")
    commit_all(source)
    for role in ("AUTHOR", "COMMITTER"):
        runner |= {f"GIT_{role}_NAME": "ada", f"GIT_{role}_EMAIL": "ada"}
    runner["PYTEST_ADDOPTS"] += " -p pytest_benchmark.plugin -o gate_by=time"
    (tmp_path / "hides_xdist").mkdir()
    hides = "import sys\nsys.modules['xdist'] = None\n"
    (tmp_path / "hides_xdist" / "sitecustomize.py").write_text(hides)
    runner |= {name: text.format(path=tmp_path) for name, text in variables.items()}
    page = (ROOT / "docs" / "tutorials" / f"{tutorial}.md").read_text(encoding="utf-8")
    commands, shown = zip(*steps_of(page), strict=True)
    marked = "".join(f"{each}\necho {MARK!r}\n" for each in commands)
    done = shell({"run": f"set +e\n{marked}"}, source.parent, runner)
    *printed, _ = done.stdout.split(f"{MARK}\n")
    as_shown = doctest.OutputChecker().check_output
    for command, expected, got in zip(commands, shown, printed, strict=True):
        alike = as_shown(view(expected), view(got), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert alike, f"{command}\nshows\n{expected}\nand prints\n{got}"
