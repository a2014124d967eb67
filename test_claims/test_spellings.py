"""All ways in which torch says one thing do the same; test_spellings.toml lists them.

They are tried on the CPU: a call is read in its own way before any device computes it.
"""

import collections
import copy
import functools
import math
import random
import re
import tempfile
import weakref
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils import data
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from accounting import (
    activations,
    devices,
    layout,
    memory,
    models,
    optimizers,
    planning,
    roofline,
    units,
)
from accounting.parts import AttentionLayers, Parts
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.messages import equal
from test_claims.oracles.tensors import OPTIMIZERS, layout_of, shares_storage
from test_claims.strategies import TORCH_DTYPES, axes_of, cases_of
from test_claims.tables import read_tables

MODULES = {name.lower(): f"nn.{name}" for name in dir(nn) if name[0].isupper()}
GROUPS = read_tables(Path(__file__).with_suffix(".toml"))
# Ways that write into their operand, or into `out`.
WRITES = re.compile(
    r"(x|torch|F|nn\.init)\.\w*[a-z0-9]_\(|x\.__i\w+\(|put\(|.*(out=out|inplace=True)"
)
NUMBERS = (1, 4, 0.3, 2, 3, 7)
EDGES = (*NUMBERS, -2, -0.0, math.inf, -math.inf, math.nan, 2.0**-130, 2.0**-20)
LIBRARIES = {
    "F": functional,
    "schedules": lr_scheduler,
    **{
        each.__name__.rpartition(".")[2]: each
        for each in (
            *(optim, data, collections, copy, functools, random),
            *(activations, devices, layout, memory, models, optimizers, planning, roofline, units),
            *(checkpoint, checkpoint_sequential),
        )
    },
    "OPTIMIZERS": OPTIMIZERS,
}
# Token ids in a file, which goes with its map, and windows of three tokens.
with tempfile.TemporaryFile() as _file:
    TOKENS = np.memmap(_file, np.uint16, "w+", shape=(40,))
TOKENS[:] = range(2**16 - 40, 2**16)
WINDOWS = [(torch.tensor([i, i + 1]), torch.tensor(i + 2)) for i in range(10)]


@functools.cache
def operands(case, edges):
    """Tensors of a case by the names that the table gives them; ways that write get copies."""
    dtype = TORCH_DTYPES[case.dtype]
    x = case.tensor("cpu", EDGES if edges and dtype.is_floating_point else NUMBERS)
    rows, columns = x.shape
    weights = torch.arange(5 * columns).reshape(5, columns) % 7
    found = {
        "x": x,
        "y": case.tensor("cpu", (2, 1, 3)),
        "w": weights.to(x),
        "b": weights[:, 0].to(x),
    }
    # torch adds up no gradients in fp8.
    trained = dtype.is_floating_point and dtype.itemsize > 1
    found = {name: each.detach().requires_grad_(trained) for name, each in found.items()}
    found["ids"] = torch.arange(9) * 2 % max(rows, 1)
    found["labels"] = torch.arange(rows) % columns
    return found


def copied(x):
    """A view like this, without a gradient, of a copy of the storage."""
    base = x.new_empty(0).set_(x.untyped_storage().clone())
    return base.as_strided(x.shape, x.stride(), x.storage_offset())


def viewed(x, *shape):
    """Strides of a tensor and of a view of it, and the view's values, if it is one."""
    y = x.view(*shape)
    return x.stride(), y.stride(), y.tolist(), shares_storage(x, y)


def refused(function, *arguments):
    """True if torch refuses these arguments."""
    try:
        function(*arguments)
    except RuntimeError:
        return True
    return False


@functools.cache
def small_nets(dtype):
    """A net, a net that draws and normalises, and inputs of both."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    noisy = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Dropout(0.5))
    return net.to(dtype), noisy.to(dtype), torch.randn(5, 4).to(dtype)


class Trainer:
    """A small classifier, and what the table does with it by name."""

    def __init__(self, case, *, draws):
        self.net, noisy, self.inputs = small_nets(TORCH_DTYPES[case.dtype])
        self.net = copy.deepcopy(self.net)
        self.noisy = copy.deepcopy(noisy) if draws else None
        self.module = nn.Module()
        self.classes = torch.arange(5) % 3
        self.parameters = [*self.net.parameters()]
        # A parameter of another dtype, whose gradients are 0.
        self.beside = nn.Parameter(torch.zeros(2, dtype=torch.float16))
        self.beside.grad = torch.zeros_like(self.beside)

    def loss(self, through=None):
        return functional.cross_entropy((through or self.net)(self.inputs), self.classes)

    def leave(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.detach()

    def gradients(self):
        return [parameter.grad for parameter in self.parameters]

    def clip(self, clipping, *arguments, **options):
        """The gradients after clipping."""
        self.loss().backward()
        clipping(*arguments, **options)
        return self.gradients()

    def stepped(
        self,
        make,
        by=list,
        zero=lambda optimizer: optimizer.zero_grad(),
        closure=False,
        sparse=None,
        scaler=None,
        adding=False,
        reloading=False,
        **options,
    ):
        """Weights and state after three steps, and whether zeroing frees the gradients."""
        optimizer = make(by(self.parameters), **options)

        def compute():
            zero(optimizer)
            loss = self.loss()
            (scaler.scale(loss) if scaler else loss).backward()
            if sparse:
                self.leave(map(sparse, self.gradients()))
            return loss

        for _ in range(3):
            if closure:
                optimizer.step(compute)
            else:
                compute()
                scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
            if adding:
                optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
            if reloading:
                saved = optimizer.state_dict()
                optimizer = make(by(self.parameters), **options)
                optimizer.load_state_dict(saved)
        state = [optimizer.state[parameter] for parameter in self.parameters]
        held = [weakref.ref(gradient) for gradient in self.gradients()]
        zero(optimizer)
        freed = [gradient() is None for gradient in held]
        return self.parameters, state, freed


def apart(groups, **options):
    """Groups of one parameter each that have these options, behind one that has none."""
    return [{"params": [nn.Parameter(torch.zeros(1))]}] + [
        {"params": [parameter], **options} for parameter in groups
    ]


def in_halves(gradient):
    """A sparse gradient whose every element comes as two that are to be added."""
    half = (gradient / 2).to_sparse()
    both = half.indices().repeat(1, 2), half.values().repeat(2)
    return torch.sparse_coo_tensor(*both, gradient.shape, check_invariants=True)


def norm_of(x, *arguments, **options):
    """The norm that clipping these gradients returns."""
    parameter = nn.Parameter(torch.zeros_like(x))
    parameter.grad = x.clone()
    return nn.utils.clip_grad_norm_([parameter], 1.0, *arguments, **options)


def flops(function):
    """FLOPs of the products of both passes."""

    def both():
        y = function()
        y.backward(torch.ones_like(y))

    return product_flops(both)


def within(context, function, *arguments):
    with context:
        return function(*arguments)


def decorated(context, function, *arguments):
    return context(function)(*arguments)


def seeded(result):
    torch.default_generator.manual_seed(5)
    return result


def put(x, y, place=...):
    with torch.no_grad():
        x[place] = y
    return x


def drawn(draw, seed, own=None):
    """What is drawn after a seed of torch, or of a generator that leaves torch's alone."""
    if own is None:
        torch.default_generator.manual_seed(seed)
        return draw({})
    torch.default_generator.seed()
    before = torch.get_rng_state()
    result = draw({"generator": own.manual_seed(seed)})
    equal(torch.get_rng_state(), before, "the state of torch's own generator")
    return result


def rates(schedule, *arguments, **options):
    """The rates of two groups over some steps."""
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.2}], lr=1.0)
    scheduler = schedule(optimizer, *arguments, **options)
    found = []
    for _ in range(7):
        optimizer.step()
        each = [group["lr"] for group in optimizer.param_groups]
        equal(scheduler.get_last_lr(), each, "get_last_lr()")
        found += each
        scheduler.step()
    return found


def held(module, _=None):
    """That a module holds a parameter `p`, and what it is."""
    assert module.p is module.get_parameter("p")
    assert [*module.state_dict()] == [name for name, _ in module.named_parameters()] == ["p"]
    return module.p.requires_grad, type(module.p) is nn.Parameter, module.p.detach()


def graded(loss, leaf, backward=torch.Tensor.backward):
    """The gradient that a backward pass leaves, taken off again."""
    backward(loss)
    gradient, leaf.grad = leaf.grad, None
    return gradient


def accumulated(leaf, *losses):
    """The gradient that some backward passes leave, taken off again."""
    for loss in losses:
        loss.backward()
    gradient, leaf.grad = leaf.grad.to_dense(), None
    return gradient


def loaded(module):
    """Such a state as a file has that was loaded to the CPU."""
    return {name: torch.ones_like(x, device="cpu") for name, x in module.state_dict().items()}


def windowed(window):
    """A model of one attention layer. Each token sees `window` tokens, or all if it is 0."""
    return Parts(attentions=(AttentionLayers("attention", 4, 8, window=window),))


def rows_of(group):
    """The lists of ways of a group; what goes within a context goes decorated with it, too."""
    rows = [*group.get("rows", [])]
    for name in group.get("names", []):
        module = MODULES.get(name.replace("_", ""))
        ways = [way for way in group["ways"] if module or "{m}" not in way]
        rows.append([way.replace("{m}", module or "").replace("{}", name) for way in ways])
    for row in rows:
        yield row + [way.replace("within", "decorated") for way in row if "within(" in way]


def given(group, case):
    """All names that the ways of a group use."""
    tensors = operands(case, group.get("edges", False))
    for x in tensors.values():
        x.grad = None
    names = globals() | LIBRARIES | tensors
    if "net" in group:
        trainer = Trainer(case, draws=group["net"] == "noisy")
        methods = {name: getattr(trainer, name) for name in dir(trainer) if name[0] != "_"}
        names |= vars(trainer) | methods
    return names


@functools.cache
def code_of(way):
    return compile(way, way, "eval")


class Saved:
    """A tensor that autograd saves, for as long as it does."""

    def __init__(self, tensor):
        self.tensor = tensor


# What torch says where a name, or an option of it, is not there.
LACKING = re.compile("has no attribute|keyword argument|invalid combination of arguments")


class Outcome:
    """What one way of a row gives, and the bytes that autograd keeps for it."""

    def __init__(self, way, group, names):
        if "seeded" in group:
            torch.default_generator.manual_seed(0)
        kept = weakref.WeakSet()

        def keep(x):
            kept.add(saved := Saved(x.detach()))
            return saved

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.tensor)
        around = eval(code_of(group["within"]), names) if "within" in group else nullcontext()
        with hooks, around:
            value = eval(code_of(way), names)
        if "result" in group:
            value = eval(code_of(group["result"]), names | {"_": value})
        self.values = tree_leaves(value)
        self.kept = sum(saved.tensor.nbytes for saved in kept)
        tensors = [each for each in self.values if isinstance(each, torch.Tensor)]
        self.layouts = []
        for x in tensors:
            shares = x.numel() > 0 and shares_storage(x, names["x"])
            taken = 0 if shares else x.untyped_storage().nbytes()
            self.layouts.append((x.dtype, layout_of(x), shares, taken))
        self.gradients = {}
        leaves = [n for n in "xywb" if names[n].requires_grad and re.search(rf"\b{n}\b", way)]
        results = [x for x in tensors if x.grad_fn is not None]
        if leaves and results:
            above = [(torch.arange(x.numel()) % 5).reshape(x.shape).to(x) for x in results]
            inputs = [names[name] for name in leaves]
            found = torch.autograd.grad(results, inputs, above, materialize_grads=True)
            self.gradients = dict(zip(leaves, found, strict=True))


def same_bits(one, other):
    """True if these are equal values, or equal tensors of the same dtype."""
    if type(one) is not type(other):
        return False
    if not isinstance(one, torch.Tensor):
        return one == other
    if (one.dtype, one.layout) != (other.dtype, other.layout):
        return False
    # torch compares no numbers in fp8.
    return torch.equal(*(x.view(torch.uint8) if x.itemsize == 1 else x for x in (one, other)))


def assert_close(got, should, **options):
    """torch's comparison, which takes longer than most ways, where not all bits are the same."""
    if len(got) != len(should) or not all(map(same_bits, got, should)):
        torch.testing.assert_close(got, should, **options)


def assert_one(row, group, case):
    """That all ways of a row give the same for this case."""
    __tracebackhide__ = True
    compare = group.get("compare", "all")
    near = {} if compare == "values" else {"rtol": group.get("rtol", 0), "atol": 0}
    shared = given(group, case)
    first = None
    for way in row:
        names = given(group, case) if "net" in group else shared
        writes = WRITES.match(way)
        if writes:
            dtype = first.values[0].dtype if first else names["x"].dtype
            # Elements that share a place cannot be written one by one.
            if case.layout == "expanded" or not torch.can_cast(dtype, names["x"].dtype):
                continue
            names = names | {name: copied(names[name]) for name in "xywb"}
            shape = first.values[0].shape if first else ()
            names["out"] = torch.zeros(*shape, 2, dtype=dtype)[..., 0]
            target = names["out" if "out=out" in way else "x"]
            place = target.data_ptr()
        try:
            got = Outcome(way, group, names)
        except (AttributeError, TypeError) as error:
            if LACKING.search(str(error)):
                continue
            raise
        first = first or got
        options = {
            "equal_nan": True,
            "check_dtype": not writes,
            "msg": lambda found, way=way: f"{way} [{case}]: {found}",
        }
        if compare != "kind":
            assert_close(got.values, first.values, **near, **options)
            for name in got.gradients.keys() & first.gradients.keys():
                both = [got.gradients[name]], [first.gradients[name]]
                assert_close(*both, **near, **options)
        if writes:
            in_place = got.values[0] is target and target.data_ptr() == place
            assert in_place, f"{way} wrote elsewhere [{case}]"
        elif compare != "values":
            equal(got.layouts, first.layouts, "layouts", way=way, case=case)
            equal(got.kept, first.kept, "bytes kept", way=way, case=case)
    assert first is not None, f"torch has none of {row}"


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")
@pytest.mark.filterwarnings("ignore:.*non-meta parameter:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.claim(*group["claims"]))
        for name, group in GROUPS.items()
    ],
)
def test_all_ways_of_a_row_do_the_same(name):
    group = GROUPS[name]
    cases = cases_of(axes_of(group.get("on", "fp32 | contiguous | few")))
    rows = [*rows_of(group)]
    for row in rows:
        tried = set()
        for case in cases:
            # Each of several rows takes each dtype, layout and size, and starts with another case.
            if len(rows) == 1 or not tried.issuperset(case):
                tried.update(case)
                assert_one(row, group, case)
        cases = [*cases[1:], cases[0]]
