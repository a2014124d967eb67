"""The bytes, storages and values of real tensors.

They are parameters, gradients, optimizer state and saved activations.
"""

import gc
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from accounting import optimizers
from accounting.layout import Layout
from prooflops.memory import MEASURED_DEVICES, measured_memory
from test_claims.strategies import TORCH_DTYPES


def layout_of(x):
    """Shape, strides and offset as torch reports them."""
    return Layout(tuple(x.shape), x.stride(), x.storage_offset())


def shares_storage(x, y):
    """True if two live tensors lie in one allocation."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def places(x):
    """The place of each element of `x` in its storage, by numbering the storage."""
    numbered = torch.arange(x.untyped_storage().nbytes() // x.element_size(), device=x.device)
    return numbered.as_strided(x.shape, x.stride(), x.storage_offset())


def metered(device):
    """`device` where torch counts its allocated bytes, otherwise (mps) the CPU."""
    return device if device.type in MEASURED_DEVICES else torch.device("cpu")


def difference(got, should):
    """A sentence about the first difference of two tensors, empty where all is equal."""
    if got.shape != should.shape:
        return f"shape={tuple(got.shape)}, but should be {tuple(should.shape)}"
    wrong = (got.cpu() != should.cpu()).nonzero().tolist()
    if not wrong:
        return ""
    at = tuple(wrong[0])
    said = f"{len(wrong)} of {got.numel()} values differ"
    return f"{said}, at {at} it is {got[at]:g}, but should be {should[at]:g}"


# Optimizers that need sparse gradients, a closure, matrices alone, or the shapes of the tensors to
# know their state.
PARTICULAR = {"sparse-adam", "lbfgs", "muon", "adafactor"}
# torch's own optimizers under the names of `accounting.optimizers.OPTIMIZERS`.
OPTIMIZERS = {
    name: partial(getattr(torch.optim, row.class_name), **row.options)
    for name, row in optimizers.OPTIMIZERS.items()
    if "." not in row.class_name and name not in PARTICULAR
}


def relative_error(got, should):
    return ((got - should).norm() / should.norm()).item()


def tensor_sum(tensors):
    """Bytes of the storages under these tensors, each storage once."""
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors
        if t is not None
    }
    return sum(storages.values())


def parameter_bytes(net):
    return tensor_sum(net.parameters())


def gradient_bytes(net):
    return tensor_sum(parameter.grad for parameter in net.parameters())


def state_bytes(optimizer, step_counts=False):
    """Bytes of the optimizer's state; the 4-byte step counts only with `step_counts`."""
    kept = [(key, value) for state in optimizer.state.values() for key, value in state.items()]
    return tensor_sum(
        value for key, value in kept if isinstance(value, Tensor) and (step_counts or key != "step")
    )


def train(net, optimizer, batch, steps=1):
    """Trains for `steps` steps on the mean square of the output.

    The last step's gradients stay.
    """
    for _ in range(steps):
        optimizer.zero_grad()
        net(batch).float().pow(2).mean().backward()
        optimizer.step()


@torch.enable_grad()
def warm_up(device):
    """Has cuBLAS, and perhaps cuBLASLt, allocate their workspaces.

    cuBLASLt multiplies where a bias is added. Workspaces come from the allocator, for this
    thread and for the one that runs the backward pass, and stay. That thread also drops the
    graph before, which one that failed leaves there.
    """
    for bias in (False, True):
        x = torch.ones(64, 8, device=device, requires_grad=True)
        nn.Linear(8, 8, bias=bias, device=device)(x).sum().backward()


@contextmanager
def without_collector():
    """Stops Python's collector of cycles, which frees tensors of earlier tests."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def held_after(device, *steps):
    """The result of each step, all of them kept, and the bytes allocated then.

    The allocator also counts what is in no tensor that the caller knows of. The bytes are those
    that were requested: `memory_allocated` adds what its blocks round up.
    """
    results = []
    warm_up(device)
    # Garbage of before shall not be freed in the block, where only the block's own is collected.
    gc.collect(0)
    with measured_memory(device) as held:
        for number, step in enumerate(steps):
            results.append(step())
            gc.collect(0)
            held.mark(str(number))
    return results, [phase.live_bytes for phase in held.phases.values()]


def graph_bytes(device, forward):
    """Bytes allocated for the backward pass through `forward()`, without its result."""
    _, (held,) = held_after(device, lambda: forward().grad_fn)
    return held


class RecipeAdamW(torch.optim.Optimizer):
    """AdamW whose gradients, moments and master copies have dtypes of their own.

    torch.optim does not offer that. Gradients of another dtype than the parameters are summed
    in `main_grad` as they arrive, and `grad` is dropped.
    """

    def __init__(
        self,
        parameters,
        gradients,
        state,
        master,
    ):
        super().__init__(parameters, {})
        self.dtype = state
        for parameter in self.parameters:
            kept = self.state[parameter]
            if master is not None:
                kept["master"] = parameter.detach().to(master, copy=True)
            if gradients != parameter.dtype:
                kept["main_grad"] = torch.zeros_like(parameter, dtype=gradients)
                parameter.register_post_accumulate_grad_hook(self.collect)

    @property
    def parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def collect(self, parameter):
        self.state[parameter]["main_grad"] += parameter.grad
        parameter.grad = None

    def tensors(self, *names):
        return [kept[name] for kept in self.state.values() for name in names if name in kept]

    @torch.no_grad()
    def step(self):  # type: ignore[override]
        """Adam's update without the correction of the bias, which takes no bytes."""
        for parameter in self.parameters:
            kept = self.state[parameter]
            for name in ("exp_avg", "exp_avg_sq"):
                kept.setdefault(name, torch.zeros_like(parameter, dtype=self.dtype))
            gradient = kept.get("main_grad", parameter.grad).to(self.dtype)
            average = kept["exp_avg"].lerp_(gradient, 0.1)
            square = kept["exp_avg_sq"].lerp_(gradient**2, 0.001)
            weights = kept.get("master", parameter)
            weights.sub_((1e-3 * average / (square.sqrt() + 1e-8)).to(weights.dtype))
            parameter.copy_(weights)


def stepped(
    optimizer,
    shapes,
    device="cpu",
    *dtypes,
):
    """Parameters of these shapes in each dtype, each a group of an optimizer after two steps.

    The dtype is fp32 by default; gradients are random.
    """
    each = [(shape, TORCH_DTYPES[dtype]) for dtype in dtypes or ["fp32"] for shape in shapes]
    parameters = [
        nn.Parameter(torch.ones(shape, device=device, dtype=dtype)) for shape, dtype in each
    ]
    stepper = optimizer([{"params": [parameter]} for parameter in parameters])
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        stepper.step()
    return parameters, stepper
