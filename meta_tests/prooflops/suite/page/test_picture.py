"""The README's first picture is the first screen of the kept evidence, as it is drawn today."""

from meta_tests import picture


def test_the_picture_shows_the_page_of_the_evidence():
    shown = picture.DIGEST.read_text(encoding="utf-8").strip()
    assert shown == picture.digest(picture.page()), (
        "docs/report.png is stale: python -m meta_tests.picture draws it anew"
    )
