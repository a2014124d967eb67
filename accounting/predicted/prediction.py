"""The bytes of a block of code, found on fake tensors."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accounting.allocator import cublas_workspace_bytes
from accounting.checks import validated_choice
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
