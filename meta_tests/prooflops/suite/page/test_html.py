"""report.html of a whole run: complete, self-contained, small, and of hostile text."""

from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser

from meta_tests.conftest import ROOT
from prooflops.suite.page.page import page_of
from prooflops.suite.page.words import WORDS
from prooflops_gate.page.html import html
from prooflops_gate.page.plot import Axis, Plot, Point, Rule
from prooflops_gate.page.section import Bar, Mark, Section, anchor_of_word

HOSTILE = (
    '</style></script><script>alert("1")</script><img src=x onerror=alert(1)>'
    '\u202e\u0000&amp; {{ 7*7 }} javascript:alert(1) https://e.org/"onload="x'
)


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def poisoned(part):
    """A part of a page, with hostile text in place of each of its texts."""
    if isinstance(part, str):
        return HOSTILE
    if isinstance(part, list | tuple):
        return [poisoned(each) for each in part]
    if isinstance(part, dict):
        return {key: poisoned(each) for key, each in part.items()}
    if not is_dataclass(part):
        return part
    # A tone is of a fixed few.
    texts = {each.name: poisoned(getattr(part, each.name)) for each in fields(part)}
    return replace(part, **texts | ({"tone": part.tone} if "tone" in texts else {}))


# What the report of a run without floors and links lacks.
DRAWN = Plot("plot", Axis(), Axis(), [Point(0, 1, "a", link="b")], rules=[Rule(0.5, "c", link="d")])
LACKING = (
    Section("bars", bars=[Bar("a", "b", share="c", note="d", mark=Mark("e"))]),
    Section("plot", plot=DRAWN),
    Section("nothing", absent="none"),
)


def test_hostile_text_is_shown_as_text_wherever_it_comes_from(report):
    whole = page_of(report)
    whole = replace(whole, sections=[*whole.sections, *LACKING])
    usual = Tags(html(whole))
    page = html(poisoned(whole))
    found = Tags(page)
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert {tag for tag, _ in found.tags} <= {tag for tag, _ in usual.tags} | {"strong"}
    for _, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes), attributes
        assert not (attributes.get("href") or "").startswith("javascript"), attributes
    assert "\u202e" not in page
    assert "\u0000" not in page
    assert "<U+202E>" in found.text
    assert "{{ 7*7 }}" in found.text


def test_each_special_word_links_to_what_the_glossary_says(page):
    file = ROOT / "docs" / "reference" / "glossary.md"
    glossary = " ".join(file.read_text(encoding="utf-8").split())
    tags = Tags(page).tags
    links = {attributes.get("href") for _, attributes in tags}
    anchors = {attributes.get("id") for _, attributes in tags}
    for word, meaning in WORDS.items():
        assert f"- **{word}**: {meaning}" in glossary
        assert anchor_of_word(word) in anchors
        # Nothing is contended in this run, which has no floors.
        is_absent = word in ("contended", "floor")
        assert is_absent or f"#{anchor_of_word(word)}" in links
