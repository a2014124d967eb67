"""Pages escape what comes in, and show what could reorder the text around it."""

from markupsafe import Markup

from prooflops.suite.report import page

HOSTILE = '<img src=x onerror="alert(1)">\u202e\x07\'{{ 1 }}'


def test_text_is_escaped_whatever_it_holds_and_control_characters_are_written_out() -> None:
    made = page.environment().from_string("<p title='{{ text }}'>{{ text }}{{ safe }}</p>")
    shown = "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;&lt;U+202E&gt;&lt;U+0007&gt;&#39;{{ 1 }}"
    assert made.render(text=HOSTILE, safe=Markup("<b>b</b>")) == f"<p title='{shown}'>{shown}<b>b</b></p>"


def test_an_unknown_verdict_has_a_mark_of_its_own() -> None:
    assert page.mark("no verdict") == ("unchecked", "?")
    assert len({shape for _, shape in page.MARKS.values()}) == len(page.MARKS), "two verdicts with the same shape"
