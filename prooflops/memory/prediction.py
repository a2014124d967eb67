"""The bytes of a block of code, found on fake tensors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accounting.checks import validated_choice
from prooflops.memory.allocator import cublas_workspace_bytes
from prooflops.memory.caching_allocator import CachingAllocator
from prooflops.memory.copies import Copies
from prooflops.memory.cuda.choices import choices_of_cuda
from prooflops.memory.cuda.fake import FakeCudaMode, FakeMode, can_fake_cuda
from prooflops.memory.cuda.workspaces import Workspaces
from prooflops.memory.known_outputs import KnownOutputs
from prooflops.memory.known_values import KnownValues, read_by_transformers
from prooflops.memory.ledger import Ledger, Storage
from prooflops.memory.phases import Phases, highest
from prooflops.memory.plain_tensors import PlainTensors
from prooflops.memory.repetition import Steps, enter_two_steps
from prooflops.memory.replay import PredictedBytes, Requests, phase_classes, replay
from prooflops.memory.tracker import CpuKernels, CudaKernels, Kernels, Tracker
from prooflops.memory.without_compiler import without_compiler
from prooflops.trace import Operation

PREDICTED_DEVICES = ("cpu", "cuda")
# The first stage of ZeRO that shards a class of a training step.
SHARDED_FROM_STAGE = {"optimizer state": 1, "gradients": 2, "parameters": 3}
UNSHARDED = max(SHARDED_FROM_STAGE.values()) + 1


class PredictedMemory(Phases[PredictedBytes]):
    """The predicted bytes of a block of code and its phases; read them after the block."""

    def __init__(
        self,
        tracker: Tracker,
        classes: Mapping[str, str],
        allocator: CachingAllocator | None,
        has_device: bool,
    ) -> None:
        super().__init__("predicted")
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._names = self._ledger.phase_names
        self._has_device = has_device
        self._classes = classes
        self._allocator = allocator

    def mark(self, name: str) -> int:
        """Ends the phase `name`, which began at the mark before or with the block.

        Returns the bytes that are held at its end.
        """
        self._check_new(name)
        self._tracker.kernels.end_operation()
        self._ledger.mark(name)
        return self._ledger.live_bytes

    @contextmanager
    def traced(self, view: Callable[[Operation], object]) -> Iterator[None]:
        """Passes each operation within the block to a view, as a `Trace` does."""
        before, self._tracker.view = self._tracker.view, view
        try:
            yield
        finally:
            self._tracker.view = before

    def name(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Puts the storages of `tensors` into a class of that name, whichever phase made them."""
        for tensor in tensors:
            storage = self._ledger.storage_of(tensor)
            if storage is not None:
                storage.class_name = name

    def enter_two_steps(self, steps: Steps) -> None:
        """Takes two training steps of a fake module, or finds the second one from the first."""
        enter_two_steps(self._ledger, steps)

    def hold(self, name: str, sizes: Iterable[int]) -> None:
        """Enters storages of that class which nothing frees within the block."""
        for size in sizes:
            self._ledger.allocate(size, name)

    def _close(self) -> None:
        self._tracker.kernels.end_operation()
        self._ledger.mark(None)
        self._segments = replay(self._ledger, self._classes, self._allocator)

    def fits_into(self, capacity_bytes: int) -> bool:
        """True if torch's allocator can serve the block on CUDA from this much memory."""
        return self.requests().fits_into(capacity_bytes)

    def requests(self, devices: int = 1, zero_stage: int = 0) -> Requests:
        """The requests of the block, with each storage of the model state sharded over `devices`.

        What an optimizer allocates in its step follows its shard. Not modelled: the layers that
        stages 2 and 3 store whole while they run, and buffers of communication.
        """
        self._known()
        ledger = self._ledger

        def size_of(storage: Storage, in_class: str) -> int:
            # A tensor that a backward pass frees is no gradient yet.
            is_kept = not storage.is_temporary or in_class == "optimizer state"
            is_sharded = is_kept and zero_stage >= SHARDED_FROM_STAGE.get(in_class, UNSHARDED)
            return -(-storage.size // devices) if is_sharded else storage.size

        events = ledger.events[: ledger.phase_ends[-1]]
        return Requests(
            events, [*map(size_of, ledger.storages, phase_classes(ledger, self._classes))]
        )

    def requests_if_doubled(self) -> Requests:
        """The requests of a step of twice the size, if activations and temporaries grow with it."""
        requests = self.requests()
        described = zip(
            self._ledger.storages, phase_classes(self._ledger, self._classes), strict=True
        )
        sizes = []
        for size, (storage, in_class) in zip(requests.sizes, described, strict=True):
            grows = in_class in ("inputs", "activations") or (
                in_class == "gradients" and storage.is_temporary
            )
            sizes.append(2 * size if grows and storage.class_name is None else size)
        return Requests(requests.events, sizes)

    @property
    def charged_peak_bytes(self) -> int | None:
        """The most that `torch.cuda.memory_allocated` will read; None on the CPU."""
        return highest(segment.charged_peak_bytes for segment in self._known())

    @property
    def reserved_peak_bytes(self) -> int | None:
        """The most that `torch.cuda.memory_reserved` will read; None on the CPU."""
        return highest(segment.reserved_peak_bytes for segment in self._known())

    @property
    def unknown(self) -> list[str]:
        """Operators that may raise the peaks on CUDA by an unknown amount."""
        return list(self._ledger.unknown)

    @property
    def is_lower_bound(self) -> bool:
        """True if peaks are at least these: something that may raise them is not known.

        On the CPU that is the scratch of kernels.
        """
        return self._ledger.device == "cpu" or bool(self.unknown)

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
        if self.unknown:
            levels.append(f"unknown={self.unknown}")
        if not self._has_device:
            levels.append("modelled without a GPU")
        return f"PredictedMemory({', '.join(levels)})"


# --- the block ------------------------------------------------------------------------------------


@contextmanager
def predicted_memory(
    device: str | torch.device = "cpu",
    *,
    compute_capability: tuple[int, int] | None = None,
    workspaces: bool = True,
    allocator: CachingAllocator | None = None,
    classes: Mapping[str, str] | None = None,
    copies: Copies | None = None,
) -> Iterator[PredictedMemory]:
    """The bytes that a block of code would allocate, free, hold and peak at on `device`.

    All tensors created in the block are fake; `fake_copy` makes a fake copy of a real module.
    Create the tensors on `device`: no other is counted.

    "cuda" needs no GPU: without one, the kernels that torch chooses for CUDA alone are modelled
    (docs/explanation/predicted.md names them). `compute_capability` is that of the absent device,
    for its choice of attention and the workspaces of cuBLAS. `workspaces=False` leaves these out,
    as in a process that has made them before. `allocator` is torch's caching allocator as it
    begins, by default an empty one without options; it is used up. Layers that a backward pass runs
    again get `copies` of the tensors that were copied.

    Domain of validity: eager code of one thread whose shapes do not depend on values. On the CPU
    live bytes are exact, and peaks are lower bounds, without the scratch of kernels. On CUDA
    without a GPU: compared with six nets on one NVIDIA H200 (torch 2.11, 26 November 2026;
    docs/explanation/predicted.md). Python's cyclic garbage collector is off, as in
    `measured_memory`.

    Raises ValueError for a device of another kind (meta: its kernels are others), and OutOfMemory
    where the allocator's capacity does not suffice. Raises RuntimeError where another fake-tensor
    mode is active, or the block reads a value or runs a recurrent layer of cuDNN.

    >>> with predicted_memory("cpu") as held:
    ...     row = torch.ones(256)
    ...     live_bytes = held.mark("row")
    ...     pairs = row[:, None] * row
    ...     del pairs
    >>> held.phases["row"].live_bytes, live_bytes, held.peak_bytes
    (1024, 1024, 263168)
    """
    device = _target(device)
    ledger = Ledger(device.type)
    is_cuda = device.type == "cuda"
    has_device = not is_cuda or can_fake_cuda()
    capability = _capability(device, compute_capability)
    kernels: Kernels = CpuKernels(ledger)
    if is_cuda:
        kernels = CudaKernels(ledger, _workspaces(capability) if workspaces else None)
    plain_tensors = PlainTensors(ledger)
    simulated = (allocator or CachingAllocator()) if is_cuda else None
    choices = choices_of_cuda(capability, has_device)
    collecting = gc.isenabled()
    try:
        gc.disable()
        with ExitStack() as modes:
            modes.enter_context(without_compiler())
            if is_cuda:
                # On CUDA torch's optimizers choose foreach if all parameters are of these types.
                optimizers._foreach_supported_types.append(FakeTensor)
                modes.callback(optimizers._foreach_supported_types.remove, FakeTensor)
                modes.enter_context(choices)
            else:
                modes.enter_context(_random_states_seen(ledger))
            modes.enter_context(_clear_errors(ledger))
            fake_tensors = modes.enter_context(FakeMode() if has_device else FakeCudaMode())
            modes.enter_context(plain_tensors.linear_layers_noted())
            known_outputs = KnownOutputs(fake_tensors, "" if has_device else "cuda")
            known_values = KnownValues()
            modes.enter_context(read_by_transformers(known_values))
            tracker = Tracker(ledger, kernels, plain_tensors, known_outputs, known_values, copies)
            predicted = PredictedMemory(tracker, classes or {}, simulated, has_device)
            modes.enter_context(tracker)
            yield predicted
            predicted._close()
    finally:
        if collecting:
            gc.enable()


def _target(device: str | torch.device) -> torch.device:
    device = torch.device(device)
    if device.type == "meta":
        raise ValueError("device must be cpu or cuda, got 'meta', whose kernels differ")
    validated_choice("device", device.type, PREDICTED_DEVICES)
    if any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()):
        raise RuntimeError(
            "a FakeTensorMode is active: predicted_memory enters its own, and two cannot be "
            "nested; exit yours first"
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
        # copy.deepcopy reads a fake tensor's address.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        try:
            yield
        except RuntimeError as error:
            if _reads_values(error):
                raise RuntimeError(
                    f"the block reads values, and fake tensors have none: {error}. Its bytes may "
                    "depend on data: predict it with that choice fixed, or measure it"
                ) from error
            if "to be on the same device" in str(error):
                raise RuntimeError(
                    "the code makes a tensor on another device than its inputs, and a card refuses "
                    f"to mix them: make it with device=x.device. {error}"
                ) from error
            if "data is not allocated yet" not in str(error):
                raise
            raise RuntimeError(
                f"an operator after {ledger.operator} reads a tensor's memory, and fake tensors "
                "have none. Sparse constructors and foreign kernels do so. Give it a fake "
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
        with torch._C.DisableTorchFunction():
            ledger.see(state)
        return state

    return patch.object(torch, "get_rng_state", random_state)
