"""The storages of a block of code that runs on fake tensors: which were born, which died, and in which order.

From that order follow the bytes of each phase, at its end and at its peak, and which class of storages held them.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accounting.allocator import charge_bounds
from accounting.predicted.scratch import (
    WEIGHTS_OF_LAYER_NORM,
    WRONGLY_FAKED,
    Call,
    Kernel,
    call_of,
    is_scratch_free,
    kernels_of,
    with_dtype_of_weights,
    with_real_sizes,
)


class Event(NamedTuple):
    storage: int
    born: bool
    moment: int  # the number of operations dispatched before
    successor_of: int | None = None  # a storage that a plain tensor's kernel would have written to instead


class CallMade(NamedTuple):
    call: Call
    phase: int
    position: int  # the number of events before its scratch was held, its outputs included
    outputs: tuple[int, ...]  # the storages that it brought


@dataclass
class Storage:
    size: int
    recomputed: bool
    name: str | None = None  # of its class, where it was given one


# Where autograd has a plain tensor to itself it adds and scatters in place; to a fake one, being a subclass, it does
# not. If the first argument dies at once, the two are the same storage in a real run.
IN_PLACE_ON_PLAIN_TENSORS = frozenset({"add", "index_put", "scatter", "scatter_add"})


# These save their second factor for the gradient of the first; if it is a Python number, then as a tensor of its own,
# which dispatch modes do not get to see.
_aten = torch.ops.aten
SAVES_ITS_NUMBER = frozenset(
    {_aten.mul.Tensor, _aten.mul_.Tensor, _aten.div.Tensor, _aten.div_.Tensor, _aten.div.Tensor_mode}
)
BOXED_BYTES = {bool: 1, int: 8, float: 8, complex: 16}


class Ledger:
    """Every storage of one device type that was born and died, in order."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages: list[Storage] = []
        self.events: list[Event] = []
        self.names: list[str] = []
        self.ends: list[int] = []  # the number of events before each mark, the end of the block the last
        self.calls: list[CallMade] = []  # of operators that may need scratch
        self.kernels: dict[Call, Kernel] | None = None  # None: not measured
        self.moment = 0
        self._scratch_at: dict[tuple[int, int], int] = {}
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._lent: set[int] = set()

    def see(self, tensor: Tensor, recomputed: bool = False, successor_of: int | None = None) -> int | None:
        """The number of the tensor's storage, which is new if it was not seen before; None on another device."""
        if tensor.device.type != self.device:
            return None
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            reference, number = self._known[key]
            if self.storages[number].size == size:
                return number
            self._end(key, number)  # resized
        number = len(self.storages)
        self.storages.append(Storage(size, recomputed))
        self.events.append(Event(number, True, self.moment, successor_of))
        reference = weakref.ref(storage, lambda _: self._end(key, number))
        self._known[key] = (reference, number)
        return number

    def _end(self, key: int, number: int) -> None:
        if self._known.get(key, (None, None))[1] == number:
            del self._known[key]
            self.events.append(Event(number, False, self.moment))

    def lend(self, size: int) -> Callable[[], None]:
        """Enters a storage that no Python object shows; returns what ends it."""
        number = len(self.storages)
        self.storages.append(Storage(size, False))
        self.events.append(Event(number, True, self.moment))
        self._lent.add(number)

        def end() -> None:
            if number in self._lent:
                self._lent.remove(number)
                self.events.append(Event(number, False, self.moment))

        return end

    def number_of(self, tensor: Tensor) -> int | None:
        return self._known.get(tensor.untyped_storage()._cdata, (None, None))[1]

    def mark(self, name: str | None) -> None:
        if name is not None:
            self.names.append(name)
        self.ends.append(len(self.events))

    def measure_scratch(self) -> None:
        """Measures each distinct call once."""
        self.kernels = kernels_of({made.call for made in self.calls}, self.device)
        for made in self.calls:
            kernel = self.kernels[made.call]
            place = (made.phase, made.position)
            self._scratch_at[place] = max(self._scratch_at.get(place, 0), kernel.scratch_bytes)
            fake = tuple(self.storages[number].size for number in made.outputs)
            if fake != kernel.output_bytes:
                raise RuntimeError(f"{made.call.operator} returns {kernel.output_bytes} bytes, but its fake {fake}")

    @property
    def knows_scratch(self) -> bool:
        return self.kernels is not None or not self.calls

    def scratch_at(self, phase: int, position: int) -> int:
        """What kernels hold for themselves in this phase when `position` events have happened."""
        return self._scratch_at.get((phase, position), 0)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Enters into the ledger what every operation brings."""

    def __init__(self, ledger: Ledger, measures: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._measures = measures
        self._multiplied: tuple[weakref.ref[Tensor], int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("prim", "profiler"):  # no operation: asks for a device, perhaps in the middle of one
            return func(*args, **kwargs)
        ledger = self._ledger
        self.enter_boxed_number()
        ledger.moment += 1
        in_backward = torch._C._current_graph_task_id() != -1
        recomputed = in_backward and torch.is_grad_enabled()
        successor_of = None
        # A view keeps its base, so autograd has not got its storage to itself.
        if (
            in_backward
            and func._opname in IN_PLACE_ON_PLAIN_TENSORS
            and not args[0]._is_view()
            and _called_by_autograd()
        ):
            successor_of = ledger.number_of(args[0])
        before = len(ledger.storages)
        out = func(*args, **kwargs)
        if func._schema.name in WEIGHTS_OF_LAYER_NORM and ledger.device == "cpu":
            out = with_dtype_of_weights(args, out, WEIGHTS_OF_LAYER_NORM[func._schema.name])
        if func._schema.name in WRONGLY_FAKED and ledger.device == "cpu":
            out = with_real_sizes(call_of(func, args, kwargs), out, self._measures)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                if ledger.device == "cpu":
                    _refuse_unfakeable(tensor)
                ledger.see(tensor, recomputed, successor_of)
        if not is_scratch_free(func, args, ledger.device):
            outputs = tuple(range(before, len(ledger.storages)))
            call = call_of(func, args, kwargs)
            ledger.calls.append(CallMade(call, len(ledger.ends), len(ledger.events), outputs))
        if ledger.device == "cpu" and func in SAVES_ITS_NUMBER and type(args[1]) in BOXED_BYTES:
            self._multiplied = weakref.ref(out), BOXED_BYTES[type(args[1])]
        return out

    def enter_boxed_number(self) -> None:
        """Enters the number that the last product saved: by now autograd has made its node, which keeps it."""
        if self._multiplied is None:
            return
        product, size = self._multiplied
        self._multiplied = None
        tensor = product()
        if tensor is not None and tensor.grad_fn is not None:
            end = self._ledger.lend(size)
            tensor.grad_fn.register_prehook(_Loan(end))


class _Loan:
    """Ends a boxed number when its node runs, or when the node goes."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        weakref.finalize(self, end)

    def __call__(self, _: Any) -> None:
        self._end()


def _called_by_autograd() -> bool:
    """Whether autograd's engine or a derivative formula in C++ made this call, and no Python code (as a user's may)."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_filename.endswith(("_dynamo/eval_frame.py", "torch/_compile.py")):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def _refuse_unfakeable(tensor: Tensor) -> None:
    if tensor.device.type == "cuda" and not can_fake_cuda():
        raise RuntimeError(f"the block makes a tensor on {str(tensor.device)!r}: {NO_FAKE_CUDA}")


NO_FAKE_CUDA = 'there is no such device here, and torch would abort: predict the block for device="cuda"'


@cache
def can_fake_cuda() -> bool:
    """Whether autograd takes fake CUDA tensors: where there is a GPU; without one, a torch that is built for CUDA may.

    A torch built for the CPU alone would abort the process, so nothing is tried there.
    """
    if torch.cuda.is_available():
        return True
    if not torch.backends.cuda.is_built() or not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):  # type: ignore[no-untyped-call]
        return False
    try:
        with FakeTensorMode():
            torch.empty(1, device="cuda", requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


# --- the replay -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictedBytes:
    """PredictedBytes of one phase; levels are relative to the start of the block, as in `accounting.measured`.

    A class of storages is what left them behind: those that outlive the phase that allocated them bear its name (a
    training step's: see `CLASSES`); of the rest, "recomputed" are those that a checkpointed segment allocates as it
    runs again, and "temporaries" all others. `charged_…` are the least and the most that CUDA's caching allocator may
    set aside for the live storages (`accounting.allocator.charge_bounds`); None on the CPU.
    """

    allocated_bytes: int
    freed_bytes: int
    live_bytes: int  # held at the end of the phase
    peak_bytes: int  # the most held at any moment of it, kernels' scratch excluded
    peak_bytes_with_scratch: int | None  # None where an operator's scratch is not known
    live_by_class: dict[str, int] = field(default_factory=dict)
    peak_by_class: dict[str, int] = field(default_factory=dict)
    charged_live_bytes: tuple[int, int] | None = None
    charged_peak_bytes: tuple[int, int] | None = None


def replay(ledger: Ledger, classes: Mapping[str, str]) -> list[PredictedBytes]:
    """The bytes of each phase, from the order in which storages were born and died."""
    first, last, inherited = _successions(ledger)
    born_in: dict[int, int] = {}
    died_at: dict[int, int] = {}
    start = 0
    for phase, end in enumerate(ledger.ends):
        for position in range(start, end):
            event = ledger.events[position]
            if event.born:
                born_in[event.storage] = phase
            else:
                died_at[event.storage] = position
        start = end

    def class_of(number: int) -> str:
        given = ledger.storages[number].name
        if given is not None:
            return given
        phase = born_in[number]
        if died_at.get(last.get(number, number), len(ledger.events)) >= ledger.ends[phase]:
            name = ledger.names[phase] if phase < len(ledger.names) else "rest"
            return classes.get(name, name)
        return "recomputed" if ledger.storages[number].recomputed else "temporaries"

    books = _Books(ledger.device == "cuda", {number: class_of(number) for number in born_in if number not in first})
    segments, start = [], 0
    for phase, end in enumerate(ledger.ends):
        books.begin()
        for position in range(start, end + 1):
            books.hold(ledger.scratch_at(phase, position))
            if position < end and position not in inherited:
                event = ledger.events[position]
                number = first.get(event.storage, event.storage)
                books.enter(number, ledger.storages[number], event.born)
        segments.append(books.bytes(ledger.knows_scratch))
        start = end
    return segments


def _successions(ledger: Ledger) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """Which storages are one and the same in a real run: later -> first, first -> last, and the events between."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    inherited: set[int] = set()
    for position, event in enumerate(ledger.events):
        ancestor = event.successor_of
        if ancestor is None or ledger.storages[ancestor].size != ledger.storages[event.storage].size:
            continue
        for later in range(position + 1, len(ledger.events)):
            other = ledger.events[later]
            if other.born or other.moment != event.moment:
                break
            if other.storage == ancestor:
                root = first.get(ancestor, ancestor)
                first[event.storage] = root
                last[root] = event.storage
                inherited |= {position, later}
                break
    return first, last, inherited


class _Books:
    """Levels and their peaks while storages come and go."""

    def __init__(self, has_charges: bool, class_of: Mapping[int, str]) -> None:
        self._has_charges = has_charges
        self._class_of = class_of
        self._live = self._low = self._high = 0
        self._by_class: Counter[str] = Counter()

    def begin(self) -> None:
        self._allocated = self._freed = 0
        self._peak, self._peak_by_class = self._live, dict(self._by_class)
        self._peak_with_scratch = self._live
        self._charged_peak = (self._low, self._high)

    def enter(self, number: int, storage: Storage, born: bool) -> None:
        sign = 1 if born else -1
        self._live += sign * storage.size
        self._by_class[self._class_of[number]] += sign * storage.size
        if self._has_charges:
            low, high = charge_bounds(storage.size)
            self._low, self._high = self._low + sign * low, self._high + sign * high
        if not born:
            self._freed += storage.size
            return
        self._allocated += storage.size
        self._charged_peak = (max(self._charged_peak[0], self._low), max(self._charged_peak[1], self._high))
        if self._live > self._peak:
            self._peak, self._peak_by_class = self._live, dict(self._by_class)

    def hold(self, scratch: int) -> None:
        self._peak_with_scratch = max(self._peak_with_scratch, self._live + scratch)

    def bytes(self, knows_scratch: bool) -> PredictedBytes:
        return PredictedBytes(
            allocated_bytes=self._allocated,
            freed_bytes=self._freed,
            live_bytes=self._live,
            peak_bytes=self._peak,
            peak_bytes_with_scratch=max(self._peak, self._peak_with_scratch) if knows_scratch else None,
            live_by_class=_without_zeros(self._by_class),
            peak_by_class=_without_zeros(self._peak_by_class),
            charged_live_bytes=(self._low, self._high) if self._has_charges else None,
            charged_peak_bytes=self._charged_peak if self._has_charges else None,
        )


def _without_zeros(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}
