"""The README's first picture is the first screen of the kept evidence, as it is drawn today."""

from meta_tests import picture


def test_the_picture_shows_the_page_of_the_evidence() -> None:
    shown = picture.digest_of(picture.PICTURE.read_bytes())
    assert shown == picture.digest(picture.page()), (
        "docs/report.png is stale: python -m meta_tests.picture draws it anew"
    )


def test_another_figure_or_style_makes_it_stale() -> None:
    page = picture.page()
    changed = (page.replace("706 TFLOP/s", "707 TFLOP/s", 1), page.replace("#fbfbf9", "#fff", 1))
    assert picture.digest(page) not in map(picture.digest, changed)
    folded = page.replace("Show 196", "Show 197")
    assert picture.digest(folded) == picture.digest(page)
