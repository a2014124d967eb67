"""The bytes of a block of code, found on fake tensors."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accounting.allocator import cublas_workspace_bytes
from accounting.checks import validated_choice
from prooflops.measured.phases import Phases, highest
from prooflops.predicted.fake_cuda import (
    CHOICES,
    FakeCudaMode,
    FakeMode,
    can_fake_cuda,
    choices_of_cuda,
)
from prooflops.predicted.ledger import Ledger, PredictedBytes, replay
from prooflops.predicted.tracker import Tracker

PREDICTED_DEVICES = ("cpu", "cuda")


class PredictedMemory(Phases[PredictedBytes]):
    """The predicted bytes of a block of code and of its phases; to be read after the block.

    `peak_bytes` is without the scratch of kernels: see `peak_bytes_with_scratch`.
    """

    def __init__(
        self, tracker: Tracker, classes: Mapping[str, str], workspace: int | None, has_device: bool
    ) -> None:
        super().__init__("predicted")
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._names = tracker.ledger.names
        self._has_device = has_device
        self._classes = classes
        self._workspace = workspace

    def mark(self, name: str) -> None:
        """Ends the phase `name`, which began at the mark before or with the block."""
        self._check_new(name)
        self._tracker.enter_boxed_number()
        self._ledger.mark(name)

    def name(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Puts the storages of `tensors` into a class of that name, whichever phase allocated them."""
        for tensor in tensors:
            self._ledger.name(name, tensor)

    def _close(self, scratch: bool) -> None:
        if scratch:
            self._ledger.measure_scratch()
        self._segments = replay(self._ledger, self._classes)

    @property
    def peak_bytes_with_scratch(self) -> int | None:
        """`peak_bytes` with the scratch of kernels; None where that is not known (`unknown`)."""
        return highest(segment.peak_bytes_with_scratch for segment in self._known())

    @property
    def scratch(self) -> dict[str, int]:
        """Operators whose kernels were measured to need scratch, with the most bytes that one call takes."""
        most: Counter[str] = Counter()
        for call, kernel in (self._ledger.kernels or {}).items():
            most[str(call.operator)] = max(most[str(call.operator)], kernel.scratch_bytes)
        return {name: taken for name, taken in most.items() if taken}

    @property
    def unknown(self) -> dict[str, int]:
        """Operators whose scratch is not known, with the number of their calls: it may raise the peaks."""
        if self._ledger.knows_scratch:
            return {}
        return dict(Counter(str(made.call.operator) for made in self._ledger.calls))

    @property
    def cublas_workspace_bytes(self) -> int | None:
        """Bytes that torch keeps for cuBLAS after the first product, in no other figure; None if unknown."""
        return self._workspace

    @property
    def choices(self) -> dict[str, str]:
        """The kernels assumed for each operator where there is no CUDA device; empty otherwise."""
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
    """The bytes that a block of code would allocate, free, hold and peak at on `device`, without allocating any.

    All tensors created in the block are fake; `fake_copy` makes a fake copy of a real module. Create the tensors on
    `device`: no other is counted. `scratch` measures the temporary workspace of each operator that may need some, after
    the block and once for each call with new shapes; the device must be present, with memory for one such call at a
    time. `compute_capability` is that of an absent CUDA device, for the workspace of cuBLAS.
    "cuda" needs no GPU: without one, the kernels that torch chooses for CUDA alone are modelled, and named in
    `PredictedMemory.choices`; peaks are then lower bounds, and autocast and recurrent layers (cuDNN's) are refused.

    Domain of validity: eager code of one thread whose shapes do not depend on values. On the CPU live bytes are exact,
    and peaks lack unmeasured scratch and some 12 bytes of boxed numbers. Python's collector of cycles is switched off,
    as in `measured`. CUDA, with a GPU or without, has not yet been compared with a measurement.

    Raises ValueError for a device of another kind (meta: its tensors take other paths), RuntimeError where another
    fake-tensor mode is active, the block reads a value, or scratch is to be measured on an absent device.

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
    tracker = Tracker(ledger, scratch)
    predicted = PredictedMemory(
        tracker, classes or {}, _workspace_bytes(device, compute_capability), has_device
    )
    collecting = gc.isenabled()
    try:
        gc.disable()
        with ExitStack() as modes:
            if device.type == "cuda":  # whose optimizers choose foreach, for tensors of these types
                optimizers._foreach_supported_types.append(FakeTensor)
                modes.callback(optimizers._foreach_supported_types.remove, FakeTensor)
            if not has_device:
                modes.enter_context(choices_of_cuda())
            modes.enter_context(_clear_errors())
            modes.enter_context(FakeMode() if has_device else FakeCudaMode())
            if device.type == "cpu":
                modes.enter_context(_random_states_seen(ledger))
            modes.enter_context(tracker.biases_in_place())
            modes.enter_context(tracker)
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
        raise ValueError("device must be cpu or cuda, got 'meta', whose kernels are others")
    validated_choice("device", device.type, PREDICTED_DEVICES)
    if any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()):
        raise RuntimeError(
            "a FakeTensorMode is active: predicted.memory enters its own, and two do not mix; leave yours first"
        )
    return device


def _workspace_bytes(device: torch.device, capability: tuple[int, int] | None) -> int | None:
    if device.type != "cuda":
        return None
    if capability is None and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
    return None if capability is None else cublas_workspace_bytes(capability)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Says in our words why torch cannot go on; without a CUDA device it warns that autocast does nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA is not available")
        # copy.deepcopy asks a fake tensor for its address
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        try:
            yield
        except UserWarning as error:
            if "CUDA is not available" not in str(error):
                raise
            raise RuntimeError(
                f"autocast on CUDA is predicted only where there is a GPU: {error}"
            ) from error
        except (
            fake_tensor.DataDependentOutputException,
            fake_tensor.DynamicOutputShapeException,
        ) as error:
            raise RuntimeError(
                f"the block reads values, and fake tensors have none: {error}. Its bytes may depend on data: predict "
                "it with that choice fixed, or measure it"
            ) from error
        except AssertionError as error:
            if "FakeTensor" not in str(error):
                raise
            raise RuntimeError(
                f"the block mixes a real tensor with fake ones: create it in the block, or use fake_copy(module). "
                f"{error}"
            ) from error


def _random_states_seen(ledger: Ledger) -> AbstractContextManager[Any]:
    """Enters the random state that a checkpoint keeps, which no dispatched operation allocates."""
    state_of_generator = torch.get_rng_state

    def random_state() -> Tensor:
        state = state_of_generator()
        ledger.see(state)
        return state

    return patch.object(torch, "get_rng_state", random_state)
