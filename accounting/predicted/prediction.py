"""The bytes of a block of code, and of a training step, on fake tensors."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from accounting import measured
from accounting.allocator import cublas_workspace_bytes
from accounting.checks import validated_choice, validated_int
from accounting.measured.phases import Phases
from accounting.predicted.fake_cuda import CHOICES, FakeCudaMode, choices_of_cuda, foreach_takes_fake_tensors
from accounting.predicted.ledger import Ledger, PredictedBytes, Tracker, can_fake_cuda, replay

PREDICTED_DEVICES = ("cpu", "cuda")


class PredictedMemory(Phases[PredictedBytes]):
    """The predicted bytes of a block of code and of its phases; to be read after the block.

    `peak_bytes` is without what kernels take for themselves: see `peak_bytes_with_scratch`.
    """

    def __init__(self, ledger: Ledger, classes: Mapping[str, str], workspace: int | None, has_device: bool) -> None:
        super().__init__("predicted")
        self._names = ledger.names
        self._has_device = has_device
        self._ledger = ledger
        self._classes = classes
        self._workspace = workspace
        self._tracker: Tracker | None = None

    def mark(self, name: str) -> None:
        """Ends the phase `name`: it holds all that happened since the mark before, or since the block began."""
        self._check_new(name)
        if self._tracker is not None:
            self._tracker.enter_boxed_number()
        self._ledger.mark(name)

    def name(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Puts the storages of `tensors` into a class of that name, whatever phase they are left by."""
        for tensor in tensors:
            number = self._ledger.number_of(tensor)
            if number is not None:
                self._ledger.storages[number].name = name

    def _close(self, scratch: bool) -> None:
        if scratch:
            self._ledger.measure_scratch()
        self._segments = replay(self._ledger, self._classes)

    @property
    def peak_bytes_with_scratch(self) -> int | None:
        """`peak_bytes` with what kernels take for themselves; None where that is not known (`unknown`)."""
        peaks = [segment.peak_bytes_with_scratch for segment in self._known()]
        return None if None in peaks else max(peak for peak in peaks if peak is not None)

    @property
    def scratch(self) -> dict[str, int]:
        """Operators whose kernels were measured to take bytes for themselves, with the most that one call takes."""
        most: Counter[str] = Counter()
        for call, kernel in (self._ledger.kernels or {}).items():
            most[str(call.operator)] = max(most[str(call.operator)], kernel.scratch_bytes)
        return {name: taken for name, taken in most.items() if taken}

    @property
    def unknown(self) -> dict[str, int]:
        """Operators whose scratch is not known, with the number of their calls: peaks may be higher by it."""
        if self._ledger.knows_scratch:
            return {}
        return dict(Counter(str(made.call.operator) for made in self._ledger.calls))

    @property
    def cublas_workspace_bytes(self) -> int | None:
        """What torch keeps for cuBLAS beside all else once a product has run; None on the CPU or if not known."""
        return self._workspace

    @property
    def choices(self) -> dict[str, str]:
        """What was taken for the choice of a CUDA device, by operator, where none is there; empty otherwise."""
        return {} if self._has_device else dict(CHOICES)

    def __repr__(self) -> str:
        if self._segments is None:
            return "PredictedMemory(still predicting)"
        at_least = "≥ " if self.unknown else ""
        scratch = f", scratch={self.scratch}" if self.scratch else ""
        unknown = f", unknown={self.unknown}" if self.unknown else ""
        modelled = "" if self._has_device else ", modelled without a GPU: see choices"
        levels = f"live_bytes={self.live_bytes}, peak_bytes={at_least}{self.peak_bytes}"
        return f"PredictedMemory({levels}{scratch}{unknown}{modelled})"


# --- the block ------------------------------------------------------------------------------------------------------


@contextmanager
def memory(
    device: str | torch.device = "cpu",
    *,
    scratch: bool = False,
    compute_capability: tuple[int, int] | None = None,
    classes: Mapping[str, str] | None = None,
) -> Iterator[PredictedMemory]:
    """The bytes that a block of code would allocate, free, hold and peak at on `device`, without holding any.

    All tensors made in the block are fake; a real module enters by `fake_copy`. `device` is the one that is accounted
    for: make the tensors there. `scratch` measures, after the block and once for each call with new shapes, what the
    kernels of operators take for themselves that are not known to take nothing; the device must be there, and hold one
    such call at a time.
    `compute_capability` is the CUDA device's, for the workspace of cuBLAS, where none is there to be asked.
    "cuda" needs no GPU: where there is none, the choices that torch makes for CUDA alone are modelled, and named in
    `PredictedMemory.choices`; peaks are then lower bounds, and what only cuDNN knows (LSTM, GRU) and autocast are
    refused.

    Domain of validity: eager code of one thread whose shapes do not depend on values. On the CPU live bytes are exact,
    and peaks lack what kernels take for themselves, if not measured, and some 12 bytes of boxed numbers. Python's
    collector of cycles is held off, as in `measured`.
    CUDA, with a GPU or without, has not yet been held against a measurement.

    Raises ValueError for a device of another kind (meta: its tensors take other paths), RuntimeError where another
    fake-tensor mode is active, the block asks for a value, or scratch is to be measured on a device that is not there.

    >>> with memory("cpu") as held:
    ...     row = torch.ones(256)
    ...     held.mark("row")
    ...     pairs = row[:, None] * row
    ...     del pairs
    >>> held.phases["row"].live_bytes, held.live_bytes, held.peak_bytes
    (1024, 1024, 263168)
    """
    device = _target(device)
    ledger = Ledger(device.type)
    has_device = device.type == "cpu" or can_fake_cuda()
    if scratch and not has_device:
        raise RuntimeError(f"scratch=True measures kernels on {str(device)!r}, and there is none")
    predicted = PredictedMemory(ledger, classes or {}, _workspace_bytes(device, compute_capability), has_device)
    collecting = gc.isenabled()
    try:
        gc.disable()
        with ExitStack() as modes:
            if device.type == "cuda":
                modes.enter_context(foreach_takes_fake_tensors())
            if not has_device:
                modes.enter_context(choices_of_cuda())
                modes.enter_context(_autocast_refused())
            modes.enter_context(FakeTensorMode() if has_device else FakeCudaMode())
            if device.type == "cpu":
                modes.enter_context(_random_states_seen(ledger))
            tracker = modes.enter_context(Tracker(ledger, scratch))
            predicted._tracker = tracker
            modes.enter_context(_clear_errors())
            yield predicted
            tracker.enter_boxed_number()
            ledger.mark(None)
    finally:
        if collecting:
            gc.enable()
    predicted._close(scratch)


def _target(device: str | torch.device) -> torch.device:
    device = torch.device(device)
    if device.type == "meta":
        raise ValueError("device must be the one that is meant, got 'meta', whose kernels are others: 'cpu' or 'cuda'")
    validated_choice("device", device.type, PREDICTED_DEVICES)
    if any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()):
        raise RuntimeError("a FakeTensorMode is active: predicted.memory brings its own, and modes do not mix")
    return device


def _workspace_bytes(device: torch.device, capability: tuple[int, int] | None) -> int | None:
    if device.type != "cuda":
        return None
    if capability is None and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
    return None if capability is None else cublas_workspace_bytes(capability)


@contextmanager
def _autocast_refused() -> Iterator[None]:
    """Torch warns that autocast does nothing on a CUDA device that is not there: its bytes would be wrong."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA is not available")
        try:
            yield
        except UserWarning as error:
            raise RuntimeError(f"autocast is predicted on CUDA only where there is a GPU: {error}") from error


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException) as error:
        raise RuntimeError(
            f"the block asks for values, and fake tensors have none: {error}. Its bytes may depend on data; predict it "
            "with the choice fixed, or measure it"
        ) from error
    except AssertionError as error:
        if "FakeTensor" not in str(error):
            raise
        raise RuntimeError(
            f"a real tensor met the fake ones of the block: make it in the block, or take fake_copy(module). {error}"
        ) from error


@contextmanager
def _random_states_seen(ledger: Ledger) -> Iterator[None]:
    """Lets the ledger see what no operation brings: the random state that a checkpoint keeps of its segment."""

    def random_state() -> Tensor:
        state = state_of_generator()
        ledger.see(state)
        return state

    state_of_generator = torch.get_rng_state
    torch.get_rng_state = random_state
    try:
        yield
    finally:
        torch.get_rng_state = state_of_generator


# --- a training step -------------------------------------------------------------------------------------------------

# What is left by each phase of a training step; of these names the classes of its bytes are.
CLASSES = {
    "built": "parameters",
    "inputs": "inputs",
    "optimizer": "optimizer state",
    "forward": "activations",
    "backward": "gradients",
    "step": "optimizer state",
    "zero_grad": "optimizer state",
}


def fake_copy(module: nn.Module, device: str | torch.device) -> nn.Module:
    """A copy of `module` with fake parameters and buffers on `device`, for the block of `memory`.

    The module may be built on the meta device, where it takes no memory whatever its size. Shared parameters and
    storages stay shared; gradients are not taken over. Raises TypeError for a parameter that is no plain tensor.
    """
    bases: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer, FakeTensor) or tensor.layout != torch.strided:
            raise TypeError(f"module must hold plain strided tensors, got a {type(tensor).__name__} ({tensor.layout})")
        storage = tensor.untyped_storage()
        if storage._cdata not in bases:
            elements = storage.nbytes() // tensor.element_size()
            bases[storage._cdata] = torch.empty(elements, dtype=tensor.dtype, device=device)
        base = bases[storage._cdata].view(tensor.dtype)
        copy = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    own = [tensor for part in module.modules() for tensor in tree_leaves(vars(part)) if isinstance(tensor, Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *own]
    with torch.no_grad():
        memo: dict[int, Any] = {id(tensor): fake(tensor) for tensor in {id(t): t for t in tensors}.values()}
    return deepcopy(module, memo)


def training_step(
    build: Callable[[], nn.Module] | nn.Module,
    inputs: Any,
    *,
    loss: Callable[..., Tensor],
    targets: Any = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    micro_batches: int = 1,
    autocast: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    scratch: bool = False,
    compute_capability: tuple[int, int] | None = None,
) -> PredictedMemory:
    """The bytes of the first two training steps of a model, phase by phase, without running or building it.

    `build()` is called on the meta device; `inputs` (a tensor or several, for the model) and `targets` are taken for
    their shapes and dtypes. The steps that are accounted for, as `measured_training_step` runs them:

        for part in the micro-batches:  loss(model(part), targets of it).backward()     under autocast up to the loss
        optimizer.step()                               optimizer = optimizer(model.parameters()), made once
        zero_grad()

    Phases: "built" (without what initialisation takes for a while), "inputs", "optimizer" (its constructor), then
    "forward", "backward" (with their number, "forward 1" and so on, where there are several micro-batches), "step" and
    "zero_grad", and the same again with "second" before the name: the first step allocates the optimizer's state, the
    second is what training goes on with. `live_by_class` and `peak_by_class` of a phase name parameters, buffers,
    inputs, activations (all that the forward pass leaves, the loss included), gradients, optimizer state (master
    copies of the parameters too), recomputed and temporaries.

    `optimizer` gets the parameters: `partial(torch.optim.AdamW, foreach=True)`, or one of your own that keeps master
    weights in fp32. Domain of validity: see `memory`.
    Raises ValueError for a batch that cannot be split so, and as `memory`.

    >>> net = lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> step = training_step(net, torch.empty(8, 64), loss=torch.mean, optimizer=torch.optim.AdamW)
    >>> {name: step.phases[name].live_bytes for name in ("built", "inputs", "second forward", "second backward")}
    {'built': 16900, 'inputs': 18948, 'second forward': 54816, 'second backward': 69664}
    >>> step.phases["second step"].live_by_class
    {'parameters': 16900, 'inputs': 2048, 'gradients': 16900, 'optimizer state': 33816}
    """
    model = build if isinstance(build, nn.Module) else _on("meta", build)
    classes = {name: CLASSES[name.removeprefix("second ").split()[0]] for name in _phase_names(micro_batches)}
    with memory(device, scratch=scratch, compute_capability=compute_capability, classes=classes) as held:
        fake = fake_copy(model, device)
        held.name("buffers", fake.buffers())
        held.mark("built")
        batch = tree_map(lambda leaf: _like(leaf, device), (inputs, targets))
        held.mark("inputs")
        _train(held.mark, fake, batch, loss, optimizer, micro_batches, autocast, device)
    return held


def measured_training_step(
    build: Callable[[], nn.Module] | nn.Module,
    inputs: Any,
    *,
    loss: Callable[..., Tensor],
    targets: Any = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    micro_batches: int = 1,
    autocast: torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> measured.MeasuredMemory:
    """The same two steps as `training_step`, run and measured: the same phases, by `accounting.measured.memory`.

    A `build` that is a module already is not copied, so its parameters are not among the bytes, and it is trained.
    """
    with measured.memory(device) as held:
        model = build if isinstance(build, nn.Module) else _on(device, build)
        held.mark("built")
        batch = tree_map(lambda leaf: _like(leaf, device), (inputs, targets))
        held.mark("inputs")
        _train(held.mark, model, batch, loss, optimizer, micro_batches, autocast, device)
    return held


def _on(device: str | torch.device, build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device(device):
        return build()


def _like(leaf: Any, device: str | torch.device) -> Any:
    """A tensor of the same shape and dtype: of its values, or of zeros, which any table can look up, if it has none."""
    if not isinstance(leaf, Tensor):
        return leaf
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
    return torch.zeros_like(leaf, device=device) if leaf.is_meta else leaf.detach().to(device, copy=True)


def _phase_names(micro_batches: int) -> list[str]:
    numbers = [""] if micro_batches == 1 else [f" {number}" for number in range(1, micro_batches + 1)]
    passes = [f"{name}{number}" for number in numbers for name in ("forward", "backward")]
    once = [*passes, "step", "zero_grad"]
    return ["built", "inputs", "optimizer", *once, *(f"second {name}" for name in once)]


def _train(
    mark: Callable[[str], None],
    model: nn.Module,
    batch: tuple[Any, Any],
    loss: Callable[..., Tensor],
    optimizer: Callable[..., torch.optim.Optimizer] | None,
    micro_batches: int,
    autocast: torch.dtype | None,
    device: str | torch.device,
) -> None:
    updates = None if optimizer is None else optimizer(model.parameters())
    mark("optimizer")
    casting = nullcontext() if autocast is None else torch.autocast(torch.device(device).type, autocast)
    parts = _parts(batch, micro_batches)
    names = iter(_phase_names(micro_batches)[3:])
    for _ in range(2):
        for inputs, targets in parts:
            with casting:
                output = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
                error = loss(output) if targets is None else loss(output, targets)
                del output
            mark(next(names))
            error.backward()  # type: ignore[no-untyped-call]
            del error
            mark(next(names))
        if updates is not None:
            updates.step()
        mark(next(names))
        (model if updates is None else updates).zero_grad(set_to_none=True)
        mark(next(names))


def _parts(batch: Any, micro_batches: int) -> list[Any]:
    """The batch in `micro_batches` parts along the first dimension of each of its tensors, as views."""
    validated_int("micro_batches", micro_batches, minimum=1)
    leaves, structure = tree_flatten(batch)
    sizes = {leaf.shape[0] if leaf.dim() else 0 for leaf in leaves if isinstance(leaf, Tensor)}
    if micro_batches > 1 and (len(sizes) != 1 or min(sizes) < micro_batches):
        raise ValueError(f"inputs must have a first dimension of at least {micro_batches=} in common, got {sizes}")
    if micro_batches == 1:
        return [batch]
    split = [
        leaf.tensor_split(micro_batches) if isinstance(leaf, Tensor) else (leaf,) * micro_batches for leaf in leaves
    ]
    return [tree_unflatten(list(part), structure) for part in zip(*split, strict=True)]
