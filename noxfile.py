"""The oldest and newest versions with which the suite runs: `nox`, or `nox -s gate -- FILE`.

What differs between versions of torch is a condition in the registry, not a failure. A Python or
package that is not to be had is skipped.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST = {"pytest": "8.0.*", "pytest-benchmark": "5.0.*", "numpy": "1.23.*", "scipy": "1.11.*"}
SUITE = {"torch": "2.6.*", "hypothesis": "6.100.*", "einops": "0.7.*", **OLDEST}
# The installed part's own tests, without the suite's conftest.py.
GATE = "-c /dev/null --rootdir=. --confcutdir=meta_tests/prooflops_gate -p prooflops_gate.plugin"
GATE_ARGUMENTS = [*GATE.split(), "-m", "not prove", "-o", "markers=prove: takes long"]
ROOMS = ["meta_tests/prooflops_gate"]
TESTED = Path(__file__).parent / "results" / "tested.json"


def pinned(packages: dict[str, str]) -> list[str]:
    """Requirements of these versions."""
    return [f"{name}=={version}" for name, version in packages.items()]


def keep(session: nox.Session, what: str, torch: str = "-") -> None:
    """Keeps that this has passed, whole, as a row of docs/reference/tested.md."""
    if session.posargs:
        return
    case = [what, session.python, torch]
    rows = [row for row in json.loads(TESTED.read_text("utf-8")) if row[:3] != case]
    rows.append([*case, time.strftime("%Y-%m-%d")])
    lines = ",\n ".join(map(json.dumps, sorted(rows)))
    TESTED.write_text(f"[\n {lines}\n]\n", "utf-8")


@nox.session(python=PYTHONS)
def gate(session: nox.Session) -> None:
    """The installed part without torch, as other projects have it."""
    session.install(
        "--only-binary=:all:",
        "pytest",
        "pytest-benchmark",
        "numpy",
        "scipy",
        "hypothesis",
        "pyyaml",
    )
    session.run("python", "-m", "pytest", *GATE_ARGUMENTS, *(session.posargs or ROOMS))
    keep(session, "gate")


@nox.session(python=PYTHONS[0])
def gate_oldest(session: nox.Session) -> None:
    """The same with the oldest packages, on the oldest Python."""
    session.install("--only-binary=:all:", *pinned(OLDEST), "hypothesis", "tomli", "pyyaml")
    session.run("python", "-m", "pytest", *GATE_ARGUMENTS, *(session.posargs or ROOMS))
    keep(session, "gate, oldest packages")


@nox.session(python=PYTHONS)
@nox.parametrize(
    "torch", ["2.15.*", "2.13.*", "2.11.*"], ids=["torch-2.15", "torch-2.13", "torch-2.11"]
)
def suite(session: nox.Session, torch: str) -> None:
    """The claims with the newest packages, and with the torch of images for GPUs.

    One of them: `nox -s "suite-3.12(torch-2.11)"`.

    On Linux pip's torch is the build for CUDA, of some 3 GB, unless it is pointed to another index.
    """
    session.install(f"torch=={torch}", "-e", "./prooflops_gate", "-e", ".")
    session.run("python", "-m", "pytest", "test_claims", "--quick", *session.posargs)
    keep(session, "claims", torch)


@nox.session(python=PYTHONS[0])
def suite_oldest(session: nox.Session) -> None:
    """The claims with the oldest packages, on the oldest Python."""
    session.install(*pinned(SUITE), "-e", "./prooflops_gate", "-e", ".")
    session.run("python", "-m", "pytest", "test_claims", "--quick", *session.posargs)
    keep(session, "claims, oldest packages", SUITE["torch"])
