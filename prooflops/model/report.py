"""`prooflops.model_report`: the page of `--model` from Python and notebooks."""

from __future__ import annotations

import html
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
from prooflops.model.examination import Examination, examine, examine_unrun
from prooflops.model.factory import ModelError, naming, user_code
from prooflops.model.progress import on_stderr
from prooflops.model.step_memory import PEAK, tried
from prooflops.model.summary import summary_of
from prooflops.model.tree import WIDTH, lines_of, tree_of
from prooflops.model.user_model import (
    Instance,
    UserModel,
    check_parameters,
    has_compiled_parts,
    validated_instance,
)
from prooflops_gate.history.records import write_atomically
from prooflops_gate.page.terminal import wrapped

Loss = Callable[[Any], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
NOTES = ("measured on a copy of the module",)
# These need a closure, a subclass or sparse gradients.
NEED_MORE = ("LBFGS", "Optimizer", "SparseAdam")
OPTIMIZERS = {
    name: each
    for name, each in sorted(vars(torch.optim).items())
    if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and name not in NEED_MORE
}


@dataclass(frozen=True, repr=False)
class ModelReport:
    """The facts about a module: figures, a tree of its modules, and the page of `--model`.

    A step is a forward and a backward pass. A peak is None if the device keeps no account, or if
    the module or the loss cannot run without values. The page then says why.
    """

    examination: Examination
    parameters: int
    trained: int
    flops_forward: int
    flops_step: int
    rule_2nd: int | None
    rule_6nd: int | None
    predicted_peak_bytes: int | None
    measured_peak_bytes: int | None
    depth: int | None = None

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
        # A card that is asked about and is not here was predicted on this host.
        if not machine.is_here(device):
            device = torch.device("cpu")
        facts = machine.fingerprint(device)
        return page.text_of(self.examination, form, machine.headline(device, facts), facts)

    def _repr_html_(self) -> str:
        content = html.escape(self._text("html"))
        style = "width: 100%; height: 40em; border: 0"
        return f'<iframe srcdoc="{content}" style="{style}"></iframe>'

    def tree(self, depth: int | None = None) -> str:
        """The modules in 80 columns, `depth` levels below the whole, or the levels of one page.

        Equal siblings that follow each other share a line.
        """
        return "\n".join(lines_of(tree_of(self.examination.breakdown), depth))

    def __str__(self) -> str:
        answers = [part for line in summary_of(self.examination) for part in wrapped(line, WIDTH)]
        return "\n".join([self.tree(self.depth), "", *answers])

    def to_dict(self) -> dict[str, Any]:
        """Every fact as plain values, as in the .json."""
        return page.as_json(self.examination, {})

    def to_dataframe(self) -> Any:
        """A pandas.DataFrame with a row for each module. Raises ImportError without pandas."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                "to_dataframe needs pandas, which is not installed: pip install pandas, or use "
                "to_dict()"
            ) from error
        rows = [asdict(each) for each in self.examination.breakdown.modules]
        return pd.DataFrame(rows).set_index("name")


def model_report(
    module: nn.Module,
    inputs: Any,
    optimizer: str | MakeOptimizer | None = None,
    loss: Loss | None = None,
    device: str | None = None,
    *,
    measure: bool = False,
    depth: int | None = None,
    examples: int | None = None,
    tokens: int | None = None,
) -> ModelReport:
    """Counts and predicts a training step of `module` without running it, on fake tensors.

    The step is one on the device of its parameters, or on CUDA if they are on the meta device or
    `device` names a card on which it can be predicted.
    `measure` also runs a copy: it adds the measured memory and the times of modules and operators.
    `depth` is that of the printed tree, see `ModelReport.tree`. `device` names a card that need not
    be here, such as "NVIDIA H100 80GB HBM3". The report then says whether the step fits there,
    and the largest batch that does, predicted to the block of torch's allocator.

    `inputs` is a tensor, a tuple of arguments or a dict of keyword arguments. `optimizer` is a name
    from torch.optim, a class, or a function of the parameters; None is AdamW. `loss` is a function
    of the output. None takes the output's own .loss, else the sum of its .logits or tensors.
    Tensors that it captures, such as targets, are copied as the inputs are. `examples` or `tokens`
    states D of 2ND and 6ND, which otherwise follows from the first layer. The module, its gradients
    and the states of torch's and Python's generators stay as they are. Raises ModelError, a
    ValueError, for anything that cannot be stepped.
    """
    kind = type(module).__name__
    with naming(kind, "model_report of"):
        given = _Given(inputs, _optimizer_maker(optimizer), loss, _stated(examples, tokens))
        # A compiled module has its code as it is written.
        written = module if measure else getattr(module, "_orig_mod", module)
        if why_not := why_not_copied(written):
            raise ModelError(why_not)
        check_parameters(written, allow_meta=not measure)
        cards = (cuda_card(device),) if device else ()
    here = next(module.parameters()).device
    model = UserModel(
        kind,
        partial(given.copies, module),
        # Nobody trains on meta.
        torch.device("cuda") if here.type == "meta" else here,
        "model_report of",
        is_compiled=has_compiled_parts(module),
    )
    stages = on_stderr(f"model_report of {kind}")
    # A notebook may have switched gradients off.
    with torch.enable_grad(), _generators_kept():
        if not measure:
            examination = examine_unrun(model, partial(given.fake, written), stages, cards)
        else:
            with stages.stage("building it and taking two steps"):
                trial = tried(model)
            examination = examine(trial, stages, cards=cards, notes=NOTES)
    return _report(examination, depth)


def _report(examination: Examination, depth: int | None) -> ModelReport:
    flops, memory = examination.flops, examination.memory
    peak = memory.row(PEAK) if memory else None
    return ModelReport(
        examination,
        parameters=flops.parameters,
        trained=examination.breakdown.whole.trained,
        flops_forward=flops.forward,
        flops_step=flops.executed,
        rule_2nd=flops.rule("forward"),
        rule_6nd=flops.rule("step"),
        predicted_peak_bytes=peak.predicted_bytes if peak else None,
        measured_peak_bytes=peak.measured_bytes if peak else None,
        depth=depth,
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


@dataclass(frozen=True)
class _Given:
    """The parts of a step beside the module."""

    inputs: Any
    make_optimizer: MakeOptimizer
    loss: Loss | None
    stated: tuple[int, str] | None

    def copies(self, module: nn.Module) -> tuple[Any, ...]:
        """Copies of the module, its inputs and its optimizer, the loss, and the stated D."""
        copies = Copies(next(module.parameters()).device)
        made = self.on(module, copies)
        copies.release()
        return *made[:3], self.loss and partial(_on_copies, copies, self.loss), self.stated

    def fake(self, module: nn.Module, copies: Copies) -> Instance:
        """A step of fake copies."""
        return validated_instance(self.on(module, copies), allow_meta=True)

    def on(self, module: nn.Module, copies: Copies) -> tuple[Any, ...]:
        with user_code("copying the module"):
            copied = copies.module(module)
        given = dict(self.inputs) if isinstance(self.inputs, Mapping) else self.inputs
        with user_code("copying the inputs"):
            given = tree_map_only(Tensor, copies.tensor, given)
        with user_code("making the optimizer"):
            trained = (each for each in copied.parameters() if each.requires_grad)
            made = self.make_optimizer(trained)
        return copied, given, made, self.loss, self.stated


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


def _optimizer_maker(optimizer: str | MakeOptimizer | None) -> MakeOptimizer:
    if optimizer is None:
        return torch.optim.AdamW
    if isinstance(optimizer, str):
        return OPTIMIZERS[validated_choice("optimizer", optimizer, OPTIMIZERS)]
    return optimizer
