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
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accounting.checks import validated_choice
from prooflops.memory.allocator import cublas_workspace_bytes
from prooflops.memory.caching_allocator import CachingAllocator
from prooflops.memory.cuda.choices import CHOICES, choices_of_cuda
from prooflops.memory.cuda.fake import FakeCudaMode, FakeMode, can_fake_cuda
from prooflops.memory.kernels import Kernel, Refusal
from prooflops.memory.ledger import Ledger
from prooflops.memory.phases import Phases, highest
from prooflops.memory.replay import PredictedBytes, fits_into, replay
from prooflops.memory.tracker import Tracker, Workspaces

PREDICTED_DEVICES = ("cpu", "cuda")


class PredictedMemory(Phases[PredictedBytes]):
    """The predicted bytes of a block of code and of its phases; to be read after the block.

    On the CPU `peak_bytes` is without the measured scratch of kernels: see
    `peak_bytes_with_scratch`.
    """

    def __init__(
        self,
        tracker: Tracker,
        classes: Mapping[str, str],
        allocator: CachingAllocator | None,
        has_device: bool,
    ) -> None:
        super().__init__("predicted")
        self._tracker = tracker
        self.ledger = tracker.ledger
        self._names = tracker.ledger.names
        self._has_device = has_device
        self._classes = classes
        self._allocator = allocator
        # The name of each module by its id().
        self._modules: dict[int, str] = {}
        # Models stay alive here, so that no other module gets the id of one.
        self._kept: list[nn.Module] = []

    def mark(self, name: str) -> None:
        """Ends the phase `name`, which began at the mark before or with the block."""
        self._check_new(name)
        self._tracker.enter_boxed_number()
        self.ledger.mark(name)

    def name(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Puts the storages of `tensors` into a class of that name, whichever phase made them."""
        for tensor in tensors:
            storage = self.ledger.storage_of(tensor)
            if storage is not None:
                storage.name = name

    def name_modules(self, model: nn.Module) -> None:
        """Names the modules of `model` in `peak_by_module`, and the owners of its parameters."""
        self._kept.append(model)
        for name, module in model.named_modules():
            self._modules.setdefault(id(module), name or type(module).__name__)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                storage = self.ledger.storage_of(tensor)
                if storage is not None:
                    storage.place = storage.place._replace(module=id(module))

    def _close(self, scratch: bool) -> None:
        if scratch:
            self.ledger.measure_scratch()
        self._segments = replay(self.ledger, self._classes, self._modules, self._allocator)

    def fits_into(self, capacity_bytes: int) -> bool:
        """Whether torch's allocator gets through the block on CUDA with so much memory.

        Segments are given back to the driver and asked for again where that makes room.
        """
        self._known()
        return fits_into(self.ledger, capacity_bytes)

    @property
    def peak_bytes_with_scratch(self) -> int | None:
        """`peak_bytes` with the scratch of kernels; None where that is not known (`unknown`)."""
        return highest(segment.peak_bytes_with_scratch for segment in self._known())

    @property
    def charged_peak_bytes(self) -> int | None:
        """The most that `torch.cuda.memory_allocated` will read; None on the CPU."""
        return highest(segment.charged_peak_bytes for segment in self._known())

    @property
    def reserved_peak_bytes(self) -> int | None:
        """The most that `torch.cuda.memory_reserved` will read; None on the CPU."""
        return highest(segment.reserved_peak_bytes for segment in self._known())

    @property
    def at_peak(self) -> PredictedBytes:
        """The phase with the highest peak: its classes, modules and largest tensors at the peak."""
        return max(self._known(), key=lambda segment: segment.peak_bytes)

    @property
    def scratch(self) -> dict[str, int]:
        """Operators whose kernels were measured to need scratch, with the most of one call."""
        most: Counter[str] = Counter()
        for call, kernel in (self.ledger.kernels or {}).items():
            if isinstance(kernel, Kernel):
                name = str(call.operator)
                most[name] = max(most[name], kernel.scratch_bytes)
        return {name: taken for name, taken in most.items() if taken}

    @property
    def unknown(self) -> dict[str, int]:
        """What may raise the peaks and is not known: operators with scratch, with their calls."""
        calls = Counter(str(made.call.operator) for made in self.ledger.unmeasured_calls())
        workspaces = self._tracker.workspaces
        if workspaces is not None and workspaces.unknown_calls:
            calls["workspaces of cuBLAS: compute_capability is not given"] = (
                workspaces.unknown_calls
            )
        return dict(calls)

    @property
    def why_unknown(self) -> dict[str, str]:
        """Why a kernel was not measured, by operator, where `scratch` asked for it."""
        kernels = (self.ledger.kernels or {}).items()
        return {
            str(call.operator): each.reason for call, each in kernels if isinstance(each, Refusal)
        }

    @property
    def is_lower_bound(self) -> bool:
        """Whether peaks are at least these: something that may raise them is `unknown`."""
        return bool(self.unknown)

    @property
    def choices(self) -> dict[str, str]:
        """The kernels assumed for each operator where there is no CUDA device; else empty."""
        return {} if self._has_device else dict(CHOICES)

    def __repr__(self) -> str:
        if self._segments is None:
            return "PredictedMemory(still predicting)"
        at_least = "≥ " if self.is_lower_bound else ""
        levels = [
            f"live_bytes={self.live_bytes}",
            f"peak_bytes={at_least}{self.peak_bytes}",
        ]
        if self.reserved_peak_bytes is not None:
            levels.append(f"charged_peak_bytes={at_least}{self.charged_peak_bytes}")
            levels.append(f"reserved_peak_bytes={at_least}{self.reserved_peak_bytes}")
        if self.scratch:
            levels.append(f"scratch={self.scratch}")
        if self.unknown:
            levels.append(f"unknown={self.unknown}")
        if not self._has_device:
            levels.append("modelled without a GPU: see choices")
        return f"PredictedMemory({', '.join(levels)})"


# --- the block ------------------------------------------------------------------------------------


@contextmanager
def predicted_memory(
    device: str | torch.device = "cpu",
    *,
    scratch: bool = False,
    compute_capability: tuple[int, int] | None = None,
    workspaces: bool = True,
    allocator: CachingAllocator | None = None,
    classes: Mapping[str, str] | None = None,
) -> Iterator[PredictedMemory]:
    """The bytes that a block of code would allocate, free, hold and peak at on `device`.

    All tensors created in the block are fake; `fake_copy` makes a fake copy of a real module.
    Create the tensors on `device`: no other is counted. `scratch` measures the temporary workspace
    of each operator that may need some, after the block and once for each call with new shapes, in
    a process of its own; the device must be present, with memory for one such call at a time.

    "cuda" needs no GPU: without one, the kernels that torch chooses for CUDA alone are modelled,
    and named in `PredictedMemory.choices`. `compute_capability` is that of the absent device, for
    its choice of attention and the workspaces of cuBLAS. `workspaces=False` leaves these out, as in
    a process that has made them before. `allocator` is torch's caching allocator as it begins, by
    default an empty one without options; it is used up.

    Domain of validity: eager code of one thread whose shapes do not depend on values. On the CPU
    live bytes are exact, and peaks lack unmeasured scratch and some 12 bytes of boxed numbers. On
    CUDA without a GPU: held against seven nets on one NVIDIA H200 (torch 2.11, 26 November 2026;
    docs/predicted.md). Python's collector of cycles is switched off, as in `measured_memory`.

    Raises ValueError for a device of another kind (meta: its tensors take other paths),
    RuntimeError where another fake-tensor mode is active, the block reads a value, or scratch is to
    be measured on an absent device; OutOfMemory where the allocator's capacity does not suffice.

    >>> with predicted_memory("cpu") as held:
    ...     row = torch.ones(256)
    ...     held.mark("row")
    ...     pairs = row[:, None] * row
    ...     del pairs
    >>> held.phases["row"].live_bytes, held.live_bytes, held.peak_bytes
    (1024, 1024, 263168)
    """
    device = _target(device)
    ledger = Ledger(device.type)
    is_cuda = device.type == "cuda"
    has_device = not is_cuda or can_fake_cuda()
    if scratch and not has_device:
        raise RuntimeError(f"scratch=True measures kernels on {str(device)!r}, and there is none")
    capability = _capability(device, compute_capability)
    tracker = Tracker(ledger, scratch, _workspaces(capability) if is_cuda and workspaces else None)
    simulated = (allocator or CachingAllocator()) if is_cuda else None
    predicted = PredictedMemory(tracker, classes or {}, simulated, has_device)
    collecting = gc.isenabled()
    try:
        gc.disable()
        with ExitStack() as modes:
            if is_cuda:
                # On CUDA torch's optimizers choose foreach if all parameters are of these types.
                optimizers._foreach_supported_types.append(FakeTensor)
                modes.callback(optimizers._foreach_supported_types.remove, FakeTensor)
                modes.enter_context(choices_of_cuda(capability, has_device))
            modes.enter_context(_clear_errors(ledger))
            modes.enter_context(FakeMode() if has_device else FakeCudaMode())
            if not is_cuda:
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
            "a FakeTensorMode is active: predicted_memory enters its own, and two do not mix; "
            "leave yours first"
        )
    return device


def _capability(device: torch.device, given: tuple[int, int] | None) -> tuple[int, int] | None:
    if given is None and device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_capability(device)
    return given


def _workspaces(capability: tuple[int, int] | None) -> Workspaces:
    return Workspaces(None if capability is None else cublas_workspace_bytes(capability))


@contextmanager
def _clear_errors(ledger: Ledger) -> Iterator[None]:
    """Says in our words why torch cannot go on."""
    with warnings.catch_warnings():
        # copy.deepcopy asks a fake tensor for its address.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        try:
            yield
        except RuntimeError as error:
            if _reads_values(error):
                raise RuntimeError(
                    f"the block reads values, and fake tensors have none: {error}. Its bytes may "
                    "depend on data: predict it with that choice fixed, or measure it"
                ) from error
            if "data is not allocated yet" not in str(error):
                raise
            raise RuntimeError(
                f"an operator reads a tensor's memory, and fake tensors have none, behind "
                f"{ledger.operator}: sparse constructors and foreign kernels do. Give it a fake "
                "(torch.library.register_fake), use dense tensors, or measure the block"
            ) from error
        except AssertionError as error:
            if "FakeTensor" not in str(error):
                raise
            raise RuntimeError(
                "the block mixes a real tensor with fake ones: create it in the block, or use "
                f"fake_copy(module). {error}"
            ) from error


def _reads_values(error: RuntimeError) -> bool:
    kinds = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
    return isinstance(error, kinds) or ".numpy() is not supported" in str(error)


def _random_states_seen(ledger: Ledger) -> AbstractContextManager[Any]:
    """Enters the random state that a checkpoint keeps, which no dispatched operation allocates."""
    state_of_generator = torch.get_rng_state

    def random_state() -> Tensor:
        state = state_of_generator()
        ledger.see(state)
        return state

    return patch.object(torch, "get_rng_state", random_state)
