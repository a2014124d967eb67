"""The results of a count: FLOPs and bytes by operator and phase."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from accounting.checks import validated_choice
from accounting.flops import StepFlops
from prooflops.trace import BACKWARD, FORWARD, RECOMPUTED

PRODUCTS, ELEMENTWISE, UNKNOWN, READ, WRITTEN = range(5)
# The backward phase includes recomputation.
PHASES = {
    "all": (FORWARD, BACKWARD, RECOMPUTED),
    "forward": (FORWARD,),
    "backward": (BACKWARD, RECOMPUTED),
    "recomputed": (RECOMPUTED,),
}

FIGURES_OF_TOTALS = (PRODUCTS, ELEMENTWISE, READ, WRITTEN)

# The keys are operator, phase and figure.
Tally = Counter[tuple[str, int, int]]


class Totals(NamedTuple):
    """The FLOPs and bytes of one operator or of all of them.

    `products` are the FLOPs of sums of multiply-adds, `elementwise` those of elementwise operations
    and reductions.
    """

    products: int = 0
    elementwise: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def flops(self) -> int:
        """Products and elementwise operations."""
        return self.products + self.elementwise

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


class CountedWork:
    """The FLOPs and bytes of a block of code.

    They grow while the block runs, and may be read at any time. The plain figures (`total`,
    `forward`, `backward`, `recomputed`, `model`) are the FLOPs of products alone, sums of
    multiply-adds: comparable to 2mkn and 6ND. `elementwise` is the separate sum of elementwise
    operations and reductions. `unknown` lists the operators that have no formula here, with the
    number of their calls: the figures are complete only where it is empty.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def by_operator(self, phase: str = "all") -> dict[str, Totals]:
        """The figures per operator, such as {"aten.mm": …}, of one phase.

        `phase` is "forward", "backward" (recomputation included), "recomputed" or "all".
        """
        phases = PHASES[validated_choice("phase", phase, PHASES)]
        sums: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for (operator, when, figure), amount in list(self._tally.items()):
            if when in phases:
                sums[operator][figure] += amount
        return {
            operator: Totals(*(figures[each] for each in FIGURES_OF_TOTALS))
            for operator, figures in sums.items()
        }

    def totals(self, phase: str = "all") -> Totals:
        """The figures of all operators together."""
        columns = zip(*self.by_operator(phase).values(), strict=True)
        return Totals(*map(sum, columns))

    @property
    def total(self) -> int:
        """FLOPs of all products that ran, as HFU counts them."""
        return self.totals().products

    @property
    def forward(self) -> int:
        """FLOPs of the products outside a backward pass (an optimizer's step included)."""
        return self.totals("forward").products

    @property
    def backward(self) -> int:
        """FLOPs of the products inside a backward pass, recomputation included."""
        return self.totals("backward").products

    @property
    def recomputed(self) -> int:
        """FLOPs of products that the backward pass repeated.

        They are those of checkpointed code, and the scores of a flash kernel.
        """
        return self.totals("recomputed").products

    @property
    def model(self) -> int:
        """FLOPs of the products that the mathematics needs.

        They exclude recomputed ones, as MFU does.
        """
        return self.total - self.recomputed

    @property
    def step(self) -> StepFlops:
        """The products by purpose, comparable to `accounting.models.step_flops`.

        Its `backward` repeats nothing.
        """
        return StepFlops(self.forward, self.backward - self.recomputed, self.recomputed)

    @property
    def elementwise(self) -> int:
        """FLOPs of elementwise operations and reductions.

        They are one per element and function: 5 of a GELU, 4 of a SiLU. The plain figures do not
        include them; see `accounting.roofline.FLOPS_PER_ELEMENT`.
        """
        return self.totals().elementwise

    @property
    def read_bytes(self) -> int:
        return self.totals().read_bytes

    @property
    def written_bytes(self) -> int:
        return self.totals().written_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes that the operators read and write, each tensor once."""
        return self.totals().moved_bytes

    @property
    def unknown(self) -> dict[str, int]:
        """Operators without a formula that may cost FLOPs, with the number of their calls."""
        calls: Counter[str] = Counter()
        for (operator, _, figure), amount in list(self._tally.items()):
            if figure == UNKNOWN:
                calls[operator] += amount
        return {operator: number for operator, number in calls.items() if number}

    def __repr__(self) -> str:
        backward = f"backward={self.backward}"
        if self.recomputed:
            backward += f" ({self.recomputed} of it recomputed)"
        figures = [f"forward={self.forward}", backward, f"elementwise={self.elementwise}"]
        if self.unknown:
            figures.append(f"unknown={self.unknown}")
        return f"CountedWork({', '.join(figures)})"
