"""Parts of a document that a command writes, between two comments: what is generated is never typed."""

from __future__ import annotations

from meta_tests.conftest import ROOT


def markers(name: str, command: str) -> tuple[str, str]:
    return f"<!-- {name}: written by `{command}` -->", f"<!-- end of {name} -->"


def with_part(text: str, name: str, command: str, part: str) -> str:
    """The text of a page with one part replaced. Raises ValueError where its markers are missing."""
    begin, end = markers(name, command)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page should hold the markers {begin!r} and {end!r} once each")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{part.strip()}\n\n{end}{rest.split(end)[1]}"


def part_of(text: str, name: str, command: str) -> str:
    """The part that the page holds."""
    begin, end = markers(name, command)
    return text.split(begin)[1].split(end, maxsplit=1)[0].strip()


def write(page: str, name: str, command: str, part: str) -> None:
    """Puts a part into a page of this repository."""
    path = ROOT / page
    path.write_text(with_part(path.read_text(encoding="utf-8"), name, command, part), encoding="utf-8")
