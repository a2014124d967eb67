"""Runs operators in the card's place: which tensors live there, what a kernel takes, when the host
has to wait.

A tensor on the card is a tensor of the CPU to C++, so that autograd, views, strides and storages
are torch's own. That its storage belongs to the card is known here, by the storage, and shown by
`meta_tests.card.api`.
"""

import math
import weakref
from collections import Counter
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from accounting.formats import FORMATS
from meta_tests.card.caching import MIB
from meta_tests.card.card import (
    HOST_THREAD_BYTES_PER_S,
    HOST_THREAD_FLOP_PER_S,
    PAGES_PINNED_BYTES_PER_S,
    SHORTEST_HOST_OPERATOR_S,
)

aten = torch.ops.aten
CPU = torch.device("cpu")


def _operators(names):
    return {getattr(aten, name) for name in names.split()}


# Operators whose result the host needs, or whose shape it is.
WAITING = _operators(
    "_local_scalar_dense equal nonzero masked_select _unique2 unique_dim allclose "
    "unique_consecutive bincount repeat_interleave is_nonzero"
)
# Those that take operands of the host too: copies, indices, lengths.
MIXING = _operators(
    "copy_ copy _to_copy index index_put_ index_put _index_put_impl_ _unsafe_index "
    "_pack_padded_sequence set_ "
    # These mix nothing: their operand says the shape alone.
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like"
)
WITHOUT_KERNEL = _operators(
    "empty empty_like empty_strided new_empty new_empty_strided lift_fresh set_ resize_ detach_ "
    "_local_scalar_dense is_same_size"
)
OVERWRITING = _operators("copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_")
# What a CPU without units for narrow numbers multiplies a hundred times as fast, and adds exactly.
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int8: torch.float64}
PRODUCTS = _operators("mm bmm baddbmm addmm")
# As one H200 took them: for each handle of cuBLAS, and for cuBLASLt, which adds a bias.
WORKSPACE_BYTES = {"cublas": 32 * MIB, "cublasLt": MIB}
NAMES = {
    getattr(torch, row.torch_name): name
    for name, row in FORMATS.items()
    if hasattr(torch, row.torch_name or "")
}


class Kernels(TorchDispatchMode):
    """Entered, it runs all operators; those of the card's tensors are launched and charged."""

    def __init__(self, card):
        super().__init__()
        self.card = card
        self.random_state = _state_of(0)
        # The key is the storage's id, which torch keeps as long as its bytes.
        self._blocks = {}
        self.addresses_of_generators = set()
        # Counts the free blocks of each size.
        self.pinned_cache = Counter()
        self._pinned = set()
        # The storages that an operator of several made on the way.
        self._born_within = set()
        self._workspaces = {}
        self._to_host = False

    # ---- where tensors live ----------------------------------------------------------------------

    def has(self, tensor):
        try:
            return id(tensor.untyped_storage()) in self._blocks
        except (NotImplementedError, RuntimeError):
            # Sparse tensors, and those of functorch.
            return False

    def address(self, storage):
        """The address of a storage on the card; None for one of the host."""
        if id(storage) not in self._blocks:
            return None
        block = self._blocks[id(storage)]
        return block.address if block else 0

    def take(self, storage):
        """Puts a storage on the card, until torch frees it."""
        key = id(storage)
        if key not in self._blocks:
            self._blocks[key] = self.card.memory.allocate(storage.nbytes())
            self.card.counts.operations += 1
            weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key):
        if block := self._blocks.pop(key, None):
            self.card.memory.free(block)

    def pin(self, tensor):
        """Has the tensor lie in pinned memory, of which torch keeps freed blocks for later ones."""
        storage = tensor.untyped_storage()
        size = tensor.nbytes
        if self.pinned_cache[size]:
            self.pinned_cache[size] -= 1
        else:
            self.card.let_pass(size / PAGES_PINNED_BYTES_PER_S)
        self._note(storage, self._pinned)
        weakref.finalize(storage, self.pinned_cache.update, {size: 1}).atexit = False
        return tensor

    def is_pinned(self, tensor):
        return id(tensor.untyped_storage()) in self._pinned

    def _is_born_within(self, tensor):
        return tensor.layout == torch.strided and id(tensor.untyped_storage()) in self._born_within

    @staticmethod
    def _note(storage, where):
        where.add(id(storage))
        weakref.finalize(storage, where.discard, id(storage)).atexit = False

    @contextmanager
    def to_host(self):
        """Within, a copy of a tensor of the card is one of the host."""
        self._to_host = True
        try:
            yield
        finally:
            self._to_host = False

    # ---- operators -------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self.card.in_its_place():
            return self._run(func, args, kwargs or {})

    def _run(self, func, args, kwargs):
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        asked = kwargs.get("device")
        here = asked is not None and asked.type == self.card.device.type
        if any(type(x) not in (Tensor, torch.nn.Parameter) or x.is_meta for x in operands):
            # Fake tensors and the like have no bytes.
            return func(*args, **kwargs)
        on_card = [x for x in operands if self.has(x)]
        if not (here or on_card):
            return self._on_host(func, args, kwargs, operands)
        self.card.check()
        self.card.settle()
        if func.overloadpacket not in MIXING:
            self._refuse_a_mix(func, operands)
        if here:
            kwargs = {**kwargs, "device": CPU}
            self._refuse_too_much(args, kwargs)
        if func.overloadpacket in (aten.copy_, aten._to_copy) and (
            here or len(on_card) < len(operands) or self._to_host
        ):
            return self._copied(func, args, kwargs, here)
        out = self._only_timed(func, args, kwargs, operands)
        if out is None and func.overloadpacket in (aten.mm, aten._int_mm):
            out = _widened(args, kwargs)
        if out is None:
            if func.overloadpacket in PRODUCTS and self.card.uses_tf32:
                args = [*map(_tf32, args)]
            out = self._with_random_numbers(func, args, kwargs)
        if asked == CPU and "pin_memory" in kwargs:
            # The caller names the CPU: torch.zeros_like(of the card, device="cpu").
            return out
        host = {
            id(x.untyped_storage())
            for x in operands
            if not self.has(x) and x.layout == torch.strided
        }
        made = [
            leaf
            for leaf in tree_leaves(out)
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided
        ]
        for tensor in made:
            if id(tensor.untyped_storage()) not in host:
                self.take(tensor.untyped_storage())
        self._charge(func, args, kwargs, out, on_card, made)
        return out

    def _on_host(self, func, args, kwargs, operands):
        pinned = kwargs.pop("pin_memory", None)
        out = self._only_timed(func, args, kwargs, operands)
        if out is None:
            out = func(*args, **kwargs)
        work_s = (
            _flops(func, args, kwargs, out) / HOST_THREAD_FLOP_PER_S
            + sum(_moved_bytes(operands).values()) / HOST_THREAD_BYTES_PER_S
        )
        self.card.let_pass(
            SHORTEST_HOST_OPERATOR_S + (0.0 if func.is_view else work_s / torch.get_num_threads())
        )
        if pinned:
            self.pin(out)
        # torch.zeros says pin_memory=False; a factory that C++ calls with the options of a tensor
        # does not.
        within = kwargs.get("layout") is not None and pinned is None
        dense = isinstance(out, Tensor) and out.layout == torch.strided
        if dense and (within or any(self._is_born_within(x) for x in operands)):
            self._note(out.untyped_storage(), self._born_within)
        return out

    def _refuse_a_mix(self, func, operands):
        for tensor in operands:
            if tensor.dim() and not self.has(tensor):
                if self._is_born_within(tensor):
                    self.take(tensor.untyped_storage())
                    continue
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {self.card.device} and cpu! (when checking arguments of {func})"
                )

    def _refuse_too_much(self, args, kwargs):
        """Out of memory is known before the CPU has filled what the card could not hold."""
        if (
            args
            and isinstance(args[0], (list, tuple))
            and all(isinstance(size, int) for size in args[0])
        ):
            size = math.prod(args[0]) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
            self.card.memory.refuse_beyond_limit(size)

    def _with_random_numbers(self, func, args, kwargs):
        """Random numbers of the card come from a generator of its own."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        generator = kwargs.get("generator")
        if generator is not None:
            if generator._cdata not in self.addresses_of_generators:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            return func(*args, **kwargs)
        host = torch.default_generator.get_state()
        torch.default_generator.set_state(self.random_state)
        try:
            return func(*args, **kwargs)
        finally:
            self.random_state = torch.default_generator.get_state()
            torch.default_generator.set_state(host)

    def _only_timed(self, func, args, kwargs, operands):
        """A result without values, in a comparison of times, for what would take the CPU long; None
        for other calls.
        """
        if not self.card.only_timed or func.is_view:
            return None
        if func.overloadpacket in WAITING | WITHOUT_KERNEL:
            return None
        touched_bytes = sum(x.nbytes for x in operands) if operands else _made_bytes(args, kwargs)
        if touched_bytes <= MIB:
            return None
        if func._schema.is_mutable:
            return kwargs.get("out", args[0] if isinstance(args[0], Tensor) else None)
        where = {"device": "meta"} if "device" in kwargs else {}
        try:
            shapes = func(*tree_map(_meta, args), **{**tree_map(_meta, kwargs), **where})
        except NotImplementedError:
            return None
        return tree_map(
            lambda x: torch.empty_like(x, device=CPU) if isinstance(x, Tensor) else x, shapes
        )

    def _copied(self, func, args, kwargs, here):
        """A copy to or from the host, which waits unless it is not to block and the host's side is
        pinned.
        """
        made = func.overloadpacket is aten._to_copy
        source = args[0] if made else args[1]
        arrives = here or (not made and self.has(args[0]))
        late = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        # What is made on the host for a copy that is not to block is pinned.
        on_host = source if arrives else args[0]
        pinned = late if made and not arrives else self.is_pinned(on_host)
        late &= pinned
        ready_s = self.card.copy(source.nbytes, pinned, to_host=not arrives)
        skipped = self.card.only_timed and not made and source.nbytes > MIB
        if arrives:
            out = args[0] if skipped else func(*args, **kwargs)
            self.take(out.untyped_storage())
        else:
            out = torch.empty_like(source, dtype=kwargs.get("dtype")) if made else args[0]
            if made and late:
                self.pin(out)
            seen = None if skipped else source.detach().clone()
            write = lambda: seen is None or out.detach().copy_(seen)  # noqa: E731
            self.card.arrive_later(ready_s, write) if late else write()
        if not late:
            self.card.synchronise(ready_s)
        return out

    # ---- what it takes ---------------------------------------------------------------------------

    def _take_workspaces(self, has_bias):
        """At the first product of a handle: the forward pass has one, autograd's thread another."""
        in_backward = torch._C._current_graph_task_id() != -1
        for library in ("cublas", "cublasLt") if has_bias else ("cublas",):
            place = library, in_backward, self.card.stream.stream_id
            if place not in self._workspaces:
                taken = self.card.memory.allocate(WORKSPACE_BYTES[library])
                self._workspaces[place] = taken

    def _charge(
        self,
        func,
        args,
        kwargs,
        out,
        operands,
        results,
    ):
        packet = func.overloadpacket
        touched = [*operands, *results]
        if func.is_view:
            self.card.let_pass(SHORTEST_HOST_OPERATOR_S)
        if not (func.is_view or packet in WITHOUT_KERNEL):
            if packet in PRODUCTS:
                self._take_workspaces(has_bias=packet is aten.addmm and args[0].dim() == 1)
            name = NAMES.get(touched[0].dtype, "fp32") if touched else "fp32"
            name = "tf32" if name == "fp32" and packet in PRODUCTS and self.card.uses_tf32 else name
            overwritten = kwargs.get("out", args[0] if packet in OVERWRITING else None)
            moved = _moved_bytes(x for x in operands if x is not overwritten) + _moved_bytes(
                results
            )
            moved = self.card.from_memory(moved)
            flops = _flops(func, args, kwargs, out)
            if packet is aten._int_mm and args[1].stride(-1) == 1:
                # cuBLASLt's fast kernels take a second operand that lies by columns.
                flops *= 5
            self.card.launch(self.card.kernel_s(flops, moved, name))
        masked = packet in (aten.index, aten.index_put_) and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        if packet in WAITING or masked:
            self.card.synchronise(self.card.stream.ready_s)


def _flops(func, args, kwargs, out):
    packet = func.overloadpacket
    # Torch's counter leaves it out.
    if packet is aten._int_mm:
        return 2 * args[0].shape[0] * args[0].shape[1] * args[1].shape[1]
    return flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0


def _made_bytes(args, kwargs):
    """The bytes of the tensor that a call without operands makes, as of random numbers."""
    shape = next((each for each in args if isinstance(each, (list, tuple))), None)
    if shape is None or "device" not in kwargs or "generator" in kwargs:
        return 0
    return math.prod(shape) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize


def _widened(args, kwargs):
    """The product of two matrices of narrow numbers; None for others."""
    narrow = args[0].dtype
    if narrow not in WIDER:
        return None
    product = args[0].to(WIDER[narrow]) @ args[1].to(WIDER[narrow])
    if "out" in kwargs:
        return kwargs["out"].copy_(product)
    return product.to(torch.int32 if narrow == torch.int8 else narrow)


def _moved_bytes(tensors):
    """By the id of each storage, at least a sector of 32 bytes an element where no two elements are
    neighbours.
    """
    moved = Counter()
    for x in tensors:
        if x.layout == torch.strided:
            apart = min(
                (stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1),
                default=1,
            )
            moved[id(x.untyped_storage())] = x.numel() * max(
                x.itemsize, min(apart * x.itemsize, 32)
            )
    return moved


def _state_of(seed):
    """The state of a generator whose numbers are not the CPU's with the same seed."""
    generator = torch._C.Generator()
    generator.manual_seed((seed * 6364136223846793005 + 1442695040888963407) % 2**63)
    return generator.get_state()


def _meta(x):
    """The same shape without values."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")


def _tf32(x):
    """A tensor in fp32 is rounded to the 10 bits of mantissa that tensor cores multiply."""
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        return x
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
