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
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit
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
        file = Path(text).resolve()
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
    for each in distributions():
        if _is_own(each, root, top):
            installed |= _installed_files(each)
            sources |= {folder for folder in [_source(each)] if folder}
    packages = _without_distribution({name.partition(".")[0] for name in outside} & _packages(top))
    ignored = git.untracked(top, "--ignored", "--exclude-standard", "--", *LIBRARIES)
    built = {_library_name(Path(file)) for file in ignored} - {""}
    for name, file in outside.items():
        places = {file, *file.parents}
        is_installed = _is_installed(file)
        # The folder of the sources may hold an environment.
        is_copied = places & (installed if is_installed else installed | sources)
        is_built = not is_installed and _library_name(file) in built
        if is_copied or is_built or name.partition(".")[0] in packages:
            yield file


def _is_own(each: Distribution, root: Path, top: Path) -> bool:
    """Whether a distribution was installed from the repository, or has the name of its project."""
    source = _source(each)
    if source and source.is_dir() and source.is_relative_to(top):
        return True
    # A wheel of the repository lies beside its project, one of others does not.
    folder = source.parent if source and source.is_relative_to(top) else root.resolve()
    within = [place for place in (folder, *folder.parents) if place.is_relative_to(top)]
    # The name alone: broken metadata raise in `Distribution.name`.
    text = each.read_text("METADATA") or each.read_text("PKG-INFO") or each.read_text("") or ""
    names = {_normal(name) for name in re.findall(r"^Name:\s*(\S+)", text, re.MULTILINE)}
    return any(names & _project_names(place) for place in within)


def _source(each: Distribution) -> Path | None:
    """The folder or the file that a distribution was installed from; None where it is unknown."""
    with suppress(ValueError, KeyError):
        url = urlsplit(json.loads(each.read_text("direct_url.json") or "{}")["url"])
        return Path(url2pathname(unquote(url.path))).resolve() if url.scheme == "file" else None
    return None


def _installed_files(each: Distribution) -> set[Path]:
    """The files of a distribution; of an editable one only what was compiled."""
    files = [Path(str(each.locate_file(file))) for file in each.files or ()]
    if '"editable": true' in (each.read_text("direct_url.json") or ""):
        # Its Python files only point to the sources.
        files = [file for file in files if file.suffix in COMPILED]
    elif not files:
        names = (each.read_text("top_level.txt") or "").split()
        files = [Path(str(each.locate_file(name))) for name in names]
    return {file.resolve() for file in files}


def _project_names(folder: Path) -> set[str]:
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
