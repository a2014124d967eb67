"""Refuses a comparison in which both sides ran one build of the repository's code.

Each side must run its own files: neither the other side's, nor a build outside both, such as a
package that was installed without `-e` or a library in /usr/local/lib.
"""

from __future__ import annotations

import configparser
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from prooflops_gate import git
from prooflops_gate.sides import BUILD_IT
from prooflops_gate.task import Pair, Replicate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Files = dict[str, Path]

INSTALLED = ("site-packages", "dist-packages")
COMPILED = (".so", ".pyd", ".dylib", ".dll")
LIBRARIES = ("*.so*", "*.dylib", "*.dll")
PROJECTS = ("pyproject.toml", "setup.cfg", "setup.py")
# Folders for copies of other projects.
VENDORED = {"vendor", "vendored", "_vendor", "third_party", "extern", "external"}
SEPARATE = (
    "install it with `pip install -e`, or install the other version into a second environment and "
    "give --gate-versus its interpreter"
)


def check_origins(pair: Pair, root: Path, asked: str) -> None:
    """Refuses a comparison in which the other side ran this side's code, or either ran an installed
    copy of it.
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
    found = re.fullmatch(r"(.+?)(\.so[.\d]*|\.pyd|(\.\d+)*\.dylib|\.dll)", file.name)
    return found[1] if found else ""


def copies(outside: Mapping[str, Path], root: Path, top: Path) -> Iterator[Path]:
    """Those files outside both sides that are builds of the repository at `top`.

    A distribution belongs to it that was installed from it, or has the name of its project: its
    files, or the folder of its sources. So does a package or a library that no distribution has,
    and that is called as one there.
    """
    installed, sources = set[Path](), set[Path]()
    names = _project_names(root.resolve(), top)
    for each in distributions():
        if _is_own(each, names, top):
            installed |= _installed_files(each)
            sources |= {folder for folder in [_source(each)[0]] if folder}
    packages = _without_distribution({name.partition(".")[0] for name in outside} & _packages(top))
    ignored = git.untracked(top, "--ignored", "--exclude-standard", "--", *LIBRARIES)
    built = {_library_name(Path(file)) for file in ignored} - {""}
    for name, file in outside.items():
        places = {file, *file.parents}
        is_copied = bool(places & installed) or name.partition(".")[0] in packages
        # The folder of the sources may hold an environment.
        if not _is_installed(file):
            is_library = name == file.name
            is_copied |= bool(places & sources) or (is_library and _library_name(file) in built)
        if is_copied:
            yield file


def _is_own(each: Distribution, names: set[str], top: Path) -> bool:
    """Whether a distribution was installed from the repository, or has the name of a project."""
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


def _installed_files(each: Distribution) -> set[Path]:
    """The files of a distribution; of an editable one only what was compiled."""
    files = [Path(str(each.locate_file(file))) for file in each.files or ()]
    if _source(each)[1]:
        # Its Python files only point to the sources.
        files = [file for file in files if file.suffix in COMPILED]
    elif not files:
        names = (each.read_text("top_level.txt") or "").split()
        files = [Path(str(each.locate_file(name))) for name in names]
    return {_resolved(file) for file in files}


def _project_names(root: Path, top: Path) -> set[str]:
    """The names of the repository's projects, without those of others that it has copies of."""
    tracked = (
        git.output(top, "ls-files", "--", *(f"*{name}" for name in PROJECTS)) or ""
    ).splitlines()
    folders = {top / Path(file).parent for file in tracked} | {root, top}
    own = [folder for folder in folders if VENDORED.isdisjoint(folder.relative_to(top).parts)]
    return set[str]().union(*map(_names_in, own))


def _names_in(folder: Path) -> set[str]:
    """The names of the project in a folder, as its files declare them."""
    found: list[object] = []
    with suppress(OSError, ValueError):
        text = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        tool = text.get("tool", {})
        found += [text.get("project", {}).get("name"), tool.get("poetry", {}).get("name")]
        found += [tool.get("flit", {}).get("metadata", {}).get("module")]
    with suppress(OSError, ValueError, configparser.Error):
        config = configparser.ConfigParser(interpolation=None)
        config.read_string((folder / "setup.cfg").read_text("utf-8"))
        found.append(config.get("metadata", "name"))
    with suppress(OSError, ValueError):
        text_of_setup = (folder / "setup.py").read_text("utf-8")
        found += re.findall(r"""\bname\s*=\s*["']([^"']+)""", text_of_setup)
    return {_normal(name) for name in found if isinstance(name, str)}


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
