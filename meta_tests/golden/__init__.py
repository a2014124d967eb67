"""Transcripts of what is printed; `--update-golden` writes them anew."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
# Applied in this order. A transcript shows figures if each run has the same.
FIGURES = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b(?=[a-f]*\d)[0-9a-f]{7,40}\b", "<commit>"),
    (r"(?<!\w)\d+(?:[.,:T]\d+)*(?:e[+-]\d+)?", "<n>"),
    (r"[+−-]<n>", "<n>"),
    (r"<n> (?:[TGMk]?(?:B|FLOPs?)|[KMGT]iB|[nµm]?s)(?:/s)?\b", "<n> <unit>"),
    (r"[▁▂▃▄▅▆▇█]+", "<bars>"),
)
LAYOUT = (
    (r"([=_-])\1{3,}", r"\1\1\1\1"),
    (r"(?<=\S) {2,}", "  "),
    (r" +$", ""),
)


MASKS = FIGURES + LAYOUT


def masked(text, masks=MASKS, **names):
    """The text with these masks, and the paths in `names` by their names."""
    for name, path in names.items():
        text = text.replace(str(path), f"<{name}>")
    for pattern, mask in masks:
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    return text.strip() + "\n"


def check(name, text, update):
    """Compares with the transcript `name`, or writes it where `update`."""
    file = FOLDER / f"{name}.txt"
    if update:
        file.write_text(text, encoding="utf-8")
    assert file.exists(), f"no transcript {file}: --update-golden writes it"
    assert text == file.read_text(encoding="utf-8"), f"{file}: --update-golden accepts the change"
