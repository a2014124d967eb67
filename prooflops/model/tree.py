"""The modules of an examined step as a tree: to a depth, equal siblings in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accounting.units import with_unit
from prooflops.model.breakdown import Breakdown, ModuleRow
from prooflops.model.modules import OUTSIDE
from prooflops_gate.console.tables import aligned, engineering

WIDTH = 80
SHORTEST_NAME = 12
# The levels shown by default have at most this number of lines.
MOST_LINES = 30
ALL, NONE = "all", "none"
HEAD = (
    ["", "", "", "FLOPs", "FLOPs", "", "", ""],
    ["module", "params", "trained", "fwd", "bwd", "kept", "output", "dtype"],
)


@dataclass(frozen=True)
class Branch:
    """A module, its parts, and how many siblings that follow each other are its equals.

    `name` is its own, and "0-11" of several.
    """

    name: str
    row: ModuleRow
    parts: tuple[Branch, ...]
    count: int = 1

    @property
    def title(self) -> str:
        return f"{self.name}{self.times} {self.row.kind}".lstrip()

    @property
    def times(self) -> str:
        return f" × {self.count}" if self.count > 1 else ""

    def title_within(self, width: int) -> str:
        """The title, shortened: its class first, then its name, and never the count."""
        room = width - len(self.times)
        if len(self.name) < room:
            return shortened(self.title, width)
        return f"{shortened(self.name, room)}{self.times}"

    @property
    def own_figures(self) -> tuple[object, ...]:
        """The figures that do not depend on the neighbours of a module, its parts included."""
        row = self.row
        # A fold may end where a part keeps more.
        parts = tuple(part.own_figures for part in self.parts for _ in range(part.count))
        own = (row.kind, row.calls, row.output, row.dtype, row.parameters, row.trained)
        return (*own, row.forward_flops, row.used_in, parts)

    @property
    def figures(self) -> tuple[object, ...]:
        """The figures that the branches of equal siblings have in common."""
        row = self.row
        parts = tuple((each.name, each.count, each.figures) for each in self.parts)
        return (*self.own_figures, row.backward_flops, row.kept_bytes, parts)


def tree_of(breakdown: Breakdown) -> Branch:
    """The tree of a breakdown's modules; containers without parts are left out."""
    children: dict[str, list[ModuleRow]] = {}
    for row in breakdown.modules:
        if row.name not in ("", OUTSIDE):
            children.setdefault(row.name.rpartition(".")[0], []).append(row)
    return _branch(breakdown.whole, children)


def _branch(row: ModuleRow, children: dict[str, list[ModuleRow]]) -> Branch:
    parts: list[Branch] = []
    for child in children.get(row.name, []):
        branch = _branch(child, children)
        if not (branch.parts or child.calls or child.parameters):
            continue
        if parts and parts[-1].figures == branch.figures:
            alike = parts.pop()
            name = f"{alike.name.partition('-')[0]}-{branch.name}"
            parts.append(Branch(name, alike.row, branch.parts, alike.count + 1))
        else:
            parts.append(branch)
    return Branch(row.name.rpartition(".")[2], row, tuple(parts))


def shown_branches(whole: Branch, depth: int | None = None) -> list[tuple[int, Branch]]:
    """The branches `depth` levels below the whole, with their levels; None fills a page."""
    shown = list(_shown(whole, depth or 1))
    while depth is None:
        deeper = list(_shown(whole, 1 + max(level for level, _ in shown)))
        if len(deeper) == len(shown) or len(deeper) > MOST_LINES:
            break
        shown = deeper
    return shown


def lines_of(whole: Branch, depth: int | None = None) -> list[str]:
    """The tree in 80 columns, of the branches of `shown_branches`."""
    shown = shown_branches(whole, depth)
    figures = [figures_of(branch.row) for _, branch in shown]
    heads = [head[1:] for head in HEAD]
    dtypes = {row[-1] for row in figures} - {"-"}
    if len(dtypes) == 1:
        # One format stands above the outputs, and names get its column.
        [heads[0][-2]] = dtypes
        heads, figures = ([row[:-1] for row in rows] for rows in (heads, figures))
    beside = aligned([["", *each] for each in heads + figures])
    room = max(WIDTH - max(map(len, beside)), SHORTEST_NAME)
    texts = [head[0] for head in HEAD]
    for level, branch in shown:
        indent = "  " * level
        texts.append(indent + branch.title_within(room - len(indent)))
    width = max(map(len, texts))
    return [f"{text:<{width}}{line}".rstrip() for text, line in zip(texts, beside, strict=True)]


def _shown(branch: Branch, depth: int, level: int = 0) -> Iterator[tuple[int, Branch]]:
    yield level, branch
    if level == depth:
        return
    seen: list[object] = []
    for part in branch.parts:
        # The last of some layers may keep more than the others; its parts are the same again.
        is_again = part.own_figures in seen
        seen.append(part.own_figures)
        yield from _shown(part, level + 1 if is_again else depth, level + 1)


def figures_of(row: ModuleRow) -> list[str]:
    """The figures of HEAD."""
    flops = [count_text(row.forward_flops), count_text(row.backward_flops)]
    if row.used_in:
        flops[0] = f"in {row.used_in[0].rpartition('.')[2] or '(the whole)'}"
    trained = count_text(row.trained) if row.trained else NONE
    if row.trained == row.parameters:
        trained = ALL if row.parameters else "-"
    kept = with_unit(row.kept_bytes, "B").replace(" ", "") if row.kept_bytes else "-"
    return [count_text(row.parameters), trained, *flops, kept, row.output or "-", row.dtype or "-"]


def count_text(count: float) -> str:
    """A count in few columns; `-` for none.

    >>> count_text(320), count_text(1_250_000), count_text(0)
    ('320', '1.25M', '-')
    """
    if not count:
        return "-"
    return f"{count:.3g}" if count < 1000 else engineering(count, "").replace(" ", "")


def shortened(text: str, width: int) -> str:
    """The text, without its end where it is too long.

    >>> shortened("0-11 × 12 GPT2Block", 14)
    '0-11 × 12 GPT…'
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"
