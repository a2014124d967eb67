"""The launch files of docs/launch, as far as they can be checked without a cluster."""

import subprocess

import pytest
import yaml

from meta_tests.conftest import ROOT
from prooflops.suite.ranks import VARIABLES, job_rank

LAUNCH = ROOT / "docs" / "launch"


@pytest.mark.parametrize("name", ["slurm.sh", "torchrun.sh"])
def test_a_shell_file_parses_and_runs_pytest_into_the_shared_folder(name: str) -> None:
    checked = subprocess.run(["sh", "-n", str(LAUNCH / name)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    text = (LAUNCH / name).read_text(encoding="utf-8")
    assert "export PROOFLOPS_HISTORY=" in text
    assert "python -m pytest bench --quick" in text


def test_processes_of_torchrun_without_a_master_are_runs_of_their_own() -> None:
    assert "env -u MASTER_ADDR" in (LAUNCH / "torchrun.sh").read_text(encoding="utf-8")
    variables = dict.fromkeys(VARIABLES, "1") | {"RANK": "0"}
    assert job_rank(variables)
    assert job_rank({name: value for name, value in variables.items() if name != "MASTER_ADDR"}) is None


def test_the_job_has_a_pod_a_node_and_one_shared_folder() -> None:
    job = yaml.safe_load((LAUNCH / "kubernetes.yaml").read_text(encoding="utf-8"))
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (job["kind"], spec["completionMode"], spec["completions"]) == ("Job", "Indexed", spec["parallelism"])
    assert (spec["backoffLimitPerIndex"], pod["restartPolicy"], "backoffLimit" in spec) == (0, "Never", False)
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    assert {each["name"] for each in pod["volumes"]} == {mount["name"]}
    history = next(each["value"] for each in container["env"] if each["name"] == "PROOFLOPS_HISTORY")
    assert history.startswith(mount["mountPath"])
