"""Refuses a comparison in which both sides ran one build of the repository's code.

Each side must run its own files, neither the other side's nor a build outside both. Such builds are
packages installed without `-e`, or a library in /usr/local/lib.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, distributions
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from prooflops_gate import git
from prooflops_gate.machine import cpu
from prooflops_gate.sides import BUILD_IT
from prooflops_gate.task import Pair, Replicate

Files = dict[str, Path]

INSTALLED = ("site-packages", "dist-packages")
LIBRARIES = ("*.so*", "*.dylib")
# The patterns by which the files of a project declare its name.
IN_A_SECTION = (
    r"(?ms)^\[(?:project|metadata|tool\.poetry|tool\.flit\.metadata)\]$"
    r"(?:(?!^\[).)*?^(?:name|module)\s*=\s*[\"']?([\w.-]+)"
)
PROJECTS = {
    "pyproject.toml": IN_A_SECTION,
    "setup.cfg": IN_A_SECTION,
    "setup.py": r"""\bname\s*=\s*["']([\w.-]+)""",
}
# Folders for copies of other projects.
VENDORED = {"vendor", "vendored", "_vendor", "third_party", "extern", "external"}
SEPARATE = (
    "install it with `pip install -e`, or install the other version into a second environment and "
    "give --gate-versus its interpreter"
)


def check_origins(pair: Pair, root: Path, asked: str) -> None:
    """Refuses a comparison in which a side did not run its own code.

    The other side may have run this side's code, or either an installed copy of it.
    """
    before, after = pair
    if before.side.root == after.side.root:
        if before.prefix == after.prefix:
            same = "both sides are the same (--gate-noise-floor is for that)"
            raise pytest.UsageError(f"{asked}: {same}")
        return
    roots = [git.repository_of(side.root) or side.root for side in (before.side, after.side)]
    top = roots[1].resolve()
    if roots[0] == roots[1]:
        # Two folders of one repository.
        roots = [before.side.root, after.side.root]
    theirs, ours = (each.resolve() for each in roots)
    theirs_own, theirs_outside = _own_and_outside(before, theirs, ours, asked)
    ours_own, ours_outside = _own_and_outside(after, ours, theirs, asked)
    for done, outside in ((before, theirs_outside), (after, ours_outside)):
        for file in copies(outside, root, top):
            raise pytest.UsageError(
                f"{asked}: {done.side.label} (in {done.side.root}) loaded {file}, a build of this "
                f"repository outside both sides: both would run the same code; {SEPARATE}"
            )
    theirs_built, ours_built = _compiled(theirs_own), _compiled(ours_own)
    if before.side.fresh and ours_built and not theirs_built:
        raise pytest.UsageError(
            f"{asked}: this side imported the built extension {ours_built[0]}, which a checkout of "
            f"a revision lacks: other code would be compared; {BUILD_IT}"
        )
    if not theirs_own and not ours_own:
        raise pytest.UsageError(f"{asked}: neither side imported anything from {root}")


def _own_and_outside(done: Replicate, own: Path, foreign: Path, asked: str) -> tuple[Files, Files]:
    """The files that a side loaded of its own repository, and from outside both sides.

    Raises UsageError for a file of the other side.
    """
    found, outside = Files(), Files()
    prefix = Path(done.prefix)
    for name, text in done.modules.items():
        file = _resolved(Path(text))
        # An interpreter may lie within a checkout.
        in_prefix = file.is_relative_to(prefix) and not own.is_relative_to(prefix)
        if in_prefix or _is_installed(file):
            outside[name] = file
        elif file.is_relative_to(own):
            found[name] = file
        elif file.is_relative_to(foreign):
            raise pytest.UsageError(
                f"{asked}: {done.side.label} (in {done.side.root}) imported {name} from {file}, "
                "which is the other side's: both would run the same code; see PYTHONPATH, "
                "LD_LIBRARY_PATH and absolute paths in the code"
            )
        else:
            outside[name] = file
    return found, outside


def _resolved(file: Path) -> Path:
    """The file that a path leads to; of the thousands that are installed only the folder's."""
    return _real(file.parent) / file.name if _is_installed(file) else file.resolve()


@cache
def _real(folder: Path) -> Path:
    return folder.resolve()


def _is_installed(file: Path) -> bool:
    return not set(INSTALLED).isdisjoint(file.parts)


def _compiled(files: Mapping[str, Path]) -> list[Path]:
    return [file for file in files.values() if _library_name(file)]


def _library_name(file: Path) -> str:
    """The name of a shared library without its version; empty for another file.

    >>> _library_name(Path("lib/libwork.so.1.2")), _library_name(Path("work.py"))
    ('libwork', '')
    """
    found = re.fullmatch(r"(.+?)(\.so[.\d]*|(\.\d+)*\.dylib)", file.name)
    return found[1] if found else ""


def copies(outside: Mapping[str, Path], root: Path, top: Path) -> Iterator[Path]:
    """The files outside both sides that are builds of the repository at `top`.

    A distribution belongs to it that was installed from it, or has the name of its project: its
    files, or the folder of its sources. So does a package or a library that no distribution has,
    and that is called as one there.
    """
    own = set[Path]()
    names = _project_names(root.resolve(), top)
    for each in distributions():
        if _is_own(each, names, top):
            own |= _places_of(each)
    packages = _without_distribution({name.partition(".")[0] for name in outside} & _packages(top))
    ignored = git.untracked(top, "--ignored", "--exclude-standard", "--", *LIBRARIES)
    built = {_library_name(Path(file)) for file in ignored} - {""}
    for name, file in outside.items():
        # The folder of the sources may hold an environment.
        within = takewhile(lambda folder: folder.name not in INSTALLED, file.parents)
        is_library = name == file.name and not _is_installed(file)
        if (
            not own.isdisjoint([file, *within])
            or name.partition(".")[0] in packages
            or (is_library and _library_name(file) in built)
        ):
            yield file


def _is_own(each: Distribution, names: set[str], top: Path) -> bool:
    """True if a distribution was installed from the repository, or has the name of a project."""
    source = _source(each)[0]
    if source and source.is_dir() and source.is_relative_to(top):
        return True
    # The name alone: broken metadata raise in `Distribution.name`.
    text = each.read_text("METADATA") or each.read_text("PKG-INFO") or each.read_text("") or ""
    found = re.findall(r"^Name:\s*(\S+)", text, re.MULTILINE)
    return not names.isdisjoint(map(_normal, found))


def _source(each: Distribution) -> tuple[Path | None, bool]:
    """The folder or the file that a distribution was installed from, and whether it is editable."""
    try:
        origin = json.loads(each.read_text("direct_url.json") or "{}")
        url, is_editable = urlsplit(origin["url"]), origin.get("dir_info", {}).get("editable")
    except (ValueError, KeyError):
        return None, False
    place = Path(url2pathname(url.path)).resolve() if url.scheme == "file" else None
    return place, bool(is_editable)


def _places_of(each: Distribution) -> set[Path]:
    """The files or folders of a distribution.

    Of an editable one the folder of its sources, and what was compiled: its Python files only point
    there.
    """
    source, is_editable = _source(each)
    files = [Path(str(each.locate_file(file))) for file in each.files or ()]
    if is_editable and source:
        files = [source, *(file for file in files if _library_name(file))]
    elif not files:
        names = (each.read_text("top_level.txt") or "").split()
        files = [Path(str(each.locate_file(name))) for name in names]
    return {_resolved(file) for file in files}


def _project_names(root: Path, top: Path) -> set[str]:
    """The names of the repository's projects, without those of others that it has copies of."""
    tracked = git.output(top, "ls-files", "--", *(f"*{name}" for name in PROJECTS)) or ""
    files = {top / file for file in tracked.splitlines()}
    files |= {folder / name for folder in (root, top) for name in PROJECTS}
    names = set[str]()
    for file in files:
        if VENDORED.isdisjoint(file.relative_to(top).parts) and file.name in PROJECTS:
            names |= set(map(_normal, re.findall(PROJECTS[file.name], cpu.text(file))))
    return names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _packages(top: Path) -> set[str]:
    """The packages in the repository that lie in no other, whatever its layout."""
    tracked = (git.output(top, "ls-files", "*/__init__.py") or "").splitlines()
    folders = {Path(file).parent for file in tracked}
    return {folder.name for folder in folders if folder.parent not in folders}


def _without_distribution(packages: set[str]) -> set[str]:
    """Those packages that no installed distribution has."""
    left = set(packages)
    for each in distributions() if packages else ():
        lists = (each.read_text(name) or "" for name in ("RECORD", "top_level.txt"))
        left -= set(re.findall(r"^[^/.,\s]+", "\n".join(lists), re.MULTILINE))
    return left
