"""The option --model: three models as users write them, every figure of their pages worked out by hand; refusals."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from accounting.models import Transformer, backward_flops, forward_flops, parameter_count
from meta_tests.conftest import ROOT, ChildRun, House, new_house
from meta_tests.user_models import gpt, own, resnet
from proofline import explained, model
from proofline.explained import Flops, flops_of
from proofline.model_memory import memory_of

CPU = torch.device("cpu")

# Runs pytest once for each argument, in one process, and prints what came of it.
RUNS = """
import contextlib, io, json, sys, pytest
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = int(pytest.main(line.split()))
    print(json.dumps([line, code, out.getvalue()]))
"""


def furnished_house(folder: Path) -> Path:
    """The suite with no claims and no benchmarks but those of a user's model, and the users' package beside it."""
    root = new_house(folder).root
    for file in ("test_claims/conftest.py", "test_claims/test_user_model.py"):
        shutil.copy(ROOT / file, root / file)
    for file in ("conftest.py", "measuring.py", "products.py", "test_user_model.py"):
        shutil.copy(ROOT / "bench" / file, root / "bench")
    shutil.copytree(ROOT / "meta_tests" / "user_models", root / "zoo", ignore=shutil.ignore_patterns("__pycache__"))
    return root


def runs_of_pytest(root: Path, lines: list[str]) -> dict[str, ChildRun]:
    command = [sys.executable, "-c", RUNS, *lines]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line: ChildRun(code, output) for line, code, output in map(json.loads, done.stdout.splitlines())}


# ---- three models, one page each ---------------------------------------------------------------------------------

SPECS = {"resnet": "zoo.resnet:factory", "gpt": "zoo.gpt:factory", "own": "zoo.own:Factories.factory"}
NOTHING_PLANTED = "-p no:cacheprovider --device cpu --quick"
PLANTED = f"{NOTHING_PLANTED} -p planted --model zoo.gpt:factory --report=planted"


@dataclass(frozen=True)
class Examined:
    """What a run over one model said, and the facts that it left."""

    run: ChildRun
    facts: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = furnished_house(tmp_path_factory.mktemp("house"))
    (root / "planted.py").write_text(
        "from proofline import explained, facts, model_memory\n"
        "explained._Tracer._derive = lambda self, tensors, outputs: False\n"
        "shares = explained._Tracer._shares\n"
        "explained._Tracer._shares = lambda self, factors, flops: shares(self, factors, flops - flops // 8)\n"
        "facts.bytes_of = model_memory.bytes_of = lambda tensors: sum(tensor.numel() for tensor in tensors)\n"
    )
    return root


@pytest.fixture(scope="module")
def examined(house: Path) -> dict[str, Examined]:
    """One run over each model, then one with faults planted, in one process."""
    lines = {name: f"{NOTHING_PLANTED} --model {spec} --report={name}" for name, spec in SPECS.items()}
    lines["looking"] = f"{NOTHING_PLANTED} --model zoo.own:looking --report=looking test_claims"
    lines["planted"] = PLANTED
    done = runs_of_pytest(house, list(lines.values()))
    return {
        name: Examined(
            done[line], json.loads((house / name / "model.json").read_text()), (house / name / "model.md").read_text()
        )
        for name, line in lines.items()
    }


GPT = Transformer(
    vocab_size=gpt.VOCABULARY,
    layers=gpt.LAYERS,
    dim=gpt.WIDTH,
    heads=gpt.HEADS,
    hidden=4 * gpt.WIDTH,
    learned_positions=gpt.POSITIONS,
    tied_embedding=True,
    norm_bias=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
GPT_TOKENS = gpt.BATCH * gpt.LENGTH

# Multiply-adds of each convolution on 4 images of 16 x 16: images · positions · outputs · inputs · kernel.
RESNET_CONVOLUTIONS = {
    "conv1": (4 * 16 * 16, 8 * 3 * 9),
    "layer1.conv1": (4 * 8 * 8, 16 * 8 * 9),
    "layer1.conv2": (4 * 8 * 8, 16 * 16 * 9),
    "layer1.downsample": (4 * 8 * 8, 16 * 8),
    "layer2.conv1": (4 * 4 * 4, 32 * 16 * 9),
    "layer2.conv2": (4 * 4 * 4, 32 * 32 * 9),
    "layer2.downsample": (4 * 4 * 4, 32 * 16),
}
RESNET_NORMS = 2 * (8 + 3 * 16 + 3 * 32)
RESNET_CONVOLVED = sum(2 * positions * weights for positions, weights in RESNET_CONVOLUTIONS.values())
RESNET_WEIGHTS = sum(weights for _, weights in RESNET_CONVOLUTIONS.values())
RESNET_FIRST = 2 * 4 * 16 * 16 * 8 * 3 * 9

OWN_SQUARE = 2 * 8 * own.WIDTH * own.WIDTH  # FLOPs of a (32, 32) matrix that every one of the 8 examples meets once
OWN_PARAMETERS = (16 + 1 + 2 * (32 + 1) + 2 * 32 + 1) * 32 + (32 * 8 + 8) + (32 * 4 + 4)

PARAMETERS = {
    "resnet": RESNET_WEIGHTS + RESNET_NORMS + 32 * 10 + 10,
    "gpt": parameter_count(GPT),
    "own": OWN_PARAMETERS,
}
TOKENS = {"resnet": (4, "examples"), "gpt": (GPT_TOKENS, "tokens"), "own": (8, "examples")}
FORWARD = {
    "resnet": RESNET_CONVOLVED + 2 * 4 * 32 * 10,
    "gpt": forward_flops(GPT, gpt.BATCH, gpt.LENGTH),
    "own": 2 * 8 * 16 * 32 + (3 + 1 + 1) * OWN_SQUARE + 2 * 8 * 32 * 4,  # shared, frozen, the two halves of the experts
}
BACKWARD = {
    "resnet": 2 * FORWARD["resnet"] - RESNET_FIRST,
    "gpt": backward_flops(GPT, gpt.BATCH, gpt.LENGTH),
    "own": 2 * FORWARD["own"] - 2 * 8 * 16 * 32 - OWN_SQUARE,
}

# What the rule of thumb has more than the counted FLOPs, forward and backward, by reason.
GPT_VECTORS = gpt.LAYERS * ((3 + 1 + 4 + 1) + 4) * gpt.WIDTH + 2 * gpt.WIDTH
GPT_ATTENTION = gpt.LAYERS * 2 * 2 * gpt.BATCH * gpt.LENGTH**2 * gpt.WIDTH
OWN_VECTORS = (1 + 1 + 1 + 1) * 32 + 4  # three biases and the scale; the head's bias
OWN_IDLE = 32 * 8 + 8
PARTS = {
    "resnet": {
        explained.CONVOLVED: (
            2 * 4 * RESNET_WEIGHTS - RESNET_CONVOLVED,
            2 * (2 * 4 * RESNET_WEIGHTS - RESNET_CONVOLVED),
        ),
        explained.ELEMENTWISE: (2 * 4 * (RESNET_NORMS + 10), 4 * 4 * (RESNET_NORMS + 10)),
        explained.INPUT_GRADIENT: (0, RESNET_FIRST),
    },
    "gpt": {
        explained.LOOKED_UP: (
            2 * GPT_TOKENS * gpt.POSITIONS * gpt.WIDTH,
            4 * GPT_TOKENS * gpt.POSITIONS * gpt.WIDTH,
        ),
        explained.ELEMENTWISE: (2 * GPT_TOKENS * GPT_VECTORS, 4 * GPT_TOKENS * GPT_VECTORS),
        explained.ACTIVATIONS: (-GPT_ATTENTION, -2 * GPT_ATTENTION),
    },
    "own": {
        explained.ELEMENTWISE: (2 * 8 * OWN_VECTORS, 4 * 8 * OWN_VECTORS),
        explained.SHARED: (-2 * OWN_SQUARE, -4 * OWN_SQUARE),
        explained.PARTLY_MET: (OWN_SQUARE, 2 * OWN_SQUARE),
        explained.NOT_MET: (2 * 8 * OWN_IDLE, 4 * 8 * OWN_IDLE),
        explained.FROZEN: (0, OWN_SQUARE),
        explained.INPUT_GRADIENT: (0, 2 * 8 * 16 * 32),
    },
}

# SGD with momentum keeps a buffer; AdamW and Adam two, and a count of 4 bytes per tensor that gets a gradient.
OWN_TRAINED = OWN_PARAMETERS - 33 * 32
OWN_WITH_GRADIENT = OWN_TRAINED - OWN_IDLE
STATE_BYTES = {
    "resnet": 4 * PARAMETERS["resnet"],
    "gpt": 8 * PARAMETERS["gpt"] + 4 * (2 + gpt.LAYERS * 12 + 2),
    "own": 8 * OWN_WITH_GRADIENT + 4 * 9,
}
GRADIENT_BYTES = {"resnet": 4 * PARAMETERS["resnet"], "gpt": 4 * PARAMETERS["gpt"], "own": 4 * OWN_WITH_GRADIENT}

each_model = pytest.mark.parametrize("name", SPECS)


@each_model
def test_only_the_tests_of_the_model_run_and_all_of_them_pass(examined: dict[str, Examined], name: str) -> None:
    run = examined[name].run
    assert run.code == 0, run.output
    assert "10 passed" in run.output, run.output
    assert "deselected" not in run.output


@each_model
def test_parameters_are_counted(examined: dict[str, Examined], name: str) -> None:
    holdings = examined[name].facts["inventory"]["holdings"]
    parameters = [each for each in holdings if each["role"] != "buffer"]
    assert sum(each["elements"] for each in parameters) == PARAMETERS[name]
    assert sum(each["bytes"] for each in parameters) == 4 * PARAMETERS[name]
    assert {each["role"] for each in parameters} == ({"trained", "frozen"} if name == "own" else {"trained"})


def test_buffers_are_listed_by_dtype_and_a_tied_weight_is_named(examined: dict[str, Examined]) -> None:
    buffers = [each for each in examined["resnet"].facts["inventory"]["holdings"] if each["role"] == "buffer"]
    assert {each["dtype"]: each["elements"] for each in buffers} == {"float32": RESNET_NORMS, "int64": 7}
    assert examined["gpt"].facts["inventory"]["tied"] == ["lm_head.weight"]


@each_model
def test_the_flops_of_the_page_are_those_of_the_formulas(examined: dict[str, Examined], name: str) -> None:
    flops = examined[name].facts["flops"]
    assert (flops["tokens"], flops["unit"]) == TOKENS[name]
    assert flops["forward"] == FORWARD[name]
    assert flops["backward"] == BACKWARD[name]
    assert flops["6ND"] == 6 * PARAMETERS[name] * TOKENS[name][0]
    assert flops["unknown"] == {}


@each_model
def test_each_reason_has_its_flops(examined: dict[str, Examined], name: str) -> None:
    parts = examined[name].facts["flops"]["parts"]
    assert {part["name"]: (part["forward"], part["backward"]) for part in parts} == PARTS[name]


@each_model
def test_gradients_and_optimizer_state_have_their_bytes(examined: dict[str, Examined], name: str) -> None:
    rows = {row["name"]: row for row in examined[name].facts["memory"]["rows"]}
    assert rows["gradients"]["measured_bytes"] == GRADIENT_BYTES[name]
    assert rows["optimizer state"]["measured_bytes"] == STATE_BYTES[name]
    state = rows["parameters, buffers, inputs"]["measured_bytes"] + GRADIENT_BYTES[name] + STATE_BYTES[name]
    assert rows["peak of a step"]["measured_bytes"] >= state


def test_a_tensor_that_is_no_buffer_is_reported(examined: dict[str, Examined]) -> None:
    assert "the factory keeps 400 B" in examined["own"].page


@each_model
def test_the_step_has_a_time_and_rates_that_follow_from_it(examined: dict[str, Examined], name: str) -> None:
    facts = examined[name].facts
    step, flops = facts["step"], facts["flops"]
    assert step["seconds"] > 0
    assert step["per_s"] == pytest.approx(TOKENS[name][0] / step["seconds"])
    executed = FORWARD[name] + BACKWARD[name]
    ceiling = step["reach"]["ceiling_flop_per_s"]["fp32"]
    assert step["share_of_ceiling"] == pytest.approx(executed / step["seconds"] / ceiling)
    assert step["intensity"] == pytest.approx(executed / flops["moved_bytes"])
    assert step["ridge"] == pytest.approx(ceiling / step["reach"]["bytes_per_s"])
    times = step["least_times_s"]
    assert times["compute"] == pytest.approx(executed / ceiling)
    assert times["memory"] == pytest.approx(flops["moved_bytes"] / step["reach"]["bytes_per_s"])
    longest = max(times, key=times.get)
    assert step["bound"] == (longest if times[longest] >= step["seconds"] / 2 else "overhead")


@each_model
def test_terminal_and_markdown_say_the_same(examined: dict[str, Examined], name: str) -> None:
    output, page = examined[name].run.output, examined[name].page
    for text in (
        f"N = {PARAMETERS[name]:,} parameters",
        f"D = {TOKENS[name][0]:,} {TOKENS[name][1]}",
        f"{FORWARD[name]:,}",
        *PARTS[name],
        "every operator of the step has a formula",
        "optimizer state",
        "share of own ceiling",
    ):
        assert text in output, f"{text!r} is missing from the terminal"
        assert text in page, f"{text!r} is missing from model.md"


def test_what_was_chosen_for_the_user_is_said(examined: dict[str, Examined]) -> None:
    notes = examined["gpt"].facts["about"]["notes"]
    assert "put in train mode" in notes
    assert "gave no optimizer: AdamW" in notes
    assert "the output's own .loss" in notes
    assert "optimizer" not in examined["resnet"].facts["about"]["notes"]


def test_a_model_that_looks_at_values_is_not_predicted_and_the_page_says_so(examined: dict[str, Examined]) -> None:
    looking = examined["looking"]
    assert looking.run.code == 0, looking.run.output
    assert "2 skipped" in looking.run.output, looking.run.output
    assert "not predicted: RuntimeError: the block asks for values" in looking.page


@each_model
def test_the_memory_of_a_step_is_predicted(examined: dict[str, Examined], name: str) -> None:
    rows = {row["name"]: row for row in examined[name].facts["memory"]["rows"]}
    for what in ("held for the backward pass", "peak of a step"):
        row = rows[what]
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=0.01), f"{what}: {row}"


def test_a_factory_that_converts_a_tied_model_is_predicted() -> None:
    user_model = model.loaded("meta_tests.user_models.gpt:in_bf16", ROOT, CPU)
    memory = memory_of(user_model)
    assert memory.row("gradients").predicted_bytes == 2 * PARAMETERS["gpt"]
    for what in ("held for the backward pass", "peak of a step"):
        row = memory.row(what)
        assert row.predicted_bytes == pytest.approx(row.measured_bytes, rel=0.01), f"{what}: {row} {memory.remarks}"


def test_the_page_in_the_docs_is_the_real_one(examined: dict[str, Examined]) -> None:
    _, _, rest = (ROOT / "docs" / "your-model.md").read_text().partition("```\nN = ")
    excerpt = f"N = {rest.partition('```')[0]}".splitlines()
    missing = [line for line in excerpt if line not in examined["gpt"].run.output.splitlines()]
    assert len(excerpt) > 20
    assert not missing, f"not on the page of gpt.py: {missing}"


def test_a_wrong_explanation_and_a_wrong_account_of_bytes_redden_the_run(examined: dict[str, Examined]) -> None:
    run = examined["planted"].run
    assert run.code == 1, run.output
    for text in (
        "AssertionError: the parts sum to",
        "NOT EXPLAINED: forward",
        "AssertionError: parameters and buffers are counted as",
        "AssertionError: gradients: the allocator was asked for",
        "AssertionError: optimizer state: the allocator was asked for",
    ):
        assert text in run.output, f"{text!r} is missing from\n{run.output}"


# ---- the explanation, in this process ----------------------------------------------------------------------------


def explained_flops(*returned: Any) -> Flops:
    torch.manual_seed(0)
    return flops_of(model.checked(returned))


def parts_of(flops: Flops) -> dict[str, tuple[int, int]]:
    assert not any(flops.unexplained(phase) for phase in ("forward", "backward", "step"))
    return {part.name: (part.forward, part.backward) for part in flops.parts}


class Under(torch.nn.Module):
    """A module that runs another one under autocast, or checkpointed."""

    def __init__(self, inner: torch.nn.Module, how: str):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, **inputs: Any) -> Any:
        if self.how == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(**inputs)
        reentrant = self.how == "checkpointed, reentrant"
        inputs["input_ids"].requires_grad_(False)

        def run(_: torch.Tensor) -> torch.Tensor:
            return self.inner(**inputs).loss

        return checkpoint(run, torch.zeros(1, requires_grad=True), use_reentrant=reentrant)


@pytest.mark.parametrize("how", ["autocast", "checkpointed", "checkpointed, reentrant"])
def test_the_reasons_are_the_same_under_autocast_and_checkpointing(how: str) -> None:
    inner, inputs = gpt.factory()
    flops = explained_flops(Under(inner, how), inputs)
    parts = parts_of(flops)
    recomputed = parts.pop(explained.CHECKPOINTED, (0, 0))
    assert parts == PARTS["gpt"]
    assert flops.model == FORWARD["gpt"] + BACKWARD["gpt"]
    assert flops.executed == flops.model + flops.recomputed
    assert recomputed == (0, -flops.recomputed)
    assert set(flops.by_dtype) == ({"bf16"} if how == "autocast" else {"fp32"})
    if how == "checkpointed, reentrant":  # the other kind stops at the last tensor that it needs
        assert flops.recomputed == FORWARD["gpt"]
    else:
        assert (flops.recomputed > 0) == (how == "checkpointed")


def test_a_fused_attention_kernel_recomputes_its_scores() -> None:
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)

    class Attending(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, need_weights=False)[0]

    flops = explained_flops(Attending(), torch.randn(2, 16, 32))
    products = 2 * 2 * 2 * 16 * 16 * 32  # of queries and keys, and of probabilities and values
    parts = parts_of(flops)
    assert parts[explained.ACTIVATIONS] == (-products, -2 * products)
    assert parts[explained.FUSED_RECOMPUTED] == (0, -products // 2)
    assert flops.recomputed == products // 2


def test_an_lstm_obeys_2nd_but_for_its_biases() -> None:
    flops = explained_flops(torch.nn.LSTM(16, 32, num_layers=2, batch_first=True), torch.randn(4, 7, 16))
    biases = 2 * 2 * 4 * 32
    assert parts_of(flops) == {explained.ELEMENTWISE: (2 * 28 * biases, 4 * 28 * biases)}


def test_an_expert_without_a_token_is_not_used() -> None:
    class Routed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.experts[0](x), self.experts[1](x[:0])])

    parts = parts_of(explained_flops(Routed(), torch.randn(4, 8, requires_grad=True)))
    assert parts == {
        explained.NOT_MET: (2 * 4 * 72, 4 * 4 * 72),
        explained.ELEMENTWISE: (2 * 4 * 8, 4 * 4 * 8),
    }


@pytest.mark.parametrize(
    ("what", "broken"),
    [
        ("_shares", lambda self, factors, flops: iter([(index, flops) for index in factors][:1] * 2)),
        ("_factors", lambda self, tensors: ()),
        ("_whose_gradient", lambda self, of_node, outputs: ()),
    ],
)
def test_a_wrong_explanation_does_not_pass(monkeypatch: pytest.MonkeyPatch, what: str, broken: Any) -> None:
    monkeypatch.setattr(explained._Tracer, what, broken)
    flops = explained_flops(*gpt.factory())
    parts = {part.name: (part.forward, part.backward) for part in flops.parts}
    assert parts != PARTS["gpt"]
    if what == "_shares":
        assert flops.unexplained("step") != 0


# ---- what is handed out ------------------------------------------------------------------------------------------


def test_no_check_sees_what_another_one_did() -> None:
    user_model = model.loaded("meta_tests.user_models.gpt:factory", ROOT, CPU)
    first = user_model.fresh()
    before = {name: tensor.clone() for name, tensor in first.module.state_dict().items()}
    first.step()
    again = user_model.fresh().module.state_dict()
    assert not torch.equal(first.module.state_dict()["h.0.c_fc.weight"], before["h.0.c_fc.weight"])
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())


def test_a_frozen_part_stays_in_eval_mode_when_the_whole_is_in_train_mode() -> None:
    net = resnet.ResNet()
    net.bn1.eval()
    assert not model.checked((net, torch.ones(1, 3, 8, 8))).module.bn1.training
    assert model.checked((resnet.ResNet().eval(), torch.ones(1, 3, 8, 8))).module.bn1.training


@pytest.mark.parametrize(
    ("inputs", "tokens"),
    [
        (torch.ones(6), (6, "examples")),
        (torch.ones(6, 5), (6, "examples")),
        (torch.ones(6, 5, 4), (30, "tokens")),
        (torch.ones(6, 3, 4, 4), (6, "examples")),
        (torch.ones(6, 5, dtype=torch.int64), (30, "tokens")),
        ({"attention_mask": torch.ones(9, 9), "input_ids": torch.ones(6, 5, dtype=torch.int64)}, (30, "tokens")),
        ((None, {"x": torch.ones(6, 5)}), (6, "examples")),
        (torch.tensor(1.0), (1, "examples")),
    ],
)
def test_tokens_or_examples_follow_from_the_first_input(inputs: Any, tokens: tuple[int, str]) -> None:
    assert model.checked((torch.nn.Linear(2, 2), inputs)).tokens == tokens


# ---- refusals ----------------------------------------------------------------------------------------------------

VALID = "(module, inputs), (module, inputs, optimizer) or (module, inputs, optimizer, loss)"
REFUSED: dict[str, tuple[str, ...]] = {
    "zoo/gpt.py": ("must be module:factory",),
    "zoo.gpt": ("must be module:factory",),
    "zoo.gpd:factory": ("no module named zoo.gpd", "broken", "gpt"),
    "zooo.gpt:factory": ("no module named zooo", "has", "zoo"),
    "zoo.gpt:factor": ("must be one of ModelOutput, Block, LMHeadModel, factory", "did you mean 'factory'"),
    "zoo.own:Factories.factor": ("did you mean 'factory'",),
    "zoo.failing:factory": (
        "importing zoo.failing raised RuntimeError: this module cannot be imported",
        "failing.py:1",
    ),
    "zoo.lacking:factory": ("importing zoo.lacking raised ModuleNotFoundError", "a_package_that_nobody_has"),
    "zoo.unfinished:factory": ("importing zoo.unfinished raised SyntaxError",),
    "zoo.broken:number": ("must be callable, got 3 of type int",),
    "zoo.broken:module": ("got a Linear itself", VALID),
    "zoo.broken:raises": ("the factory raised ZeroDivisionError: nothing to divide", "broken.py:"),
    "zoo.broken:leaves": ("the factory raised SystemExit: 2",),
    "zoo.broken:needs_a_size": ("the factory raised TypeError", "missing 1 required positional argument: 'size'"),
    "zoo.broken:alone": ("returned a Linear alone", VALID),
    "zoo.broken:nonsense": ("got a int", VALID),
    "zoo.broken:too_many": ("got a tuple of 5", VALID),
    "zoo.broken:function_for_a_module": ("module must be a torch.nn.Module, got a builtin_function_or_method",),
    "zoo.broken:no_tensor": ("inputs must be a tensor", "got a tuple without any"),
    "zoo.broken:text_for_inputs": ("inputs must be a tensor", "got a str"),
    "zoo.broken:lazy": ("parameters without a shape yet: weight, bias",),
    "zoo.broken:frozen": ("none of the 2 parameters of the Linear requires a gradient",),
    "zoo.broken:on_meta": ("parameters on the meta device hold no values: weight",),
    "zoo.broken:optimizer_by_name": ("optimizer must be a torch.optim.Optimizer or None, got a str",),
    "zoo.broken:foreign_optimizer": ("2 of its tensors are not among them",),
    "zoo.broken:always_the_same": ("returned the same parameters twice",),
    "zoo.broken:wrong_shape": ("forward pass with these inputs of the Linear raised RuntimeError", "shapes"),
    "zoo.broken:loss_of_a_vector": ("loss must return a scalar tensor, got a tensor of shape (1, 2)",),
    "zoo.broken:loss_by_name": ("loss must be a function of the module's output, got 'mse'",),
    "zoo.broken:detached_loss": ("the loss does not depend on any parameter",),
    "zoo.broken:no_output": ("the forward pass returned a str without any tensor",),
    "zoo.broken:breaking_step": ("the training step of the Linear raised OverflowError: the optimizer stumbled",),
    "zoo.gpt:factory --claim demo.holds": ("--model and --claim exclude each other",),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChildRun]:
    """What each of them got; in one process, which must not import a test module."""
    root = furnished_house(tmp_path_factory.mktemp("house"))
    House(root).claim("demo.holds")
    for file in ("test_claims/test_user_model.py", "bench/test_user_model.py"):
        (root / file).write_text('raise SystemExit("a test module was imported before the refusal")')
    (root / "zoo" / "failing.py").write_text('raise RuntimeError("this module cannot be imported")\n')
    (root / "zoo" / "lacking.py").write_text("import a_package_that_nobody_has\n")
    (root / "zoo" / "unfinished.py").write_text("def factory(:\n")
    done = runs_of_pytest(root, [f"--device cpu --model {spec}" for spec in REFUSED])
    assert not (root / "reports").exists()
    return {line.partition("--model ")[2]: run for line, run in done.items()}


@pytest.mark.parametrize("spec", REFUSED)
def test_what_is_no_model_is_refused_before_anything_runs(refusals: dict[str, ChildRun], spec: str) -> None:
    run = refusals[spec]
    assert run.code == 4, run.output
    assert all(text in run.output for text in REFUSED[spec]), run.output
    assert "Traceback" not in run.output


def test_without_the_option_nobody_hears_of_the_tests(house: Path) -> None:
    done = runs_of_pytest(house, ["-p no:cacheprovider --device cpu --collect-only -q"])
    (run,) = done.values()
    assert run.code == 5, run.output
    assert "no tests collected" in run.output
    assert "user_model" not in run.output
