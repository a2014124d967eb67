"""What the documents name is there: files, modules, targets of make, options, fields, fixtures; and they name all."""

import importlib
import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from accounting import roofline
from meta_tests.conftest import ROOT, SUITE, fork_pytest
from prooflops.suite.evidence.command import parser
from prooflops.suite.registry import KINDS, WRITTEN, Claim, Source, load_registry

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "workflows" / "gate.yml"]
    if path.name != "CHANGELOG.md"  # tells of what was
}
PACKAGES = ("accounting", "bench", "meta_tests", "prooflops", "test_claims")
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}
OPTIONS_OF_OTHERS = {"--nproc-per-node", "--kill-on-bad-exit"}  # torchrun's and srun's
OPTIONS_OF_OTHERS |= {name for action in parser()._actions for name in action.option_strings}  # of make evidence
ALIASES = {"--junitxml"}  # known to pytest, and not in its help
GENERATED = {"docs/api", "reports/report.html", "reports/report.md", "reports/verdicts.json"}

page = pytest.mark.parametrize("page", PAGES)


def code_of(text: str) -> list[str]:
    """What stands between backticks, and in blocks of code."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [*blocks, *re.findall(r"`([^`\n]+)`", prose)]


def is_there(path: str) -> bool:
    """Whether a path of this repository, perhaps with <topic> or * in it, is there."""
    pattern = re.sub(r"<\w+>", "*", path).partition("::")[0].rstrip("/")
    return any(ROOT.glob(pattern)) or pattern in GENERATED


@page
def test_the_links_of_a_page_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", PAGES[page])
    missing = [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()]
    assert not missing, f"{page} links to {missing}, which are not there"


@page
def test_the_paths_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)}|docs)/[\w./*<>-]+)", "\n".join(code_of(PAGES[page])))
    created = set(re.findall(r"```\w+\n# ([\w/.-]+)\n", PAGES[page]))  # by following CONTRIBUTING.md
    missing = [path for path in named if not is_there(path) and path not in created]
    assert not missing, f"{page} names {missing}, which are not there"


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return attribute in getattr(found, "__annotations__", {})
            found = getattr(found, attribute)
        return True
    return False


DOTTED = re.compile(rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w/(=-])")


@page
def test_the_names_of_the_packages_on_a_page_can_be_imported(page: str) -> None:
    named = set(DOTTED.findall("\n".join(code_of(PAGES[page]))))
    unknown = sorted(name for name in named if not resolves(name))
    assert not unknown, f"{page} names {unknown}, which cannot be imported"


def test_the_names_of_the_packages_in_comments_and_docstrings_can_be_imported() -> None:
    named = {(file, name) for file, text in SOURCES.items() for each in re.findall(r"`([^`\n]+)`", text)
             for name in DOTTED.findall(each)}  # fmt: skip
    unknown = sorted(f"{file}: {name}" for file, name in named if not resolves(name))
    assert not unknown, "named, but cannot be imported:\n" + "\n".join(unknown)


def test_the_documents_that_comments_and_docstrings_name_are_there() -> None:
    named = {(file, path) for file, text in SOURCES.items() for path in re.findall(r"\bdocs/[\w/-]+\.(?:md|yml)", text)}
    missing = sorted(f"{file}: {path}" for file, path in named if not (ROOT / path).exists())
    assert not missing, "named, but not there:\n" + "\n".join(missing)


@page
def test_the_targets_of_make_that_a_page_names_are_there(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w[\w-]*):", makefile, re.MULTILINE))
    named = re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(code_of(PAGES[page])))
    assert set(named) <= targets, f"{page} names make {sorted(set(named) - targets)}; there are {sorted(targets)}"


def test_every_target_of_make_is_explained_in_its_head_or_is_a_part_of_another() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    head = "\n".join(takewhile(lambda line: line.startswith("#"), lines))
    for target in ("validate", "evidence", "test", "lint", "docs", "gate-study"):
        assert f"# make {target} " in head, f"the head of the Makefile does not say what make {target} does"


@cache
def options_of_pytest() -> frozenset[str]:
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z-]*", fork_pytest(ROOT, "--help", imported=SUITE).output))


@page
def test_the_options_that_a_page_names_exist(page: str) -> None:
    lines = [line for each in code_of(PAGES[page]) for line in each.splitlines()]
    code = "\n".join(line for line in lines if "pytest" in line or "ARGS=" in line or line.startswith("--"))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", code))
    unknown = named - options_of_pytest() - OPTIONS_OF_OTHERS - ALIASES
    assert not unknown, f"{page} names {sorted(unknown)}, which pytest does not know"


@page
def test_prose_is_no_wider_than_code(page: str) -> None:
    prose = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), PAGES[page], flags=re.DOTALL | re.MULTILINE
    )
    wide = [
        number
        for number, line in enumerate(prose.splitlines(), start=1)
        if len(line) > 120 and not line.startswith("|") and " " in line.strip()
    ]
    assert not wide, f"{page} has lines of more than 120 characters: {wide}"


def test_the_index_lists_every_document() -> None:
    listed = set(re.findall(r"\]\(([\w/-]+\.(?:md|yml))\)", PAGES["docs/README.md"]))
    there = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")} - {"README.md"}
    assert there == listed, f"docs/README.md lacks {sorted(there - listed)} or has too much {sorted(listed - there)}"


# ---- docs/reference.md -------------------------------------------------------------------------------------------


def rows_of(heading: str) -> list[str]:
    """The first column of the table of docs/reference.md with this heading."""
    _, _, below = PAGES["docs/reference.md"].partition(f"| {heading} | |\n")
    lines = list(takewhile(lambda line: line.startswith("|"), below.splitlines()))
    assert lines, f"docs/reference.md has no table of {heading}"
    return [match[1] for line in lines if (match := re.match(r"\| `(\w+)` \| \S", line))]


def fixtures_of(*modules: str) -> set[str]:
    files = [ROOT / f"{module.replace('.', '/')}.py" for module in modules]
    return {
        name
        for file in files
        for name in re.findall(r"^@pytest\.fixture.*\ndef ([a-z]\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("field", {field.name for field in fields(Claim)} - {"file"}),
        ("field of a source", {field.name for field in fields(Source)}),
        ("fixture", fixtures_of("conftest", "prooflops.plugin", "prooflops.suite.fixtures", "prooflops.model.plugin")),
        ("fixture of claims", fixtures_of("test_claims.conftest")),
        ("fixture of benchmarks", fixtures_of("bench.conftest")),
        ("work of", {name for name in vars(roofline) if name.endswith("_work")}),
        ("marker", {"claim", "needs", "gate"}),
    ],
)
def test_a_table_of_the_reference_has_a_row_for_each_name_of_the_code(heading: str, names: set[str]) -> None:
    rows = rows_of(heading)
    missing, surplus = sorted(names - set(rows)), sorted(set(rows) - names)
    assert sorted(rows) == sorted(names), f"docs/reference.md, {heading}: {missing=}, {surplus=}, or a row twice"


@pytest.mark.parametrize(("field", "values"), [("written", WRITTEN), ("kind", KINDS)])
def test_the_reference_lists_the_values_of_a_field(field: str, values: tuple[str, ...]) -> None:
    row = re.search(rf"^\| `{field}` \|.*$", PAGES["docs/reference.md"], re.MULTILINE)
    assert row
    assert set(re.findall(r"`([\w-]+)`", row[0])) == {field, *values}


# ---- the reference of the API ------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("pdoc") is None, reason="needs pdoc")
@pytest.mark.prove
def test_the_reference_of_the_api_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, *f"-W error -m pdoc --output-directory {tmp_path} accounting prooflops".split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    text = (tmp_path / "accounting" / "flops.html").read_text(encoding="utf-8")
    assert "matmul_flops" in text


def test_the_table_of_how_deeply_claims_are_tested_names_each_once_and_adds_up() -> None:
    """A claim added since has not been read, and need not be in it."""
    page = PAGES["docs/claims.md"]
    claims = load_registry(ROOT / "test_claims" / "registry").claims
    on_record = {claim.id for claim in claims.values() if claim.on_record}
    listed = re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE)
    on_gpu = {claim.id for claim in claims.values() if any("cuda" in need for need in claim.needs)}
    left = claims.keys() - on_record - on_gpu
    assert len(listed) == len(set(listed)), f"a claim is twice in the table: {sorted(listed)}"
    assert set(listed) <= left, f"not to be listed: {sorted(set(listed) - left)}, on record, on a GPU, or no claims"
    (of_all,) = map(int, re.findall(r"Of (\d+) claims", page))
    parts = [int(number) for number in re.findall(r"\| (\d+) \|$", page, re.MULTILINE)]
    assert of_all == sum(parts) <= len(claims), f"{parts} add up to {sum(parts)}, but should to {of_all}"
    should = [len(on_record), len(on_gpu), len(listed)]
    assert parts[:3] == should, f"on record, on a GPU and listed are {parts[:3]}, but should be {should}"
