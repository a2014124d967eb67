"""Links, paths, names, options and targets in the documents are there; examples run."""

import json
import pkgutil
import posixpath
import re
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timezone
from functools import cache

import pytest

from examples import napkin, own_kernel
from meta_tests.conftest import PACKAGES, ROOT, SUITE, fork_pytest
from prooflops.__main__ import command_line
from prooflops.suite.evidence.__main__ import parser
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.registry import Claim, Source, load_registry
from prooflops_gate.console.tables import markdown_table

FILES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "results" / name for name in ("README.md", "gate-study.md")),
    ROOT / "docs" / "workflows" / "gate.yml",
    ROOT / "prooflops_gate" / "README.md",
]
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
# It names files of the past.
del PAGES["CHANGELOG.md"]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}
OPTIONS_OF_OTHERS = {"--nproc-per-node", "--kill-on-bad-exit", "--junitxml"}
for command in (parser(), *command_line()[1].values()):
    OPTIONS_OF_OTHERS |= {name for each in command._actions for name in each.option_strings}
GENERATED = {"reports/report.html", "reports/report.md", "reports/verdicts.json"}
DOTTED = re.compile(rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w/(=-])")

page = pytest.mark.parametrize("page", PAGES)


def code_of(text):
    """The blocks of code of a page, and the words between backticks."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", prose)])


def is_there(path):
    """Whether a path, perhaps with <topic> or * in it, exists, and a test named behind `::`."""
    pattern, _, test = re.sub(r"<\w+>", "*", path).partition("::")
    test = test.partition("[")[0]
    files = [
        file
        for file in ROOT.glob(pattern.rstrip("/"))
        if not test or f"def {test}(" in file.read_text("utf-8")
    ]
    return bool(files) or pattern.rstrip("/") in GENERATED


@cache
def resolves(name):
    """Whether a dotted name is a module, something in one, or a field of a class."""
    with suppress(ImportError, AttributeError):
        pkgutil.resolve_name(name)
        return True
    holder, _, field = name.rpartition(".")
    with suppress(ImportError, AttributeError):
        return field in getattr(pkgutil.resolve_name(holder), "__annotations__", {})
    return False


@page
def test_links_paths_and_names_lead_somewhere(page):
    text = PAGES[page]
    code = code_of(PAGES[page])
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    missing = [target for target in links if not (ROOT / page).parent.joinpath(target).exists()]
    # Whoever follows CONTRIBUTING.md creates these.
    created = set(re.findall(r"```\w+\n# ([\w/.-]+)\n", text))
    paths = re.findall(rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)}|docs)/[\w./*<>:-]+)", code)
    missing += [path for path in paths if not is_there(path) and path not in created]
    missing += [name for name in DOTTED.findall(code) if not resolves(name)]
    assert not missing, f"{page} names {missing}, which are not there"


def test_names_and_documents_in_comments_and_docstrings_are_there():
    missing = []
    for file, text in SOURCES.items():
        names = [name for each in re.findall(r"`([^`\n]+)`", text) for name in DOTTED.findall(each)]
        pages = re.findall(r"\bdocs/[\w/-]+\.(?:md|yml)", text)
        missing += [f"{file}: {name}" for name in names if not resolves(name)]
        missing += [f"{file}: {path}" for path in pages if not (ROOT / path).exists()]
    assert not missing, "named, but not there:\n" + "\n".join(missing)


@cache
def options_of_pytest():
    return frozenset(
        re.findall(r"(?<![\w-])--[a-z][a-z-]*", fork_pytest(ROOT, "--help", imported=SUITE).output)
    )


@page
def test_the_options_and_targets_of_make_that_a_page_names_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w[\w-]*):", makefile, re.MULTILINE)
    code = PAGES[page] if page.endswith(".yml") else code_of(PAGES[page])
    unknown = set(re.findall(r"\bmake ([a-z][a-z-]*)", code)).difference(targets)
    lines = [
        line
        for line in code.splitlines()
        if "pytest" in line or "ARGS=" in line or line.startswith("--")
    ]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", "\n".join(lines)))
    unknown |= named - options_of_pytest() - OPTIONS_OF_OTHERS
    assert not unknown, f"{page} names {sorted(unknown)}, which are unknown"


def sentences_of(text):
    """The sentences of a page without code; each cell of a table and each point has its own."""
    text = re.sub(r"<!--.*?-->|^```.*?^```|^>>>.*?\n\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]+`", "`code`", re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text))
    for block in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) |\n#+ |\||:\n", text):
        yield from re.split(r"(?<=[.?!])[)*_]* +(?=[^a-z]|docs/)", " ".join(block.split()))


@page
def test_sentences_and_how_to_pages_are_short(page):
    most = 20 if page == "README.md" else 25
    text = PAGES[page]
    if page.endswith(".yml") or text.startswith("<!-- Written by"):
        return
    long = [each for each in sentences_of(text) if len(each.split()) > most]
    assert not long, f"{page} has sentences of more than {most} words:\n" + "\n".join(long)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "/how-to/" not in page or len(prose.split()) <= 300, "more than 300 words besides code"


def test_what_was_run_is_one_table_of_the_records(pytestconfig):
    rows = [["what", "Python", "torch", "date"]]
    rows += json.loads((ROOT / "results" / "tested.json").read_text(encoding="utf-8"))
    for path in sorted((ROOT / "results").glob("*.jsonl")):
        plan = EvidenceFile(path).plan
        machine = plan["fingerprint"]
        link = f"[{machine['name']}](../../results/{path.stem}.md), {plan['pace']}"
        day = datetime.fromtimestamp(plan["at"], timezone.utc).date()
        rows.append([link, machine["python"], machine["torch"], f"{day}"])
    file = ROOT / "docs" / "reference" / "tested.md"
    head, _, shown = file.read_text(encoding="utf-8").partition("\n| ")
    table = "\n".join(markdown_table(rows)) + "\n"
    if pytestconfig.getoption("--update-golden"):
        file.write_text(f"{head.rstrip()}\n\n{table}", encoding="utf-8")
    else:
        assert f"| {shown}" == table, "--update-golden writes it"


def test_the_indexes_list_every_document():
    listed = {"docs/README.md"}
    for folder in ("docs", "docs/claims"):
        links = re.findall(r"\]\(([\w/.-]+\.(?:md|yml))\)", PAGES[f"{folder}/README.md"])
        listed |= {posixpath.normpath(f"{folder}/{link}") for link in links}
    assert {page for page in PAGES if page.startswith("docs/")} <= listed


def test_the_page_of_the_registry_has_a_row_for_each_field():
    names = {field.name for field in (*fields(Claim), *fields(Source))}
    rows = re.findall(r"(?m)^\| `(\w+)` \| \S", PAGES["docs/reference/registry.md"])
    assert names <= {*rows}, f"docs/reference/registry.md lacks {sorted(names.difference(rows))}"


def test_the_readme_shows_what_its_call_prints_and_a_claim_as_it_is_stated(capsys):
    pytest.importorskip("torch")
    call, shown = re.search(r"(?s)```python\n(.*?)```.*?```\n(.*?)```", PAGES["README.md"]).groups()
    exec(call, {})
    assert capsys.readouterr().out == shown
    claim, *shown = re.search(r"(?m)^(\w+\.[\w-]+): (.+)\n    (.+)$", PAGES["README.md"]).groups()
    stated = load_registry(ROOT / "test_claims" / "registry").claims[claim]
    assert shown == [stated.statement, stated.verdict_as_written]


def test_the_napkin_adds_up():
    printed = "\n".join(napkin.lines())
    assert re.search(r"^parameters +1\.34 billion", printed, re.MULTILINE)


def test_a_kernel_is_placed_under_the_measured_roofs(monkeypatch):
    monkeypatch.setattr(own_kernel, "ROWS", 64)
    monkeypatch.setattr(own_kernel, "ROOF_SIZE", 64)
    roofs, place, share = own_kernel.lines()
    assert re.fullmatch(r"roofs: .+ GB/s and .+ GFLOP/s, which meet at .+ FLOP/B", roofs)
    assert place.startswith("the kernel does 0.417 FLOP/B")
    assert share.endswith("%")
