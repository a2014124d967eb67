"""`prooflops.model_report`: the page of `--model` for a module at hand, from Python and
notebooks.
"""

from __future__ import annotations

import html
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from accounting.checks import at_least_one, validated_choice
from prooflops.machine import device as machine
from prooflops.memory.captured import KnownCopies
from prooflops.memory.copies import Copies, why_not_copied
from prooflops.memory.fits import cuda_card
from prooflops.model import page
from prooflops.model.examination import Examination, examine
from prooflops.model.factory import ModelError, naming, user_code
from prooflops.model.modules import OUTSIDE
from prooflops.model.progress import on_stderr
from prooflops.model.step_memory import PEAK, tried
from prooflops.model.tables import NOT_KNOWN, WHOLE, bytes_text, fits_section, flops_texts
from prooflops.model.user_model import UserModel, check_parameters
from prooflops_gate.console.tables import aligned
from prooflops_gate.history.records import write_atomically

Loss = Callable[[Any], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
NOTES = (
    "measured on a copy of the module",
    "time of a step, MFU and HFU: not measured here, but by --model",
)
# These need a closure, a subclass or sparse gradients.
NEED_MORE = ("LBFGS", "Optimizer", "SparseAdam")
FOUND = {
    name: each
    for name, each in vars(torch.optim).items()
    if isinstance(each, type) and name not in NEED_MORE
}
OPTIMIZERS = {
    name: each for name, each in sorted(FOUND.items()) if issubclass(each, torch.optim.Optimizer)
}


@dataclass(frozen=True, repr=False)
class ModelReport:
    """The facts about a module: its figures, a tree of its modules as text, and the page of
    `--model`.

    A step is a forward and a backward pass. A peak is None where the page says why: of a device
    that keeps no account, or predicted for a module or a loss that cannot run without values.
    """

    examination: Examination
    parameters: int
    flops_forward: int
    flops_step: int
    rule_2nd: int | None
    rule_6nd: int | None
    predicted_peak_bytes: int | None
    measured_peak_bytes: int | None

    def save(self, path: str | Path) -> None:
        """Writes the page as .html or .md, or its facts as .json, and makes the folder.

        Raises ValueError for another suffix.
        """
        file = Path(path)
        form = file.suffix.lower().removeprefix(".")
        if form not in page.FORMS:
            raise ValueError(f"path must end in .{', .'.join(page.FORMS)}, got {str(path)!r}")
        write_atomically(file, self._text(form))

    def _text(self, form: str) -> str:
        device = self.examination.user_model.device
        facts = machine.fingerprint(device)
        return page.text_of(self.examination, form, machine.headline(device, facts), facts)

    def _repr_html_(self) -> str:
        content = html.escape(self._text("html"))
        style = "width: 100%; height: 40em; border: 0"
        return f'<iframe srcdoc="{content}" style="{style}"></iframe>'

    def __str__(self) -> str:
        rows = [["module", "type", "parameters", "FLOPs forward", "FLOPs backward"]]
        for each in self.examination.breakdown.modules:
            if each.name != OUTSIDE:
                name = "  " * each.depth + (each.name.rpartition(".")[2] or WHOLE)
                flops = flops_texts(each, "{:,}".format)
                rows.append([name, each.kind, f"{each.parameters:,}", *flops])
        measured = bytes_text(self.measured_peak_bytes)
        predicted = bytes_text(self.predicted_peak_bytes)
        memory = self.examination.memory
        if memory is not None and memory.is_peak_lower_bound:
            predicted = f"at least {predicted}"
        lines = [
            *aligned(rows),
            "",
            f"N = {self.parameters:,} parameters, D = {self.examination.flops.batch}",
            f"FLOPs forward {self.flops_forward:,}, 2ND = {_count_text(self.rule_2nd)}",
            f"FLOPs of a step {self.flops_step:,}, 6ND = {_count_text(self.rule_6nd)}",
            f"peak memory {measured}, predicted {predicted}",
        ]
        if self.examination.fits:
            section = fits_section(self.examination.fits)
            table = aligned(section.rows) if section.rows else []
            lines += ["", *table, *section.remarks]
        return "\n".join(lines)


def model_report(
    module: nn.Module,
    inputs: Any,
    optimizer: str | MakeOptimizer | None = None,
    loss: Loss | None = None,
    device: str | None = None,
    *,
    examples: int | None = None,
    tokens: int | None = None,
) -> ModelReport:
    """Counts, measures and predicts a training step of a copy of `module`, on the device of its
    parameters.

    `device` names a card that need not be here, such as "NVIDIA H100 80GB HBM3": the report then
    says whether the step fits there, predicted to the block of torch's allocator.

    `inputs` is a tensor, a tuple of arguments or a dict of keyword arguments. `optimizer` is a name
    from torch.optim, a class, or a function of the parameters; None is AdamW. `loss` is a function
    of the output; None takes the output's own .loss, else the sum of its .logits or tensors;
    tensors that it captures, such as targets, are copied as the inputs are. `examples` or `tokens`
    states D of 2ND and 6ND, which else follows from the first layer. The module, its
    gradients and the states of torch's and Python's generators stay as they are. Raises ModelError,
    a ValueError, for anything that cannot be stepped.
    """
    kind = type(module).__name__
    with naming(kind, "model_report of"):
        stated = _stated(examples, tokens)
        if why_not := why_not_copied(module):
            raise ModelError(why_not)
        check_parameters(module)
        make_optimizer, here = _optimizer_maker(optimizer), next(module.parameters()).device
        cards = (cuda_card(device),) if device else ()
    copies = partial(_copies, module, inputs, make_optimizer, loss, stated)
    stages = on_stderr(f"model_report of {kind}")
    # A notebook may have switched gradients off.
    with torch.enable_grad(), _generators_kept():
        with stages.stage("building it and taking two steps"):
            trial = tried(UserModel(kind, copies, here, option="model_report of"))
        examination = examine(trial, stages, cards=cards, notes=NOTES)
    flops, memory = examination.flops, examination.memory
    peak = memory.row(PEAK) if memory else None
    return ModelReport(
        examination,
        parameters=flops.parameters,
        flops_forward=flops.forward,
        flops_step=flops.executed,
        rule_2nd=flops.rule("forward"),
        rule_6nd=flops.rule("step"),
        predicted_peak_bytes=peak.predicted_bytes if peak else None,
        measured_peak_bytes=peak.measured_bytes if peak else None,
    )


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leaves the states of torch's and Python's random generators as they are."""
    state = random.getstate()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(state)


def _copies(
    module: nn.Module, inputs: Any, make_optimizer: MakeOptimizer, loss: Loss | None, stated: Any
) -> tuple[Any, ...]:
    """The module, its inputs and its optimizer as copies, the loss, and D where it is stated."""
    copies = Copies(next(module.parameters()).device)
    with user_code("copying the module"):
        copied = copies.module(module)
    given = dict(inputs) if isinstance(inputs, Mapping) else inputs
    with user_code("copying the inputs"):
        given = tree_map_only(Tensor, copies.tensor, given)
    with user_code("making the optimizer"):
        made = make_optimizer(each for each in copied.parameters() if each.requires_grad)
    return copied, given, made, loss and partial(_on_copies, copies, loss), stated


def _on_copies(copies: Copies, loss: Loss, output: Any) -> Tensor:
    """The loss, whose gradients reach the copies of the module's parameters that it names."""
    with KnownCopies(copies):
        return loss(output)


def _stated(examples: int | None, tokens: int | None) -> tuple[int, str] | None:
    """D as the caller states it. Raises ValueError where both are given."""
    if examples is None:
        return None if tokens is None else (at_least_one("tokens", tokens), "tokens")
    if tokens is not None:
        raise ValueError(f"give examples or tokens, got both: {examples=}, {tokens=}")
    return at_least_one("examples", examples), "examples"


def _count_text(count: int | None) -> str:
    return NOT_KNOWN if count is None else f"{count:,}"


def _optimizer_maker(optimizer: str | MakeOptimizer | None) -> MakeOptimizer:
    if optimizer is None:
        return torch.optim.AdamW
    if isinstance(optimizer, str):
        return OPTIMIZERS[validated_choice("optimizer", optimizer, OPTIMIZERS)]
    return optimizer
