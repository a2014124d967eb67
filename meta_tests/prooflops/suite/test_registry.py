"""A row of the registry is read strictly, and described with its sources."""

import pytest

from prooflops.suite.registry import RegistryError, load_registry

HOLDS = "written = 'holds'"


@pytest.fixture
def claim_that_cites(tmp_path):
    """Loads a registry of one claim that cites so, and describes it."""

    def described(citation, places="§ Units of work", quote="“two times, three”", more=HOLDS):
        (tmp_path / "demo.toml").write_text(
            f"""
            [[source]]
            key = "lecture"
            title = "A lecture"
            url = "https://example.org"
            places = ["{places}", "{quote}", "table 3"]
            [[claim]]
            id = "demo.it"
            statement = "It is."
            sources = ["{citation}"]
            kind = "number"
            {more}
            """,
            encoding="utf-8",
        )
        return load_registry(tmp_path).describe("demo.it")

    return described


@pytest.mark.parametrize(
    "place", ["§ Units of work", "“two times, three”", "table 3", "(place unknown)"]
)
def test_a_failure_prints_the_place_of_a_citation(claim_that_cites, place):
    shown = claim_that_cites(f"lecture {place}")
    assert shown == f"demo.it: It is.\nholds\nsource: A lecture, {place}, https://example.org"


@pytest.mark.parametrize(
    ("citation", "message"),
    [
        ("lecture table 4", "lecture lists no place 'table 4'"),
        ("lecture", r"lecture lists no place '' \[a citation names one of the places"),
        ("lektur § Units of work", "unknown source 'lektur'"),
    ],
)
def test_a_citation_of_no_known_place_is_refused(claim_that_cites, citation, message):
    with pytest.raises(RegistryError, match=rf"demo\.toml: claim 'demo\.it': .*{message}"):
        claim_that_cites(citation)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"quote": "“one two three four five six”"}, "has 6 words; at most 5"),
        ({"quote": "“one two"}, "must be a quote in “ ”"),
        ({"quote": "the whole document"}, "must be a quote in “ ”, or one of §, table"),
        ({"quote": "§ "}, "and its name or number"),
        ({"quote": "table 3"}, "it lists a place twice"),
    ],
)
def test_a_source_whose_places_cannot_be_found_is_refused(claim_that_cites, places, message):
    with pytest.raises(RegistryError, match=f"source 'lecture': .*{message}"):
        claim_that_cites("lecture table 3", **places)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("written = 'holds'\ncondition = 'x'", "a condition if it holds-if, and only then"),
        ("written = 'holds-if'", "a condition if it holds-if, and only then"),
        ("written = 'holds'\ncorrection = 'x'", "a correction if it is wrong or a slip"),
        ("written = 'slip'", "a correction if it is wrong or a slip, and only then"),
        ("written = 'maybe'", "written must be one of holds, holds-if, wrong, slip, got 'maybe'"),
        ("written = 'holds'\nneeds = ['cuda', 1]", r"needs must be of type tuple\[str, ...\]"),
        ("written = 'holds'\nnote = ['x']", "note must be of type str"),
    ],
)
def test_a_claim_whose_fields_contradict_each_other_is_refused(claim_that_cites, more, message):
    with pytest.raises(RegistryError, match=f"claim 'demo.it': .*{message}"):
        claim_that_cites("lecture table 3", more=more)


def test_a_place_is_cited_once(claim_that_cites):
    with pytest.raises(RegistryError, match=r"claim .*: it cites a place twice"):
        claim_that_cites('lecture table 3", "lecture table 3')
