"""The oldest and newest versions that the suite is to run with: `nox`, or `nox -s gate`; `nox -l` lists them.

What differs between versions of torch is a condition in the registry, not a failure. A Python or package that is not
to be had is skipped.
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST = {"pytest": "8.0.*", "pytest-benchmark": "5.0.*", "numpy": "1.26.*", "scipy": "1.11.*"}  # numpy: with wheels
SUITE = {"torch": "2.6.*", "hypothesis": "6.100.*", "einops": "0.7.*", **OLDEST}
# The installed part's own tests, without the suite's conftest.py; those that run the suite itself need torch.
GATE = [
    "-c",
    "/dev/null",
    "--rootdir=.",
    "--confcutdir=meta_tests/prooflops",
    "-p",
    "prooflops.plugin",
    "-m",
    "not prove",
    "-k",
]
GATE += ["not (test_trend or test_run.py or test_progress or test_single_run or test_plugin)"]
GATE += [f"meta_tests/prooflops/{name}" for name in ("gate", "statistics", "history", "console")]


def pinned(packages: dict[str, str]) -> list[str]:
    """Requirements of these versions."""
    return [f"{name}=={version}" for name, version in packages.items()]


@nox.session(python=PYTHONS)
@nox.parametrize("versions", [nox.param("oldest", id="oldest"), nox.param("newest", id="newest")])
def gate(session: nox.Session, versions: str) -> None:
    """The installed part without torch, as other projects have it."""
    packages = pinned(OLDEST) if versions == "oldest" else ["pytest", "pytest-benchmark", "numpy", "scipy"]
    session.install("--only-binary=:all:", *packages, "hypothesis")
    session.run("python", "-m", "pytest", *GATE, *session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("torch", ["2.6.*", "2.13.*"])
def suite(session: nox.Session, torch: str) -> None:
    """The claims with an old and a new torch; the oldest of all else with the old one."""
    packages = pinned({**SUITE, "torch": torch}) if torch == "2.6.*" else [f"torch=={torch}"]
    session.install(*packages, "-e", ".[suite]")
    session.run("python", "-m", "pytest", "test_claims", "--quick", *session.posargs)
