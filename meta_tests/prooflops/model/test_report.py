"""`prooflops.model_report` gives the page's figures of a module, and leaves it as it is."""

import copy
import random
import re
import time
from functools import partial

import pytest
import torch
from torch import nn

import prooflops

WIDTH, HIDDEN, BATCH = 8, 32, 16


def network():
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN, bias=False), nn.Dropout(), nn.Linear(HIDDEN, WIDTH, bias=False)
    )


def test_text_notebook_and_page_have_the_figures_of_two_linear_layers(
    tmp_path,
):
    report = prooflops.model_report(
        network(), torch.randn(BATCH, WIDTH), partial(torch.optim.SGD, lr=0.1)
    )
    assert report.parameters == 2 * WIDTH * HIDDEN
    assert report.flops_forward == report.rule_2nd == 2 * BATCH * (WIDTH * HIDDEN + HIDDEN * WIDTH)
    without_input_gradient = 2 * BATCH * WIDTH * HIDDEN
    assert report.flops_step == report.rule_6nd - without_input_gradient
    predicted, measured = report.predicted_peak_bytes, report.measured_peak_bytes
    assert 0.9 * measured < predicted <= measured, report.examination.memory
    layer = f"{WIDTH * HIDDEN:,} +{2 * BATCH * WIDTH * HIDDEN:,}"
    assert re.search(
        rf"\n\(the whole\) .*\n  0 +Linear +{layer} .*\n  1 +Dropout .*\n  2 +Linear +{layer} ",
        str(report),
    )
    report.save(tmp_path / "page.html")
    assert "not measured here" in (tmp_path / "page.html").read_text()
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!')


TARGETS = torch.randn(BATCH, WIDTH)


def test_memory_is_predicted_with_a_loss_that_captures_its_targets():
    targets = TARGETS.clone()
    losses = (lambda output: (output - TARGETS).abs().mean(), nn.MSELoss())
    for loss in (losses[0], lambda output, *, named=targets: losses[1](output, targets + named)):
        report = prooflops.model_report(network(), torch.randn(BATCH, WIDTH), "SGD", loss)
        assert report.predicted_peak_bytes == report.measured_peak_bytes, report.examination.memory


def test_module_gradients_and_generators_stay_as_they_are():
    module = network().eval()
    inputs = torch.randn(BATCH, WIDTH, requires_grad=True)
    module[0].weight.grad = torch.ones(HIDDEN, WIDTH)
    before = copy.deepcopy(module.state_dict())
    generators = (torch.get_rng_state(), random.getstate())
    prooflops.model_report(
        module, inputs, "Adam", loss=lambda output: output.square().mean() * random.random()
    )
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(module[0].weight.grad, torch.ones(HIDDEN, WIDTH))
    assert module[2].weight.grad is None
    assert inputs.grad is None
    assert not module.training
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]


# The first call takes longer than a report is silent.
PAUSES_S = [2.1]


class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(PAUSES_S.pop() if PAUSES_S else 0.1)
        return super().forward(x)


def flops_by_name(net):
    report = prooflops.model_report(net, torch.randn(3, 100, requires_grad=True))
    rows = report.examination.breakdown.modules
    return {row.name: (row.forward_flops, row.backward_flops) for row in rows}


def test_a_shared_module_has_the_calls_of_each_of_its_names():
    once = 2 * 3 * 100 * 100, 4 * 3 * 100 * 100
    shared = nn.Linear(100, 100)
    parents = [nn.Sequential(shared, nn.Tanh()) for _ in range(3)]
    found = flops_by_name(nn.Sequential(*parents))
    names = ["0", "0.0", "1", "1.0", "2", "2.0"]
    assert {name: found[name] for name in names} == dict.fromkeys(names, once)
    twice = nn.Sequential(shared, nn.Tanh(), shared)
    found = flops_by_name(twice)
    assert (found["0"], found["2"]) == (once, once), "one parent holds it by two names"
    pair = nn.Sequential(nn.Linear(100, 100), nn.Tanh())
    found = flops_by_name(nn.Sequential(nn.Sequential(pair), nn.Sequential(pair)))
    assert found["0.0.0"] == found["1.0.0"] == once, "a shared parent has its parts by each name"


class Listing(nn.Module):
    """Runs a list of modules, of which its child holds one as well."""

    def __init__(self):
        super().__init__()
        shared = nn.Linear(100, 100)
        self.child = nn.Sequential(shared, nn.Tanh())
        self.listed = nn.ModuleList([shared, nn.Linear(100, 100)])

    def forward(self, x):
        for each in (self.child, *self.listed):
            x = each(x)
        return x


def test_a_module_in_a_list_has_the_calls_of_the_one_that_runs_the_list():
    once = 2 * 3 * 100 * 100, 4 * 3 * 100 * 100
    found = flops_by_name(Listing())
    names = ["child", "child.0", "listed.0", "listed.1"]
    assert {name: found[name] for name in names} == dict.fromkeys(names, once)


def with_a_forward_of_its_own(shared):
    """As `torch.compile` makes one: its class has no forward."""
    holder = nn.Module()
    holder.shared = shared
    holder.forward = shared.__call__
    return holder


def test_a_module_in_one_with_a_forward_of_its_own_has_each_call():
    once = 2 * 3 * 100 * 100, 4 * 3 * 100 * 100
    shared = nn.Linear(100, 100)
    found = flops_by_name(nn.Sequential(with_a_forward_of_its_own(shared), nn.Tanh(), shared))
    assert found["0"] == found["0.shared"] == found["2"] == once


class Borrowing(nn.Module):
    """Runs a module that it is given and does not hold."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(100, 100)

    def forward(self, x, lent):
        return lent(self.own(x))


class Lending(nn.Module):
    def __init__(self):
        super().__init__()
        self.lent = nn.Linear(100, 100)
        self.child = Borrowing()

    def forward(self, x):
        return self.child(self.lent(x), self.lent)


def test_a_module_that_is_passed_to_a_child_has_its_calls():
    once = 2 * 3 * 100 * 100, 4 * 3 * 100 * 100
    found = flops_by_name(Lending())
    assert found["lent"] == (2 * once[0], 2 * once[1])
    assert found["child.own"] == found["child"] == once
    assert found[""] == (3 * once[0], 3 * once[1])


def test_what_takes_more_than_two_seconds_says_what_it_does(capsys):
    prooflops.model_report(Slow(2, 2), torch.randn(2, 2))
    said = capsys.readouterr().err
    assert "model_report of Slow: predicting the memory of two steps" in said
    assert "model_report of Slow: counting and timing each operator of a few steps" in said


# torch deprecates TorchScript, which people still bring.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_cannot_be_copied_and_trained_is_refused_by_its_name():
    traced = torch.jit.trace(nn.Linear(WIDTH, 1), torch.ones(1, WIDTH))
    for module, what in (
        (torch.jit.script(nn.Linear(WIDTH, 1)), "the RecursiveScriptModule is TorchScript, "),
        (nn.Sequential(traced), "its part 0 is TorchScript, .* pass the torch.nn.Module from"),
    ):
        with pytest.raises(ValueError, match=what):
            prooflops.model_report(module, torch.randn(BATCH, WIDTH))
    derived = nn.Linear(WIDTH, 1)
    del derived.weight
    derived._parameters["weight"] = 2 * nn.Parameter(torch.ones(1, WIDTH))
    with pytest.raises(ValueError, match=r"computed from other tensors .*: weight; register leaf"):
        prooflops.model_report(derived, torch.randn(BATCH, WIDTH))


def activated_by(function):
    net = nn.Linear(WIDTH, 1)
    net.activation = function
    return net


def compiled_in_place():
    net = nn.Sequential(nn.Linear(WIDTH, 1))
    net[0].compile(backend="eager")
    return net


def expanded():
    net = nn.Linear(WIDTH, 3)
    net.weight = nn.Parameter(torch.ones(1, WIDTH).expand(3, WIDTH))
    return net


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("made", "what"),
    [
        (
            lambda: activated_by(torch.jit.trace(torch.relu, torch.ones(1))),
            "activation of the Linear is TorchScript, which cannot be copied here; keep the Python",
        ),
        (compiled_in_place, r"its part 0 is compiled in place, .* as before \.compile\(\)"),
        (expanded, "these parameters lie at one address: weight; an optimizer cannot .* clone"),
    ],
)
def test_what_a_copy_would_lack_is_refused_by_its_name(made, what):
    with pytest.raises(ValueError, match=what):
        prooflops.model_report(made(), torch.randn(BATCH, WIDTH))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_by_the_parameters_name(kind, optimizer):
    what = "the gradients of weight are sparse, .* with dense ones, as sparse=False gives"
    with pytest.raises(ValueError, match=what):
        prooflops.model_report(kind(9, 4, sparse=True), torch.zeros(2, 3).long(), optimizer)


def test_errors_name_what_was_given_and_what_is_valid():
    refused = {
        r"module must be a torch\.nn\.Module, got 3 of type int": (3, None),
        r"the ReLU has no parameters, so there is no training step": (nn.ReLU(), None),
        r"parameters without a shape yet: .*; run the module once before$": (
            nn.LazyLinear(2),
            None,
        ),
        r"meta device hold no values: weight": (nn.Linear(WIDTH, 1, device="meta"), None),
        r"must be one of .*, Adam, AdamW, .*, SGD, got 'Adm'; did you mean 'Adam'\?": (
            network(),
            "Adm",
        ),
    }
    for message, (module, optimizer) in refused.items():
        with pytest.raises(ValueError, match=message):
            prooflops.model_report(module, torch.randn(BATCH, WIDTH), optimizer)
