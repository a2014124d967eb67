"""Torch's own MemTracker beside `accounting.predicted`: the same two training steps, with what was measured as truth.

python -m meta_tests.accounting.predicted.mem_tracker            # prints the table
python -m meta_tests.accounting.predicted.mem_tracker --write    # replaces it in docs/instruments.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from accounting.models import GPT2_SMALL, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, DeepLinear, Transformer
from accounting.predicted import fake_copy
from bench import models as workloads
from meta_tests.accounting.predicted.predicting import (
    OPTIMIZERS,
    WITH_SCRATCH,
    Gathering,
    both,
    built,
    dealt,
    next_token_loss,
    trained,
)
from meta_tests.conftest import ROOT

PAGE = ROOT / "docs" / "instruments.md"


@dataclass(frozen=True)
class Case:
    """A model, and the batch that both of its training steps take."""

    name: str
    build: Callable[[], nn.Module]
    batch: Tensor
    loss: Callable[..., Tensor] = torch.mean


def transformer(name: str, preset: Transformer, layers: int = 2, checkpoint_every: int = 0) -> Case:
    small = workloads.reduced(preset, layers=layers)
    tokens = torch.randint(small.vocab_size, (4, 32))
    if small.experts > 1:
        return Case(name, partial(dealt, workloads, small, tokens.numel()), tokens, next_token_loss)
    return Case(name, partial(built, workloads, small, checkpoint_every), tokens, next_token_loss)


ODD = ("convolution", "LSTM", "lone attention")
CASES = [
    transformer("GPT-2 small", GPT2_SMALL),
    transformer("Llama-3-8B", LLAMA3_8B),
    transformer("Llama-3-70B", LLAMA3_70B, layers=4),
    transformer("Mixtral-8x7B", MIXTRAL_8X7B, layers=1),
    Case("deep linear", partial(built, workloads, DeepLinear(dim=64, layers=8)), torch.randn(256, 64)),
    transformer("GPT-2 small, checkpointed", GPT2_SMALL, checkpoint_every=1),
    *(Case(name, build, torch.randn(shape)) for name, (build, shape) in zip(ODD, WITH_SCRATCH.values(), strict=True)),
    Case("rows gathered and scattered", Gathering, torch.randn(256, 64)),
]


class Bytes(NamedTuple):
    """Held when the second forward pass has ended, and at the peak of the two steps."""

    live: int
    peak: int


@dataclass(frozen=True)
class Comparison:
    """What is held for a model was measured, predicted by us, and tracked by torch."""

    name: str
    measured: Bytes
    ours: Bytes
    mem_tracker: Bytes

    def __str__(self) -> str:
        cells = [self.name, *(f"{size:,}" for size in self.measured)]
        for guess in (self.ours, self.mem_tracker):
            cells += [
                "exact" if size == real else f"{size - real:+,} ({size / real - 1:+.1%})"
                for size, real in zip(guess, self.measured, strict=True)
            ]
        return f"| {' | '.join(cells)} |"


def compared(case: Case) -> Comparison:
    guess, held = both(case.build, case.batch, loss=case.loss)
    live, peak = tracked(case)
    return Comparison(
        case.name,
        Bytes(held.phases[LIVE].live_bytes, max(held.phases[name].peak_bytes for name in live)),
        Bytes(guess.phases[LIVE].live_bytes, max(guess.phases[name].peak_bytes_with_scratch or 0 for name in live)),
        Bytes(live[LIVE], peak),
    )


LIVE = "second forward"


def tracked(case: Case) -> tuple[dict[str, int], int]:
    """What MemTracker says of two steps: the bytes at the end of each phase once the model is there, and the peak."""
    live: dict[str, int] = {}
    cpu = torch.device("cpu")
    with torch.device("meta"):
        on_meta = case.build()
    with FakeTensorMode(), MemTracker() as tracker:

        def mark(name: str) -> None:
            live[name] = tracker.get_tracker_snapshot()[cpu]["Total"]
            if name == "zero_grad":
                tracker.reset_mod_stats()  # or it would refuse a second step

        model = fake_copy(on_meta, "cpu")
        batch = torch.empty(case.batch.shape, dtype=case.batch.dtype)
        mark("inputs")
        trained(model, batch, OPTIMIZERS["adamw fused"], case.loss, 1, None, mark)
        peak = tracker.get_tracker_snapshot("peak")[cpu]["Total"]
    return live, peak


# ---- the page --------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"(?<=<!-- mem_tracker -->\n).*?(?=<!-- end of mem_tracker -->)", re.DOTALL)
HEAD = """\
Torch {version}, two steps with a fused AdamW on one thread of the CPU: bytes held at the end of the second forward pass
(live), and at the peak.

| | measured: live | peak | ours: live | peak | MemTracker: live | peak |
|---|---:|---:|---|---|---|---|
"""


def table() -> str:
    rows = "".join(f"{compared(case)}\n" for case in CASES)
    return HEAD.format(version=torch.__version__.partition("+")[0]) + rows


def main() -> None:
    if sys.argv[1:] not in ([], ["--write"]):
        sys.exit(f"unknown argument {sys.argv[1:]}; {__doc__}")
    if sys.argv[1:]:
        PAGE.write_text(BLOCK.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {PAGE}")
    else:
        print(table())


if __name__ == "__main__":
    main()
