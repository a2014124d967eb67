"""`prooflops.model_report` gives the page's figures of a module, and leaves it as it is."""

import copy
import importlib.util
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import prooflops
from prooflops.model.flop_difference import ACTIVATIONS, FROZEN, INPUT_GRADIENT
from prooflops.model.summary import main_causes
from prooflops.model.tree import tree_of

WIDTH, HIDDEN, BATCH = 8, 32, 16
LAYER = WIDTH * HIDDEN
# Multiply-adds of a layer of width 100 for 3 examples.
LAYER_OF_100 = 3 * 100 * 100


def network():
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN, bias=False), nn.Dropout(), nn.Linear(HIDDEN, WIDTH, bias=False)
    )


def test_text_notebook_and_page_have_the_figures_of_two_linear_layers(tmp_path):
    report = prooflops.model_report(
        network(), torch.randn(BATCH, WIDTH), partial(torch.optim.SGD, lr=0.1), measure=True
    )
    assert report.parameters == report.trained == 2 * LAYER
    assert report.flops_forward == report.rule_2nd == 2 * BATCH * 2 * LAYER
    # The first layer's input needs no gradient.
    assert report.flops_step == report.rule_6nd - 2 * BATCH * LAYER
    predicted, measured = report.predicted_peak_bytes, report.measured_peak_bytes
    assert 0.9 * measured < predicted <= measured, report.examination.memory
    for form in ("html", "md", "JSON"):
        page = tmp_path / "sub" / "folder" / f"page.{form}"
        report.save(page)
        assert "measured on a copy of the module" in page.read_text()
    assert json.loads(page.read_text())["flops"]["forward"] == report.flops_forward
    for wrong in ("page.pdf", "page", tmp_path):
        with pytest.raises(ValueError, match=r"path must end in \.html, \.md, \.json, got '.*'"):
            report.save(wrong)
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!')
    assert report.to_dict()["flops"]["forward"] == report.flops_forward
    if importlib.util.find_spec("pandas"):
        assert report.to_dataframe().loc["2", "forward_flops"] == 2 * BATCH * LAYER


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_page_about_a_card_is_saved_where_there_is_none(tmp_path, where):
    with torch.device(where):
        net, batch = network(), torch.ones(BATCH, WIDTH)
    report = prooflops.model_report(net, batch, device="H100 SXM")
    for form in ("html", "md", "json"):
        page = tmp_path / f"page.{form}"
        report.save(page)
        assert "H100" in page.read_text()


def test_without_pandas_a_table_is_refused_with_what_to_do(monkeypatch):
    report = prooflops.model_report(network(), torch.randn(BATCH, WIDTH))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas, which is not installed: .* to_dict\(\)"):
        report.to_dataframe()


# Twelve layers of 40 GB, more than any machine of ours has.
WIDE = 100_000
NOTHING_IS_RUN = f"""
import sys
import torch, prooflops
from torch import nn

with torch.device("meta"):
    net = nn.Sequential(*(nn.Linear({WIDE}, {WIDE}, bias=False) for _ in range(12)))
report = prooflops.model_report(net, torch.empty(1, {WIDE}, device="meta"))
assert "torch._dynamo" not in sys.modules, "the compiler is imported"
print(report.flops_forward, report.predicted_peak_bytes > 16 * report.parameters)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_a_report_runs_nothing_and_imports_no_compiler():
    said = subprocess.run(
        [sys.executable, "-c", NOTHING_IS_RUN], capture_output=True, text=True, check=False
    )
    assert said.stdout.split() == [str(2 * 12 * WIDE**2), "True", "2.0"], said.stderr


def test_activations_and_gradients_at_the_peak_are_named_on_any_device():
    net, batch = network().eval(), torch.randn(4096, WIDTH)
    for device in ("cpu", "meta"):
        report = prooflops.model_report(net.to(device), batch.to(device))
        at_peak = report.examination.memory.at_peak
        # The hidden layer, which the backward pass needs.
        assert at_peak["activations"] >= 4 * 4096 * HIDDEN, device
        assert at_peak["gradients"] == 4 * LAYER, device


def test_what_reads_values_is_refused_with_what_to_do():
    reading = nn.Sequential(nn.Linear(WIDTH, 1))
    reading.register_forward_hook(lambda *_: _[-1].sum().item() or None)
    what = "a step cannot be counted without running it: .* reads values, .* measure=True runs"
    with pytest.raises(ValueError, match=what):
        prooflops.model_report(reading, torch.randn(BATCH, WIDTH))


def test_equal_siblings_share_a_line_and_empty_containers_have_none():
    layers = [nn.Sequential(linear(), nn.Tanh()) for _ in range(5)]
    layers[4][0].requires_grad_(False)
    net = nn.Sequential(nn.Sequential(*layers))
    net.spare = nn.ModuleDict({"unused": nn.ModuleList()})
    net.forward = net[0].forward
    report = prooflops.model_report(net, torch.randn(3, 100, requires_grad=True))
    [stack] = tree_of(report.examination.breakdown).parts
    assert [(each.title, len(each.parts)) for each in stack.parts] == [
        ("0-3 × 4 Sequential", 2),
        ("4 Sequential", 2),
    ]
    assert [line.split()[0] for line in report.tree(1).splitlines()[2:]] == ["Sequential", "0"]
    assert max(map(len, report.tree().splitlines())) <= 80
    again = nn.Sequential(*(nn.Sequential(nn.Tanh(), linear()) for _ in range(3)))
    tree = prooflops.model_report(again, torch.randn(3, 100)).tree()
    assert [line.split()[0] for line in tree.splitlines()[3:]] == ["0", "0", "1", "1-2"], tree
    long = replace(stack.parts[0], name="gate_proj-up_proj")
    assert long.title_within(14) == "gate_proj… × 4", "the count stays"
    assert [each.row.trained for each in stack.parts] == [100 * 101, 0]


def test_the_two_largest_causes_of_a_difference_are_named():
    """The layer behind a frozen one needs no gradient of its input, and the frozen one none."""
    net = nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(2)))
    net[0].requires_grad_(False)
    flops = prooflops.model_report(net, torch.randn(3, 100)).examination.flops
    once = 2 * LAYER_OF_100
    assert main_causes(flops, "step") == [(FROZEN, 2 * once), (INPUT_GRADIENT, once)]


@pytest.mark.parametrize("measure", [False, True])
def test_module_gradients_and_generators_stay_as_they_are(measure):
    module = network().eval()
    inputs = torch.randn(BATCH, WIDTH, requires_grad=True)
    module[0].weight.grad = torch.ones(HIDDEN, WIDTH)
    before = copy.deepcopy(module.state_dict())
    generators = (torch.get_rng_state(), random.getstate())
    prooflops.model_report(
        module,
        inputs,
        "Adam",
        loss=lambda output: output.square().mean() * random.random(),
        measure=measure,
    )
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(module[0].weight.grad, torch.ones(HIDDEN, WIDTH))
    assert module[2].weight.grad is inputs.grad is None
    assert not module.training
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]


def test_a_loss_that_names_the_modules_parameters_steps_the_copy():
    net = nn.Linear(WIDTH, HIDDEN, bias=False)
    penalty = lambda output: output.mean() + net.weight.square().sum()  # noqa: E731
    report = prooflops.model_report(net, torch.randn(BATCH, WIDTH), "SGD", penalty, measure=True)
    assert net.weight.grad is None
    assert report.examination.memory.row("gradients").measured_bytes == 4 * LAYER
    predicted, measured = report.predicted_peak_bytes, report.measured_peak_bytes
    assert 0.9 * measured < predicted <= measured


class Reader(nn.Linear):
    """Adds its last output to its input, as a reader of a stream does."""

    state = None

    def forward(self, x):
        out = super().forward(x if self.state is None else x + self.state)
        self.state = out.detach()
        return out


def test_a_module_that_keeps_an_output_holds_what_is_measured():
    report = prooflops.model_report(Reader(64, 64), torch.ones(512, 64), "SGD", measure=True)
    held = {row.name: row for row in report.examination.memory.rows}
    for name in ("parameters, buffers, inputs", "gradients", "kept for the backward pass"):
        assert held[name].predicted_bytes == held[name].measured_bytes, held[name]
    assert 0.9 * report.measured_peak_bytes < report.predicted_peak_bytes
    assert report.predicted_peak_bytes <= report.measured_peak_bytes


def linear():
    return nn.Linear(100, 100)


def parents_of_one():
    shared = linear()
    return nn.Sequential(*(nn.Sequential(shared, nn.Tanh()) for _ in range(3)))


class Listing(nn.Module):
    """Runs a list of modules, of which its child has one as well."""

    def __init__(self):
        super().__init__()
        shared = linear()
        self.child = nn.Sequential(shared, nn.Tanh())
        self.listed = nn.ModuleList([shared, linear()])

    def forward(self, x):
        for each in (self.child, *self.listed):
            x = each(x)
        return x


def with_a_forward_of_its_own():
    """As `torch.compile` makes one: its class has no forward."""
    holder = nn.Module()
    holder.shared = linear()
    holder.forward = holder.shared.__call__
    return nn.Sequential(holder, nn.Tanh(), holder.shared)


class Borrowing(nn.Module):
    """Runs a module that is an argument."""

    def __init__(self):
        super().__init__()
        self.own = linear()

    def forward(self, x, borrowed):
        return borrowed(self.own(x))


class Lending(nn.Module):
    def __init__(self):
        super().__init__()
        self.borrowed = linear()
        self.child = Borrowing()

    def forward(self, x):
        return self.child(self.borrowed(x), self.borrowed)


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (parents_of_one, {"0": 1, "0.0": 1, "1": 1, "1.0": 1, "2": 1, "2.0": 1, "": 3}),
        (Listing, {"child": 1, "child.0": 1, "listed.0": 1, "listed.1": 1}),
        (with_a_forward_of_its_own, {"0": 1, "0.shared": 1, "2": 1}),
        (Lending, {"borrowed": 2, "child.own": 1, "child": 1, "": 3}),
    ],
)
def test_a_shared_module_has_the_flops_of_each_of_its_names(make, calls):
    report = prooflops.model_report(make(), torch.randn(3, 100, requires_grad=True))
    rows = {row.name: row for row in report.examination.breakdown.modules}
    once = 2 * 3 * 100 * 100
    found = {name: (rows[name].forward_flops, rows[name].backward_flops) for name in calls}
    assert found == {name: (number * once, 2 * number * once) for name, number in calls.items()}


class Product(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.view(-1, 100) @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Uncalled(nn.Module):
    """Uses the weights of `a` in one way, a method, without a call of it; then calls `b`."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.a = linear()
        self.b = linear()
        self.register_buffer("mask", torch.ones(100, 100))

    def forward(self, x):
        return self.b(getattr(self, self.way)(x))

    def by_an_own_function(self, x):
        return Product.apply(x, self.a.weight)

    def masked(self, x):
        return functional.linear(x, self.a.weight * self.mask)

    def perturbed(self, x):
        return functional.linear(x, self.a.weight + torch.randn(100, 100))


def rows_of(module, inputs):
    report = prooflops.model_report(module, inputs)
    rows = {row.name: row for row in report.examination.breakdown.modules}
    flops = report.examination.flops
    assert rows[""].forward_flops == flops.forward, "the rows are the whole"
    assert rows[""].backward_flops == flops.backward, "the rows are the whole"
    return rows, report


@pytest.mark.parametrize("way", ["by_an_own_function", "masked"])
def test_weights_used_without_a_call_have_their_modules_flops(way):
    rows, report = rows_of(Uncalled(way), torch.randn(3, 100, requires_grad=True))
    assert ACTIVATIONS not in {each.name for each in report.examination.flops.parts}
    for name in ("a", "b"):
        found = rows[name].forward_flops, rows[name].backward_flops
        assert found == (2 * LAYER_OF_100, 4 * LAYER_OF_100), name


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 100)
        self.weights = nn.ParameterList([torch.randn(100, 100), torch.randn(100, 100)])
        self.attention = nn.MultiheadAttention(100, 1, bias=False)

    def forward(self, x):
        x = self.table(x) @ self.weights[0] @ self.weights[1]
        return functional.linear(self.attention(x, x, x)[0], self.table.weight)


def test_lists_tied_tables_and_attention_have_the_flops_of_their_weights():
    """Attention uses its output's map without a call."""
    rows, _ = rows_of(Lists(), torch.arange(3))
    names = ("table", "weights", "attention.out_proj")
    found = {name: rows[name].forward_flops for name in names}
    once = 2 * LAYER_OF_100
    assert found == {"table": once, "weights": 2 * once, "attention.out_proj": once}


def test_a_row_whose_weights_cannot_be_followed_says_where_they_are_used():
    rows, report = rows_of(Uncalled("perturbed"), torch.randn(3, 100, requires_grad=True))
    assert (rows["a"].forward_flops, rows["a"].used_in) == (0, ("",))
    assert re.search(r"\n  a Linear +10.1k +all +in \(the whole\) ", str(report)), report


def test_what_cannot_be_copied_and_trained_is_refused_by_its_name():
    net = network()
    net[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"part 0 is compiled in place, .* as before \.compile"):
        prooflops.model_report(net, torch.randn(BATCH, WIDTH))


def test_an_unknown_optimizer_gets_the_valid_ones():
    what = r"must be one of .*, Adam, AdamW, .*, SGD, got 'Adm'; did you mean 'Adam'\?"
    with pytest.raises(ValueError, match=what):
        prooflops.model_report(network(), torch.randn(BATCH, WIDTH), "Adm")


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_by_the_parameters_name(kind):
    what = "the gradients of weight are sparse, .* use dense gradients .sparse=False"
    with pytest.raises(ValueError, match=what):
        prooflops.model_report(
            kind(9, 4, sparse=True), torch.zeros(2, 3).long(), "SGD", measure=True
        )
