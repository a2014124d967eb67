"""report.html of a whole run: complete, self-contained, small, and of hostile text."""

from dataclasses import replace
from html.parser import HTMLParser

from meta_tests.conftest import ROOT
from prooflops.suite.page.page import page_of
from prooflops.suite.page.words import WORDS
from prooflops.suite.registry import Claim, Source
from prooflops_gate.page.html import html
from prooflops_gate.page.section import anchor_of_word

HOSTILE = (
    '</style></script><script>alert("1")</script><img src=x onerror=alert(1)>'
    "\u202e\u0000&amp; {{ 7*7 }}"
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


def test_hostile_text_is_shown_as_text_wherever_it_comes_from(report, page):
    usual = Tags(page)
    cited = (f"x {HOSTILE}",)
    row = Claim(HOSTILE, HOSTILE, cited, "holds-if", "number", condition=HOSTILE, note=HOSTILE)
    claim = replace(
        report.claims[0],
        claim=row,
        verdict=HOSTILE,
        reason=HOSTILE,
        figures=(HOSTILE,),
        tests=(HOSTILE,),
    )
    sources = {**report.sources, "x": Source("x", HOSTILE, f"javascript:{HOSTILE}")}
    benches = []
    for each in {each.family: each for each in report.benchmarks}.values():
        info = {**each.info, "label": HOSTILE, "dtype": HOSTILE}
        benches.append(replace(each, name=HOSTILE, fullname=HOSTILE, info=info))
    hostile = replace(
        report,
        machine={**report.machine, "name": HOSTILE},
        claims=(claim, *report.claims[1:]),
        sources=sources,
        benchmarks=tuple(benches),
        command=HOSTILE,
        revision=HOSTILE,
        partial=HOSTILE,
        trends=tuple(replace(each, name=HOSTILE) for each in report.trends),
    )
    page = html(page_of(hostile))
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
