"""Draws docs/report.png, the first screen of the kept evidence of a GPU.

    python -m meta_tests.picture

It needs Debian's Chromium. The picture holds a digest of what it shows, by which a test notices
that the page says or looks otherwise by now.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import sys
import zlib
from pathlib import Path

from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of
from prooflops_gate.page.html import html

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "report.png"
WIDTH = 1120
HEIGHT = 1180
KEY = b"digest"
SIGNATURE_BYTES = 8


def page() -> str:
    """The page about the kept evidence of a GPU."""
    (path,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    file = EvidenceFile(path)
    return html(page_of_file(file, report_of(file)))


def digest(text: str) -> str:
    """The digest of the page's style, its verdict and its bars.

    The counts of claims are left out: they change with every new claim.
    """
    style = text.partition("<style>")[2].partition("</style>")[0]
    verdict = text.partition('<div class="headline')[2].partition("</div>")[0]
    bars = text.partition('<section id="delivers"')[2].partition("</section>")[0]
    return hashlib.sha256(f"{style}{verdict}{bars}".encode()).hexdigest()


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """The kinds and contents of a PNG's chunks."""
    found = []
    place = SIGNATURE_BYTES
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind = content[place + 4 : place + 8]
        found.append((kind, content[place + 8 : place + 8 + length]))
        place += length + 12
    return found


def digest_of(picture: bytes) -> str:
    """The digest that a picture holds; empty without one."""
    for kind, content in chunks(picture):
        if kind == b"tEXt" and content.startswith(KEY + b"\0"):
            return content.partition(b"\0")[2].decode()
    return ""


def with_digest(picture: bytes, text: str) -> bytes:
    """The picture with a text chunk before its end."""
    chunk = b"tEXt" + KEY + b"\0" + text.encode()
    length = struct.pack(">I", len(chunk) - 4)
    whole = length + chunk + struct.pack(">I", zlib.crc32(chunk))
    end = picture.rindex(b"IEND") - 4
    return picture[:end] + whole + picture[end:]


def draw(text: str) -> bytes:
    """The first screen as a PNG."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        opened.set_content(text)
        return with_digest(opened.screenshot(), digest(text))


if __name__ == "__main__":
    PICTURE.write_bytes(draw(page()))
    sys.exit()
