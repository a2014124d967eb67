"""Adds the API, options, schemas, evidence and links to the code to the site."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from mkdocs.structure.files import File

from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops_gate.console.tables import markdown_table
from prooflops_gate.page.html import html

ROOT = Path(__file__).parents[1]
CODE = "https://github.com/OWNER/prooflops/blob/main/"
FORMULAS = [
    f"accounting.{'.'.join(file.relative_to(ROOT / 'accounting').with_suffix('').parts)}"
    for file in sorted((ROOT / "accounting").rglob("[!_]*.py"))
]
INSTRUMENTS = ["prooflops", "prooflops.counted", "prooflops.memory", "prooflops.families"]
# An option or a setting in the output of `pytest --help`, and its text.
ENTRY = r"^  (\S.*?)(?:  +|: |\n +)(.*(?:\n {10,}.*)*)"
FIXTURES = ["prooflops.suite.fixtures", "bench.conftest"]
MODULES = [*INSTRUMENTS, *FORMULAS, *FIXTURES, "prooflops_gate.hookspecs"]


def on_config(config):
    """Adds the claims and the modules to the navigation."""
    claims = sorted(file.name for file in (ROOT / "docs" / "claims").glob("[a-z]*.md"))
    (reference,) = (each["Reference"] for each in config.nav if "Reference" in each)
    reference.append({"Claims": ["claims/README.md", *(f"claims/{name}" for name in claims)]})
    reference.append({"API": [f"reference/api/{name}.md" for name in MODULES]})


def on_files(files, config):
    """Adds the pages of the modules and of the kept evidence."""
    added = {f"reference/api/{name}.md": f"# `{name}`\n\n::: {name}\n" for name in MODULES}
    for path in (ROOT / "results").glob("*.jsonl"):
        file = EvidenceFile(path)
        added[f"results/{path.stem}.html"] = html(page_of_file(report_of_file(file)))
    for name in ("README.md", "gate-study.md"):
        added[f"results/{name}"] = (ROOT / "results" / name).read_text(encoding="utf-8")
    for path, content in added.items():
        files.append(File.generated(config, path, content=content))


def on_page_markdown(markdown, page, files, **_others):
    """Fills in tables that the code defines, and leads links out of the site to the code."""
    place = page.file.src_uri
    is_evidence = place.startswith("results/")
    if is_evidence:
        # Its tables are wide.
        page.meta["hide"] = ["navigation", "toc"]
    folder = posixpath.dirname(place if is_evidence else f"docs/{place}")

    def link(found):
        target, _, heading = found[1].partition("#")
        path = posixpath.normpath(posixpath.join(folder, target))
        # mkdocs warns of a link to nowhere.
        if not target or ":" in target or not (ROOT / path).exists():
            return found[0]
        source = path.removeprefix("docs/")
        page_of_run = source.replace(".md", ".html")
        for each in (source, page_of_run):
            if files.get_file_from_path(each):
                address = posixpath.relpath(each, posixpath.dirname(place))
                break
        else:
            address = CODE + path
        return f"]({address}{'#' * bool(heading)}{heading})"

    # mkdocs takes the title from a heading that comes first.
    markdown = re.sub(r"\A<!--.*-->\n", "", markdown)
    markdown = re.sub(r"<!-- (options|settings): (.+) -->", options, markdown)
    markdown = re.sub(r"<!-- schema: (\S+) -->", schema, markdown)
    return re.sub(r"\]\(([^)\s]+)\)", link, markdown)


@cache
def help_of_pytest():
    command = [sys.executable, "-m", "pytest", "--help"]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout


def options(found):
    """The groups of `pytest --help` with this title, or the ini settings with these prefixes."""
    kind, words = found.groups()
    rows = [["", ""]]
    for section in help_of_pytest().split("\n\n"):
        title = section.strip().partition("\n")[0].removesuffix(":")
        for name, text in re.findall(ENTRY, section, re.MULTILINE):
            is_asked = title.partition(":")[0] == words and name.startswith("--")
            if is_asked if kind == "options" else re.match(words, name):
                code = name.strip(":").replace("|", "&#124;")
                rows.append([f"<code>{code}</code>", " ".join(text.split())])
    assert rows[1:], f"pytest --help has no {kind} of {words}"
    title = f"## {words}" if kind == "options" else "Settings in pytest.ini or pyproject.toml:"
    return "\n".join([title, "", *markdown_table(rows)])


def schema(found):
    """The keys of a schema, and those of the rows in it."""
    content = json.loads((ROOT / found[1]).read_text(encoding="utf-8"))
    parts = {"": content, **content.get("$defs", {})}
    text = []
    for name, part in parts.items():
        if "properties" not in part:
            continue
        rows = [
            [f"`{key}`", each.get("description", ", ".join(map(str, each.get("enum", ()))))]
            for key, each in part["properties"].items()
        ]
        text += [f"A {name} has" * bool(name), "", *markdown_table([["key", ""], *rows]), ""]
    return "\n".join(text)
