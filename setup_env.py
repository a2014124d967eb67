"""Finds or makes a Python that can run this repository and prints its path, for each `make`.

1. The Python that runs this file has all packages: it is used as it is, without a network.
2. It has torch but not all the rest: `.venv`, which sees its packages; pip adds what is missing.
3. It has no torch: `.venv`, apart from its packages, with the versions of constraints.txt.

The torch found is validated as it is, so it is never replaced: a broken or too old one is an
error. A complete Python is known by its packages' metadata; torch is imported, which takes a
second, where something is to be installed beside it. Only the standard library is used, as nothing
else is there yet.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent
# In .venv: what it is made of; empty while it is being made.
STAMP = "made-by-make.txt"


class SetupError(Exception):
    """What keeps the set-up from being done, and what to do about it."""


@dataclass(frozen=True)
class Requirement:
    """One line of a list of dependencies in pyproject.toml."""

    name: str
    minimum: str

    def __str__(self) -> str:
        return f"{self.name}>={self.minimum}"

    def is_met_by(self, version: str | None) -> bool:
        """Whether `version` is late enough; 2.6.0a0+nv25.1, as vendors build it, counts as 2.6."""
        return version is not None and _release(version) >= _release(self.minimum)


@dataclass(frozen=True)
class Interpreter:
    """What a Python says of itself, and the version of each package that is installed for it."""

    executable: str
    prefix: str
    version: str
    site_folders: list[str]
    packages: dict[str, str]

    def lacks(self, needs: list[Requirement]) -> list[Requirement]:
        return [need for need in needs if not need.is_met_by(self.packages.get(need.name))]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def requirements(*extras: str, repository: Path = REPOSITORY) -> list[Requirement]:
    """The dependencies of the gate and of the suite that apply here, with those of some extras.

    The gate itself lies in the clone, so it is not among them.
    """
    gate = requirements_in(repository / "prooflops_gate" / "pyproject.toml")
    suite = requirements_in(repository / "pyproject.toml", *extras)
    return [need for need in gate + suite if need.name != "prooflops-gate"]


def requirements_in(file: Path, *extras: str) -> list[Requirement]:
    """The dependencies in one pyproject.toml that apply here, with those of some extras.

    Read line by line, as Python 3.10 has no TOML reader; a test holds this against a real one.
    """
    found, current = [], ""
    form = re.compile(r""" +"([\w.-]+)>=([\d.]+)(?:; python_version < '([\d.]+)')?",""")
    for line in file.read_text(encoding="utf-8").splitlines():
        if start := re.fullmatch(r"(\w+) = \[", line):
            current = start[1]
        elif line == "]":
            current = ""
        elif current in ("dependencies", *extras) and not line.lstrip().startswith("#"):
            match = form.match(line)
            if match is None:
                raise SetupError(f'{file}: {line.strip()} should be of the form "name>=version"')
            if not match[3] or sys.version_info[:2] < _release(match[3]):
                found.append(Requirement(match[1], match[2]))
    return found


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def self_portrait(names: list[str]) -> Interpreter:
    """The Python that runs this file."""
    packages: dict[str, str] = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    of_sites = re.compile(r"(site|dist)-packages$")
    folders = [path for path in sys.path[1:] if of_sites.search(path) and Path(path).is_dir()]
    return Interpreter(sys.executable, sys.prefix, sys.version, folders, packages)


def interpreter(python: str, needs: list[Requirement]) -> Interpreter:
    """What `python` says of itself, in a process of its own."""
    command = [python, __file__, "--probe", *(need.name for need in needs)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"{python} cannot be started: {error}") from None
    try:
        return Interpreter(**json.loads(answer.stdout))
    except ValueError:
        said = answer.stderr.strip()[-1000:]
        raise SetupError(f"{python} ended with exit status {answer.returncode}: {said}") from None


def refuse_unusable_torch(given: Interpreter, missing: list[Requirement]) -> None:
    """Raises SetupError for a torch that is too old, or cannot be imported."""
    if "torch" not in given.packages:
        return
    other = "name another Python: make PYTHON=/path/to/python ..."
    if too_old := [need for need in missing if need.name == "torch"]:
        raise SetupError(
            f"{given.executable} has torch {given.packages['torch']}, but {too_old[0]} is needed, "
            f"and a torch that is there is never replaced. Upgrade it, or {other} "
            "(one without torch gets its own in .venv)"
        )
    # It breaks in ways that no metadata tell, such as by a CUDA library that is not there.
    command = [given.executable, "-c", "import torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(
            f"the torch of {given.executable} cannot be imported (exit status {done.returncode}): "
            f"{done.stderr.strip()[-1000:]}\nIt is left as it is. Repair it, or {other}"
        )


def make_venv(given: Interpreter, folder: Path, site_folders: list[str]) -> None:
    """Makes `.venv` anew from `given`, seeing the packages in `site_folders`.

    `--system-site-packages` would show those of the base Python, also where `given` is itself an
    environment.
    """
    if folder.exists():
        # First, as without it a deletion that was killed is no environment of somebody else.
        (folder / "pyvenv.cfg").unlink(missing_ok=True)
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / STAMP).touch()
    venv = [given.executable, "-m", "venv", str(folder)]
    # Debian keeps ensurepip apart, in the package python3-venv.
    if _run(venv, quiet=True) != 0 and _run([*venv, "--without-pip"]) != 0:
        raise SetupError(f"{given.executable} cannot make a virtual environment; see above")
    (packages,) = folder.glob("lib/python*/site-packages")
    # By addsitedir, so that the .pth files there count.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site_folders]
    (packages / "given-python.pth").write_text("".join(lines), encoding="utf-8")


def install(python: str, given: Interpreter, needs: list[Requirement], options: list[str]) -> None:
    """Installs `needs` for `python` by its own pip, or else by that of `given`."""
    pip = [python, "-m", "pip"]
    if _run([*pip, "--version"], quiet=True) != 0:
        pip = [given.executable, "-m", "pip", "--python", python]
    names = [str(need) for need in needs]
    # Python compiles what a run imports, a part of these 9,000 files; pip would compile all.
    always = ["--no-compile", "--disable-pip-version-check", "--no-input"]
    if _run([*pip, "install", *always, *options, *names]) != 0:
        raise SetupError(
            f"pip could not install {' '.join(names)}; its reason stands above "
            "(Debian: apt install python3-venv).\n"
            "Without a network, either name a Python that has them (make PYTHON=/path/to/python "
            "...), or fetch them on a like machine that has one and bring the folder:\n"
            f"  pip download --dest wheels {' '.join(options)} {' '.join(map(repr, names))}\n"
            "  PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels make ..."
        )


def _run(command: list[str], quiet: bool = False) -> int:
    """The exit status of a command. It prints to stderr, as stdout is for the one path."""
    output = subprocess.DEVNULL if quiet else sys.stderr
    # Some images set PIP_USER, and a venv has no user folder.
    environment = {**os.environ, "PIP_USER": "0"}
    done = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False)
    return done.returncode


def _say(message: str) -> None:
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def ready_python(python: str, *extras: str, repository: Path = REPOSITORY) -> str:
    """The Python to run with, made ready where it is not."""
    nvidia = ["nvidia"] if has_nvidia_driver() else []
    needs = requirements(*nvidia, *extras, repository=repository)
    folder, constraints = repository / ".venv", repository / "constraints.txt"
    own = str(folder / "bin" / "python")
    stamp = folder / STAMP
    made_of = stamp.read_text(encoding="utf-8").splitlines() if stamp.exists() else []

    given = interpreter(python, needs)
    if made_of and Path(given.prefix).resolve() == folder:
        # .venv is activated: go by the Python that it was made from.
        given = interpreter(made_of[0], needs)
    missing = given.lacks(needs)
    if not missing:
        _say(f"{given.executable} has all packages that are needed, so nothing is installed")
        return given.executable
    refuse_unusable_torch(given, missing)

    if (folder / "pyvenv.cfg").exists() and not stamp.exists():
        raise SetupError(
            f"{folder} was not made by `make`, so it is not touched. Delete it, or use it: "
            f"`pip install` the dependencies of pyproject.toml there and run make PYTHON={own} ..."
        )
    has_torch = "torch" in given.packages
    parts = [given.prefix, given.version, given.site_folders, given.packages.get("torch")]
    parts += [str(need) for need in requirements("nvidia", repository=repository)]
    key = hashlib.sha256(json.dumps(parts).encode() + constraints.read_bytes()).hexdigest()
    if made_of[1:] != [key]:
        _say(f"making {folder} from {given.executable}{', whose torch it uses' * has_torch}")
        make_venv(given, folder, given.site_folders if has_torch else [])
    if lacking := interpreter(own, needs).lacks(needs):
        _say(f"installing {', '.join(need.name for need in lacking)} in {folder}")
        stamp.write_text("", encoding="utf-8")
        # A torch that is not ours decides itself which versions go with it.
        install(own, given, lacking, [] if has_torch else ["--constraint", str(constraints)])
    stamp.write_text(f"{given.executable}\n{key}\n", encoding="utf-8")
    return own


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dev", action="store_true", help="with the tools of `make lint`")
    parser.add_argument("--probe", nargs="*", metavar="PACKAGE", help="print what this Python has")
    options = parser.parse_args(arguments)
    if options.probe is not None:
        print(json.dumps(asdict(self_portrait(options.probe))))
        return 0
    try:
        print(ready_python(sys.executable, *(["dev"] if options.dev else [])))
    except SetupError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
