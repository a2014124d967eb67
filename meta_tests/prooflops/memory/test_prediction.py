"""Predicted bytes beside measured ones and the formulas, and where prediction ends."""

import sys
from copy import deepcopy
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accounting import memory
from accounting.models import GPT2_SMALL, LLAMA3_8B
from meta_tests.prooflops.memory.predicting import (
    LONG_NETS,
    OPTIMIZERS,
    PLAIN,
    MasterWeights,
    assert_alike,
    both,
    built,
    fewer,
    next_token_loss,
)
from prooflops.memory import (
    TrainingStep,
    known_outputs,
    predicted_memory,
    repetition,
    without_compiler,
)
from prooflops.memory.allocations import measured_memory
from prooflops.timing import one_thread


@fewer
@given(
    preset=st.sampled_from([GPT2_SMALL, LLAMA3_8B]),
    batch=st.integers(2, 4),
    sequence=st.integers(8, 40),
    checkpoint_every=st.integers(0, 2),
    micro_batches=st.integers(1, 2),
    optimizer=st.sampled_from(PLAIN),
)
def test_transformers_are_predicted(
    workloads, preset, batch, sequence, checkpoint_every, micro_batches, optimizer
):
    build = partial(built, workloads, workloads.reduced(preset, layers=2), checkpoint_every)
    tokens = torch.zeros(batch, sequence, dtype=torch.long)
    options = {"optimizer": optimizer, "loss": next_token_loss, "micro_batches": micro_batches}
    assert_alike(*both(build, tokens, **options), least_share=0.99)


@fewer
@given(
    width=st.integers(1, 300),
    hidden=st.integers(1, 300),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    shape=st.tuples(st.integers(2, 9), st.integers(1, 9)),
)
def test_an_lstm_of_onednn_is_predicted(width, hidden, layers, bidirectional, shape):
    build = partial(nn.LSTM, width, hidden, layers, bidirectional=bidirectional)
    batch = torch.zeros(*shape, width)
    assert_alike(*both(build, batch, optimizer="momentum foreach", loss=first_of), least_share=0.4)


@pytest.mark.parametrize("name", LONG_NETS)
def test_a_long_net_holds_what_is_predicted_and_peaks_no_lower(name):
    net = LONG_NETS[name]
    assert_alike(*both(net.build, net.batch(), **net.options), least_share=0.7)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", LONG_NETS)
def test_what_is_known_of_outputs_and_passes_is_what_running_them_finds(name, device, monkeypatch):
    net = LONG_NETS[name]
    options = {"loss": torch.mean, **net.options, "device": device}
    chosen = options.get("optimizer", "adamw fused")
    options["optimizer"] = OPTIMIZERS.get(chosen, chosen)
    step = TrainingStep(net.build, net.batch(), **options)
    found = step.predict()
    monkeypatch.setattr(known_outputs, "_follows_from_layouts", lambda _: False)
    monkeypatch.setattr(known_outputs, "_is_number_or_empty", lambda _: False)
    monkeypatch.setattr(repetition.Repetition, "is_exact", lambda _: False)
    run = step.predict()
    assert run.phases == found.phases
    assert run.unknown == found.unknown


class Changing(nn.Linear):
    """Does in its second pass, by a method named `way`, another thing than in its first."""

    def __init__(self, way):
        super().__init__(64, 64)
        self.way = way
        self.calls = 0
        self.kept = torch.ones(64, 64)

    def forward(self, x):
        return super().forward(getattr(self, self.way)(x))

    def counts_its_calls(self, x):
        self.calls += 1
        return x.exp().exp().exp() if self.calls == 1 else x

    def keeps_its_output(self, x):
        self.kept = x.exp()
        return self.kept

    def frees_a_tensor(self, x):
        self.kept = None
        return x

    def makes_a_tensor_once(self, x):
        if self.kept.shape != x.shape:
            self.kept = torch.ones_like(x)
        return x * self.kept

    def stays_the_same(self, x):
        return x


class Dropping(torch.optim.SGD):
    """Drops the gradients at the end of its step."""

    def step(self, closure=None):
        super().step(closure)
        self.zero_grad()


CHANGES = {
    "counts_its_calls": "momentum foreach",
    "keeps_its_output": "momentum foreach",
    "frees_a_tensor": "momentum foreach",
    "makes_a_tensor_once": "momentum foreach",
    "stays_the_same": partial(Dropping, momentum=0.9),
}


@pytest.mark.parametrize("way", CHANGES)
def test_a_second_step_that_differs_from_the_first_is_predicted(way):
    build, batch = partial(Changing, way), torch.ones(512, 64)
    assert_alike(*both(build, batch, optimizer=CHANGES[way]), least_share=0.9)


def test_an_operator_of_the_users_is_asked_each_time_and_a_number_keeps_its_value():
    """The layouts of the operands do not say what either makes."""
    grow = torch.library.custom_op(
        "meta_tests::grow", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    sizes = iter(range(3))
    grow.register_fake(lambda x: x.new_empty(next(sizes)))
    with predicted_memory():
        x = torch.empty((), dtype=torch.long)
        assert [grow(x).numel() for _ in range(3)] == [0, 1, 2]
        x.add(1)
        assert torch.tensor(3).add(1).item() == 4


@pytest.mark.parametrize("number", [True, 3, 0.5, 2j])
def test_a_product_keeps_its_number_until_its_node_is_gone(number):
    def held_by(memory):
        with memory("cpu") as held:
            out = torch.ones(8, requires_grad=True) * number
            held.mark("product")
            del out
        return held.phases["product"].live_bytes, held.live_bytes

    assert held_by(predicted_memory) == held_by(measured_memory)


def strided(shape, stride, offset=0, dtype=torch.float32):
    return torch.zeros(64, dtype=dtype).as_strided(shape, stride, offset)


# Operands that differ in one thing.
OPERANDS = {
    "rows": lambda: torch.zeros(4, 4),
    "columns": lambda: strided((4, 4), (1, 4)),
    "rows from the second on": lambda: strided((4, 4), (4, 1), offset=4),
    "a row more": lambda: strided((5, 4), (4, 1)),
    "complex": lambda: strided((4, 4), (4, 1), dtype=torch.cfloat),
    "conjugated": lambda: strided((4, 4), (4, 1), dtype=torch.cfloat).conj(),
    "negated": lambda: torch._neg_view(strided((4, 4), (4, 1))),
    "bools": lambda: strided((4, 4), (4, 1), dtype=torch.bool),
    "integers": lambda: strided((4, 4), (4, 1), dtype=torch.long),
}
# Calls that differ in one argument.
CALLS = {
    "plus True": lambda x: x + True,
    "plus 1": lambda x: x + 1,
    "plus 1.0": lambda x: x + 1.0,
    "plus itself": lambda x: x.add_(x),
    "to half": lambda x: torch.empty_like(x, dtype=torch.half, memory_format=torch.preserve_format),
    "to half by rows": lambda x: torch.empty_like(
        x, dtype=torch.half, memory_format=torch.contiguous_format
    ),
    "itself transposed": lambda x: x.t(),
    "from an offset": lambda x: x.as_strided((2, 2), (2, 1), 3),
    "half of the columns": lambda x: x[:, 2:],
    "two": lambda x: torch.cat([x, x]),
    "three": lambda x: torch.cat([x, x, x]),
    "by rows": lambda x: x[torch.zeros(2, dtype=torch.long)],
    "by columns": lambda x: x[:, torch.zeros(2, dtype=torch.long)],
    "sorted": lambda x: x.real.sort(),
    "others": lambda x: (torch.tensor([1.0, 2.0]), torch.tensor(3.0)),
    "parts": lambda x: x.split([1, 3], 1),
}


def layouts():
    """How each output of each call lies, and whether it is or shares the operand."""
    found = {}
    for (name, call), (kind, made) in product(CALLS.items(), OPERANDS.items()):
        x = made()
        try:
            out = call(x)
        except RuntimeError:
            continue
        for place, each in enumerate(out if isinstance(out, tuple) else [out]):
            storage, given = each.untyped_storage(), x.untyped_storage()
            lies = [each.shape, each.stride(), each.storage_offset(), each.dtype]
            marks = [each.is_conj(), each.is_neg(), each is x, storage._cdata == given._cdata]
            found[name, kind, place] = [*lies, *marks, storage.nbytes()]
    return found


class WrittenOnce(dict):
    """Refuses to learn what it knows."""

    def __setitem__(self, key, value):
        assert key not in self
        super().__setitem__(key, value)


def test_a_call_has_the_layout_that_torch_gives_it_whatever_was_called_before(monkeypatch, request):
    known = WrittenOnce()
    monkeypatch.setattr(known_outputs, "_KNOWN", known)
    request.addfinalizer(partial(torch.set_default_dtype, torch.get_default_dtype()))
    for dtype in [torch.float32, torch.double] * 2:
        torch.set_default_dtype(dtype)
        should = layouts()
        with predicted_memory():
            assert layouts() == should
    aten = torch.ops.aten
    assert {key[0] for key in known} >= {aten.add.Tensor, aten.cat.default, aten.sort.default}


COMPILER = """
import sys
name = "it"

def keeps_its_frame():
    frame = sys._getframe()

keeps_its_frame()
"""


def test_an_import_of_the_compiler_within_the_block_keeps_no_tensor(tmp_path, monkeypatch):
    """As torch.fx does: it left what a checkpoint held to the end of the first prediction."""
    (tmp_path / "compiler.py").write_text(COMPILER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(without_compiler, "COMPILER", "compiler")
    with predicted_memory() as held:

        def asks_the_compiler():
            kept = torch.ones(25)
            assert sys.modules["compiler"].name == "it", kept

        asks_the_compiler()
    assert (held.live_bytes, held.peak_bytes) == (0, 100)


def test_each_phase_leaves_bytes_of_its_class():
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
    step = TrainingStep(
        net, torch.empty(32, 64), torch.mean, optimizer=OPTIMIZERS["adamw fused"]
    ).predict()
    parameters = 4 * sum(tensor.numel() for tensor in net.parameters())
    held = {
        "parameters": parameters,
        "buffers": sum(tensor.nbytes for tensor in net.buffers()),
        "inputs": 32 * 64 * 4,
    }
    state = {"optimizer state": 2 * parameters + 4 * 6}
    # Outputs of the first two layers that matter, statistics, loss.
    saved = 4 * 32 * 64 * 2 + 2 * 4 * 64 + 4
    assert step.phases["optimizer"].live_by_class == held
    assert step.phases["forward"].live_by_class == {**held, "activations": saved}
    assert step.phases["backward"].live_by_class == {**held, "gradients": parameters}
    assert step.phases["second step"].live_by_class == {**held, "gradients": parameters, **state}
    assert step.phases["zero_grad"].live_by_class == {**held, **state}


# torch warns of it where the block's flags are entered.
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@one_thread()
def test_master_weights_are_held_as_predicted_and_as_the_formula_says():
    net = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8)).bfloat16()
    batch = torch.ones(32, 64, dtype=torch.bfloat16)
    step = TrainingStep(partial(deepcopy, net), batch, torch.mean, optimizer=MasterWeights)
    guess = step.predict()
    # Where the CPU multiplies bf16, oneDNN's scratch is larger than these layers.
    with torch.backends.mkldnn.flags(enabled=False):
        measured = step.measure()
    assert_alike(guess, measured, least_share=0.7)
    held = guess.phases["second step"].live_by_class
    sizes = [each.numel() for each in net.parameters()]
    state = memory.model_state(sum(sizes), "adamw", "bf16-fp32-master", tensors=len(sizes))
    should = {
        "parameters": state.parameters,
        "gradients": state.gradients,
        "optimizer state": state.state + state.master,
    }
    assert held == should | {"inputs": batch.nbytes}


def test_a_block_that_hands_values_to_numpy_is_refused():
    with (
        pytest.raises(RuntimeError, match=r"the block reads values, .*: \.numpy\(\)"),
        predicted_memory(),
    ):
        torch.ones(3).numpy()


def first_rows(net):
    """The net with as many of its rows as it has numbers above zero."""
    net.register_forward_hook(lambda module, given, out: out[: int((out > 0).sum().item())])
    return net


def test_a_real_tensor_in_the_block_is_refused_and_another_error_passes():
    real = torch.ones(3)
    with (
        pytest.raises(RuntimeError, match="the block mixes a real tensor with fake ones"),
        predicted_memory(),
    ):
        torch.ones(3) + real
    with pytest.raises(AssertionError, match=r"^too few$"), predicted_memory():
        raise AssertionError("too few")


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("optimizer", PLAIN)
def test_requested_bytes_on_cuda_are_exact_and_charges_within_their_bounds(workloads, optimizer):
    given = {
        "loss": lambda logits: logits.float().mean(),
        "optimizer": OPTIMIZERS[optimizer],
        "device": "cuda",
    }
    build = partial(built, workloads, workloads.reduced(LLAMA3_8B))
    batch = torch.zeros(2, 32, dtype=torch.long)
    step = TrainingStep(build, batch, **given)
    # The first step makes cuBLAS allocate its workspace.
    step.measure()
    guess = step.predict(workspaces=False)
    held = step.measure()
    for name, real in held.phases.items():
        ours = guess.phases[name]
        assert ours.live_bytes == real.live_bytes, name
        assert abs(ours.charged_live_bytes / real.charged_live_bytes - 1) < 0.02, name


class Sparsely(nn.Module):
    """Makes a sparse tensor in its forward pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.sparse_coo_tensor(torch.zeros(2, 3, dtype=torch.long), self.linear(x)[0, :3])


def first_of(out):
    return out[0].sum()


tokens = torch.zeros(8, 4, dtype=torch.long)
REFUSED = {
    "reads values": (
        lambda: first_rows(nn.Linear(4, 4)),
        torch.empty(8, 4),
        "^the block reads values, and fake tensors have none: aten",
    ),
    "compiled": (
        lambda: torch.compile(nn.Linear(4, 4)),
        torch.empty(8, 4),
        "^the OptimizedModule is compiled, and only the compiler",
    ),
    "sparse gradients": (
        partial(nn.Embedding, 9, 4, sparse=True),
        tokens,
        r"^aten\.\S+ makes a sparse tensor .*sparse=False",
    ),
    "sparse gradients of bags": (
        partial(nn.EmbeddingBag, 9, 4, sparse=True),
        tokens,
        r"^aten\.\S+ makes a sparse tensor .*sparse=False",
    ),
    "reads a tensor's memory": (
        Sparsely,
        torch.zeros(8, 4),
        r"operator after aten\..* reads a tensor's memory",
    ),
    "recurrent on cuda": (
        partial(nn.LSTM, 4, 4),
        torch.empty(8, 2, 4),
        r"^what aten\.\S+ keeps .* is unknown: only cuDNN knows its reserve space",
    ),
}


# Torch's compiler warns of itself as it is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_predicted_is_refused_by_name(name):
    build, batch, message = REFUSED[name]
    step = TrainingStep(build, batch, first_of, device="cuda" if "cuda" in name else "cpu")
    with pytest.raises((RuntimeError, TypeError), match=message):
        step.predict()


def test_on_the_cpu_a_peak_is_a_lower_bound_and_says_so():
    with predicted_memory("cpu") as held:
        kept = torch.ones(8)
        assert str(kept.nbytes) not in repr(held)
    assert held.unknown == []
    assert held.is_lower_bound
    assert f"live_bytes={kept.nbytes}, peak_bytes=≥ {kept.nbytes}" in repr(held)
