"""The counter: to which pass, module and operator a figure belongs, what is recomputed, and the limits of the counter.

What each operator costs is the subject of test_operators.py, the bytes it moves of test_tensors.py.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accounting import counted
from accounting.counted import operators, rules
from accounting.flops import linear_flops, matmul_flops
from meta_tests.accounting.counted.counting import a, b, flops_of, net, products, square
from test_claims.oracles import scalars

# --- what a figure belongs to -----------------------------------------------------------------------------------------


def test_a_whole_step_of_a_net_costs_what_its_numbers_do() -> None:
    matrices = [torch.randint(-3, 4, shape).float() for shape in ((3, 4), (4, 5), (5, 2))]
    definition = scalars.Net.of(matrices)
    data = torch.randint(-3, 4, (6, 3)).float()
    rows = [[definition.node(value, needs_gradient=False) for value in row] for row in data.tolist()]
    definition.run(rows, torch.ones(6, 2))
    layers = [matrix.clone().requires_grad_() for matrix in matrices]
    count = flops_of(lambda: (data @ layers[0] @ layers[1] @ layers[2]).sum().backward())
    backward = definition.weight_gradient.flops + definition.input_gradient.flops
    assert count.forward == definition.forward.flops, f"{count}, but should be {definition.forward.flops} forward"
    assert count.backward == backward, f"{count}, but should be {backward} backward"


def test_nested_counts_each_count_all_that_happens_within() -> None:
    with counted.flops() as outer:
        a @ b
        with counted.flops() as inner:
            net()(torch.randn(2, 3)).sum().backward()
    alone = flops_of(lambda: net()(torch.randn(2, 3)).sum().backward())
    assert inner.by_module() == alone.by_module(), f"{inner.by_module()}, but alone it is {alone.by_module()}"
    assert outer.total == 120 + alone.total, f"{outer}, but should be {120 + alone.total}"
    row = flops_of(lambda: a[:1] @ b)
    assert row.total == matmul_flops(1, *b.shape), f"{row}, but should be {matmul_flops(1, *b.shape)}"


# --- recomputation: model FLOPs and executed FLOPs --------------------------------------------------------------------


@pytest.mark.parametrize("retain_graph", [False, True])
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_recomputes_is_its_own_figure(reentrant: bool, retain_graph: bool) -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)
    plain = flops_of(lambda: layers(data).sum().backward())
    with set_checkpoint_early_stop(False):
        count = flops_of(
            lambda: checkpoint(layers, data, use_reentrant=reentrant).sum().backward(retain_graph=retain_graph)
        )
    assert count.recomputed == plain.forward, f"{count}, but should recompute {plain.forward}"
    assert count.forward == plain.forward, f"{count}, but should be {plain.forward} forward"
    assert count.backward == plain.backward + plain.forward, f"{count}, but plain is {plain}"
    assert count.model == plain.model == plain.total, f"{count.model=}, but should be {plain.total}"
    assert count.total == count.model + count.recomputed, f"{count}"
    assert products(count.by_operator("recomputed")) == products(plain.by_operator("forward"))


def test_early_stop_recomputes_no_further_than_the_last_tensor_that_was_saved() -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)
    count = flops_of(lambda: checkpoint(layers, data, use_reentrant=False).sum().backward())
    assert count.recomputed == linear_flops(2, 3, 4), f"{count}, but the last layer's output was not saved"


def test_nothing_is_recomputed_without_checkpointing() -> None:
    data = torch.randn(2, 3, requires_grad=True)
    count = flops_of(lambda: net()(data).sum().backward(retain_graph=True))
    assert count.recomputed == 0, f"{count}, but nothing runs twice"


def test_a_second_derivative_is_no_recomputation() -> None:
    def penalty() -> None:
        data = torch.randn(2, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(net()(data).square().sum(), data, create_graph=True)
        gradient.square().sum().backward()

    def force(data: Tensor) -> Tensor:
        return torch.autograd.grad(net()(data).square().sum(), data, create_graph=True)[0]

    count = flops_of(lambda: checkpoint(force, torch.randn(2, 3, requires_grad=True), use_reentrant=False))
    assert count.recomputed == count.forward < count.backward, f"{count}, but what the checkpoint dropped runs again"
    count = flops_of(penalty)
    assert count.recomputed == 0, f"{count}, but nothing runs twice"
    assert count.backward > 2 * count.forward, f"{count}, but should hold two backward passes"


def test_what_is_recomputed_for_a_second_derivative_is_recognised() -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)

    def penalty() -> None:
        out = checkpoint(layers, data, use_reentrant=False).square().sum()
        torch.autograd.grad(out, data, create_graph=True)

    count = flops_of(penalty)
    first, second = linear_flops(2, 3, 4), linear_flops(2, 4, 5)
    assert count.recomputed == first, f"{count}, but the first layer is recomputed"
    assert count.model == 2 * (first + second), f"{count}, but each product has the gradient of its input alone"


class OwnCheckpoint(torch.autograd.Function):
    """Activation checkpointing as other libraries write it for themselves."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.run(x)
        torch.autograd.backward(out, grad)
        return None, x.grad


@pytest.mark.parametrize("retain_graph", [False, True])
def test_recomputation_by_another_library_is_recognised_unless_the_graph_is_retained(retain_graph: bool) -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)
    count = flops_of(lambda: OwnCheckpoint.apply(layers, data).sum().backward(retain_graph=retain_graph))
    should = 0 if retain_graph else count.forward
    assert count.recomputed == should, f"{count}, but should recompute {should}"
    assert count.backward == 3 * count.forward, f"{count}, but its place in the backward pass should be seen"


def test_what_is_recomputed_without_gradients_counts_as_backward() -> None:
    def frozen_part(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = (square @ square).sum()
        return (x * scale).exp()

    data = torch.zeros(4, requires_grad=True)
    count = flops_of(lambda: checkpoint(frozen_part, data, use_reentrant=True).sum().backward())
    product = matmul_flops(4, 4, 4)
    assert (count.backward, count.recomputed) == (product, 0), f"{count}, but the domain of the counter ends here"


# --- compiled, autocast, on other devices -----------------------------------------------------------------------------


class Graphs:
    """A backend of torch.compile without a compiler that counts the runs of what was compiled."""

    runs = 0

    def __call__(self, module: torch.fx.GraphModule, _examples: list[Tensor]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.runs += 1
            return module.forward(*arguments)

        return run


@pytest.mark.filterwarnings("ignore")  # of torch.compile's own modules
@pytest.mark.parametrize("warm", [False, True], ids=["first called within", "called before"])
def test_a_compiled_function_is_counted_uncompiled_and_runs_compiled_afterwards(warm: bool) -> None:
    layers, data, graphs = net(), torch.randn(2, 3, requires_grad=True), Graphs()
    torch._dynamo.reset()
    compiled = torch.compile(layers, backend=graphs)
    if warm:
        compiled(data)
    before = graphs.runs
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* global hooks on modules")  # which are the counter's own
        count = flops_of(lambda: compiled(data).sum().backward())
    plain = flops_of(lambda: layers(data).sum().backward())
    assert (count.forward, count.backward) == (plain.forward, plain.backward), f"{count}, but should be {plain}"
    assert graphs.runs == before, "beneath the counter it should run uncompiled"
    with pytest.warns(UserWarning, match="the user's own"), counted.flops():
        warnings.warn("the user's own", stacklevel=1)
    compiled(data)
    assert graphs.runs == before + 1, "after the block it should run compiled"


@pytest.mark.filterwarnings("ignore")
def test_checkpointing_within_a_compiled_function_is_recognised() -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)
    compiled = torch.compile(lambda x: checkpoint(layers, x, use_reentrant=False).sum(), backend=Graphs())
    count = flops_of(lambda: compiled(data).backward())
    assert count.recomputed == linear_flops(2, 3, 4), f"{count}, but the first layer is recomputed"


@pytest.mark.filterwarnings("ignore")
def test_only_the_backward_pass_of_what_was_compiled_before_is_seen_compiled() -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)
    out = torch.compile(layers, backend="aot_eager")(data).sum()
    count = flops_of(out.backward)
    plain = flops_of(lambda: layers(data).sum().backward())
    assert (count.forward, count.backward) == (0, plain.backward), f"{count}, but should be {plain.backward} backward"


def test_autocast_changes_the_bytes_and_not_the_flops() -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)

    def step(enabled: bool) -> Callable[[], None]:
        def act() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                out = checkpoint(layers, data, use_reentrant=False)
            out.sum().backward()

        return act

    plain, cast = flops_of(step(False)), flops_of(step(True))
    assert cast.step == plain.step, f"{cast.step}, but should be {plain.step}"
    products_of = (plain.by_operator("forward")["aten.addmm"], cast.by_operator("forward")["aten.addmm"])
    assert products_of[0].moved_bytes == 2 * products_of[1].moved_bytes, f"{products_of}, but should move half"
    assert "aten._to_copy" in cast.by_operator(), f"{cast.by_operator()} should have the casts"
    assert not cast.unknown, f"unknown: {cast.unknown}"


def step_on(device: torch.device | str) -> Callable[[], None]:
    with torch.device(device):
        layers = nn.Sequential(nn.Conv1d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    return lambda: layers(torch.empty(2, 4, 6, device=device)).sum().backward()


def test_the_meta_device_costs_the_same_and_holds_nothing() -> None:
    on_cpu, on_meta = flops_of(step_on("cpu")), flops_of(step_on("meta"))
    assert on_meta.by_operator() == on_cpu.by_operator(), f"{on_meta.by_operator()}, on the CPU {on_cpu.by_operator()}"


@pytest.mark.parametrize("outside", [True, False], ids=["count in fake mode", "fake mode in count"])
def test_fake_tensors_cost_the_same(outside: bool) -> None:
    on_cpu = flops_of(step_on("cpu"))
    if outside:
        with FakeTensorMode(), counted.flops() as count:
            step_on("cpu")()
    else:
        with counted.flops() as count, FakeTensorMode():
            step_on("cpu")()
    assert count.step == on_cpu.step, f"{count}, but real tensors cost {on_cpu}"


@pytest.mark.needs("cuda")
def test_cuda_costs_the_same_and_recognises_what_its_own_threads_recompute(device: torch.device) -> None:
    on_cpu, on_cuda = flops_of(step_on("cpu")), flops_of(step_on(device))
    assert on_cuda.step == on_cpu.step, f"{on_cuda}, but on the CPU {on_cpu}"
    layers, data = net().to(device), torch.randn(2, 3, device=device, requires_grad=True)
    count = flops_of(lambda: checkpoint(layers, data, use_reentrant=False).sum().backward())
    assert count.recomputed == linear_flops(2, 3, 4), f"{count}, but the first layer is recomputed"


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_whole_transformer_layer_leaves_no_operator_unknown() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    optimizer = torch.optim.AdamW(layer.parameters())

    def step() -> None:
        nn.functional.cross_entropy(layer(torch.randn(2, 5, 16)).flatten(0, 1), torch.arange(10)).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    count = flops_of(step)
    assert not count.unknown, f"unknown: {count.unknown}"


@pytest.mark.skipif(torch.__version__ < "2.7", reason="before torch 2.7 no mode is handed higher-order operators")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("predicate", "flops"), [(True, 256), (False, 128)])
def test_only_the_branch_that_a_condition_takes_is_counted(predicate: bool, flops: int) -> None:
    count = flops_of(lambda: torch.cond(torch.tensor(predicate), lambda x: x @ x @ x, lambda x: x @ x, (square,)))
    assert count.total == flops, f"{count}, but should be {flops}"


def test_what_other_threads_and_numpy_do_is_not_seen() -> None:
    def act() -> None:
        thread = threading.Thread(target=lambda: a @ b)
        thread.start()
        thread.join()
        a.numpy() @ b.numpy()

    count = flops_of(act)
    assert count.total == 0, f"{count}, but neither should be seen"


def test_work_inside_a_fused_product_is_not_elementwise() -> None:
    lstm, tokens = nn.LSTM(3, 5), torch.randn(4, 2, 3)
    count = flops_of(lambda: lstm(tokens))
    assert count.total > 0, f"{count} should have its products"
    assert count.elementwise < 4 * 2 * 5, f"{count}, but the gates of the fused layer should not be seen"


def test_a_wrong_operator_formula_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES", {})
    monkeypatch.delitem(operators.OPERATORS, "aten.mv")
    operators.operator("aten.mv")(lambda out, a, x: 7)
    count = flops_of(lambda: a @ a[0])
    assert count.total == 7, f"{count}, but the formula of an operator is not checked by counting"


def test_what_is_not_counted_itself_gets_all_its_arguments() -> None:
    with counted.flops(), torch.inference_mode():
        empty = torch.empty_like(torch.ones(3), dtype=torch.int8)
        norm = torch.linalg.norm(torch.ones(3), dtype=torch.float64)  # a name for other operators
    assert (empty.dtype, norm.dtype) == (torch.int8, torch.float64)


def test_what_was_counted_within_an_error_is_kept_and_the_next_count_is_right() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), counted.flops() as count:
        a @ b @ b
    assert count.total == 120, f"{count}, but should be 120"
    assert flops_of(lambda: a @ b).total == 120


def test_counting_does_not_import_torchs_compiler() -> None:
    if "torch._dynamo" in sys.modules:
        pytest.skip("another test has compiled something")
    flops_of(lambda: a @ b)
    assert "torch._dynamo" not in sys.modules, "its import takes a second"
