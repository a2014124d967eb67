"""A drawing is a part of a page: titled, without ids of others, the same from the same data, harmless."""

import xml.etree.ElementTree as ET

from prooflops.suite.report.drawing import INK, SERIES, SVG, Drawing, visible
from prooflops.suite.report.page import TEMPLATES

HOSTILE = '</title><script>alert("1")</script>$x_1$\u202e&'


def drawn(name: str, label: str = "bf16") -> str:
    with Drawing(name, f"Rates on {label}") as drawing:
        drawing.points([1.0, 2.0], [3.0, 4.0], [f"one {label}", f"two {label}"], 0)
        drawing.axes.set_yticks([3.0, 4.0], [visible(label), "other"])
        return drawing.svg()


def test_equal_data_give_equal_bytes_and_ids_are_the_drawings_own() -> None:
    assert drawn("rates") == drawn("rates")
    ids = [{element.get("id") for element in ET.fromstring(drawn(name)).iter()} - {None} for name in ("a", "b")]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert "<metadata" not in drawn("a")


def test_links_within_a_drawing_lead_to_its_own_ids() -> None:
    text = drawn("rates")
    root = ET.fromstring(text)
    ids = {element.get("id") for element in root.iter()}
    links = {value[1:] for element in root.iter() for key, value in element.attrib.items() if key.endswith("href")}
    assert links
    assert links <= ids
    assert "url(#rates-" in text


def test_the_drawing_and_each_point_have_a_title() -> None:
    root = ET.fromstring(drawn("rates"))
    titles = [element.text for element in root.iter(f"{{{SVG}}}title")]
    assert titles == ["Rates on bf16", "one bf16", "two bf16"]
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == root[0].get("id")


def test_hostile_text_is_text_in_a_drawing() -> None:
    root = ET.fromstring(drawn("rates", HOSTILE))
    assert not [*root.iter(f"{{{SVG}}}script")]
    titles = [element.text for element in root.iter(f"{{{SVG}}}title")]
    assert titles[1] == f"one {HOSTILE.replace(chr(0x202E), '<U+202E>')}"


def test_the_style_of_the_page_recolours_every_colour_of_a_drawing() -> None:
    style = (TEMPLATES / "style.css").read_text()
    for colour in (INK, *SERIES):
        assert f'[style*="fill: {colour}"]' in style, f"{colour} would be the same in the dark theme"
        assert f'[style*="stroke: {colour}"]' in style, f"{colour} would be the same in the dark theme"
