"""Claims about randomness: the effect of a seed, the generators, and the limits of seeds."""

import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from test_claims.oracles.messages import at_most, equal
from test_claims.oracles.training import STEPS, Training, generators_kept, random_run
from test_claims.strategies import (
    TORCH_DTYPES,
    dtypes_among,
    fewer,
    sizes,
)

# numpy's range, less one.
seeds = st.integers(0, 2**32 - 2)


@pytest.fixture(autouse=True, scope="module")
def generators_left_alone():
    """Leaves the global generators as they were."""
    with generators_kept():
        yield


@pytest.fixture
def deterministic():
    """Deterministic algorithms within, and the process's setting restored."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.claim("rand.fixed-seed")
@fewer
@given(seed=seeds, bit=sizes(0, 31))
def test_two_runs_from_one_seed_are_the_same_bit_for_bit(device, seed, bit):
    another = seed ^ 1 << bit
    run = random_run(device, seed)
    other = random_run(device, another)
    equal(random_run(device, seed), run, "losses and weights again")
    assert run.losses != other.losses, f"runs from {seed} and {another} have the same losses"
    assert run.weights != other.weights, f"{seed} and {another} end with the same weights"

    start = Training(device, seed=seed).weights()
    other_start = Training(device, seed=another).weights()
    assert start != other_start, f"{seed} and {another} start from the same weights"

    torch.seed()
    unseeded = torch.rand(4, device=device).tolist()
    torch.seed()
    assert unseeded != torch.rand(4, device=device).tolist(), "two streams without a seed are alike"


@pytest.mark.claim("rand.fixed-seed")
@pytest.mark.parametrize("layer", ["embedding", "convolution", "attention", "norm"])
def test_on_a_cpu_a_layers_gradients_repeat_bit_for_bit(layer):
    """Elsewhere some of these kernels add up in any order."""

    def gradients():
        torch.manual_seed(3)
        net, x = {
            "embedding": (nn.Embedding(50, 64), torch.randint(50, (64, 32))),
            "convolution": (nn.Conv2d(8, 16, 3), torch.randn(4, 8, 20, 20)),
            "attention": (nn.TransformerEncoderLayer(64, 4), torch.randn(16, 8, 64)),
            "norm": (nn.LayerNorm(300), torch.randn(400, 300)),
        }[layer]
        net(x).pow(2).mean().backward()
        return [each.grad.clone() for each in net.parameters()]

    first = gradients()
    for _ in range(3):
        for got, should in zip(gradients(), first, strict=True):
            equal(got, should, "a gradient again")


@pytest.mark.claim("rand.fixed-seed")
def test_another_process_repeats_a_run_from_its_seed(fresh_process):
    _, run, _ = fresh_process
    equal(run, repr(random_run(torch.device("cpu"), 7)), "another process's run")


SEEDING = {"torch": torch.manual_seed, "numpy": np.random.seed, "python": random.seed}


@pytest.mark.claim("rand.three-libs", "rand.fixed-seed")
@pytest.mark.parametrize("library", SEEDING)
def test_a_run_needs_the_seed_of_each_library_it_draws_from_and_no_other(device, library):
    def losses(kinds, seed):
        run = Training(device, kinds, seed=0)
        SEEDING[library](seed)
        return run.losses(STEPS)

    others = [kind for kind in SEEDING if kind not in (library, "torch")]
    run = losses(SEEDING, 1)
    equal(losses(SEEDING, 1), run, "losses with one seed")
    assert losses(SEEDING, 2) != run, f"two seeds of {library} gave one result"
    equal(losses(others, 1), losses(others, 2), f"losses without draws from {library}")


@pytest.mark.claim("rand.cuda-seed-all")
@given(seed=st.integers(-(2**63), 2**64 - 1))
def test_torchs_seed_is_handed_on_to_all_cuda_devices(seed):
    """With or without a device: without one the call is remembered until CUDA is used."""
    heard = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "manual_seed_all", heard.append)
        torch.manual_seed(seed)
    equal(heard, [seed], "what cuda.manual_seed_all was called with")


@pytest.mark.claim("rand.cuda-seed-all")
@given(seed=seeds, other=seeds)
def test_cudas_seed_leaves_the_cpus_stream_as_it_is(seed, other):
    torch.manual_seed(seed)
    should = [torch.rand(3).tolist() for _ in range(2)]
    torch.manual_seed(seed)
    got = [torch.rand(3).tolist()]
    torch.cuda.manual_seed_all(other)
    got.append(torch.rand(3).tolist())
    equal(got, should, "the CPU's stream around cuda.manual_seed_all")


@pytest.mark.claim("rand.cuda-seed-all")
@pytest.mark.needs("cuda")
@given(seed=seeds, other=seeds)
def test_each_gpu_is_seeded_by_torchs_seed_and_by_cudas_alone(seed, other):
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

    def drawn():
        return [torch.rand(3, device=gpu).tolist() for gpu in gpus]

    torch.manual_seed(seed)
    by_torch = drawn()
    torch.manual_seed(other)
    torch.cuda.manual_seed_all(seed)

    equal(drawn(), by_torch, "streams by CUDA's seed")

    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    equal(drawn(), by_torch, "streams by both seeds")
    equal(by_torch, by_torch[:1] * len(gpus), "streams of the GPUs")


SOURCES = ("init", "dropout", "order", "augmentation")


class Program(NamedTuple):
    """A training run except its seeds."""

    width: int
    batch_size: int
    optimizer: type
    activation: type
    dropout: float


class Trace(NamedTuple):
    """The draws of each source of randomness in a run, and the losses."""

    draws: dict
    losses: list


def traced_run(device, seed_of, program):
    """A short run of a program with a seed for each source of randomness."""
    init = torch.Generator().manual_seed(seed_of["init"])
    order = torch.Generator().manual_seed(seed_of["order"])
    augmentation = torch.Generator().manual_seed(seed_of["augmentation"])
    hidden = nn.Linear(4, program.width)
    head = nn.Linear(program.width, 1)
    for parameter in (*hidden.parameters(), *head.parameters()):
        nn.init.normal_(parameter, std=0.5, generator=init)
    draws = {"init": hidden.weight.tolist(), "dropout": [], "order": [], "augmentation": []}
    dropout = nn.Dropout(program.dropout)
    net = nn.Sequential(hidden, program.activation(), dropout, head).to(device)
    dropout.register_forward_hook(
        lambda _, __, output: draws["dropout"].append((output != 0).tolist())
    )
    # A wider net needs smaller steps: where training diverges an activation gives zeros that no
    # dropout made.
    optimizer = program.optimizer(net.parameters(), lr=1 / program.width)
    data = torch.linspace(-1, 1, 96).reshape(24, 4)
    torch.manual_seed(seed_of["dropout"])
    losses = []
    for rows in DataLoader(range(24), program.batch_size, shuffle=True, generator=order):
        flips = torch.randint(2, (program.batch_size, 4), generator=augmentation) * 2 - 1
        draws["order"] += rows.tolist()
        draws["augmentation"] += flips.tolist()
        x = (data[rows] * flips).to(device)
        loss = (net(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trace(draws, losses)


programs = st.builds(
    Program,
    width=st.integers(32, 64),
    batch_size=st.sampled_from([4, 6, 12]),
    optimizer=st.sampled_from([torch.optim.SGD, torch.optim.Adam]),
    activation=st.sampled_from([nn.Sigmoid, nn.Tanh, nn.Softplus]),
    dropout=st.sampled_from([0.2, 0.5, 0.7]),
)


@pytest.mark.claim("rand.sources", "rand.separate-seeds")
@fewer
@given(varied=st.sampled_from(SOURCES), seed=seeds, program=programs)
def test_each_source_varies_alone_with_its_seed_and_changes_the_training(
    device, varied, seed, program
):
    same = dict.fromkeys(SOURCES, seed)
    run = traced_run(device, same, program)
    other = traced_run(device, {**same, varied: seed + 1}, program)

    equal(traced_run(device, same, program), run, "draws and losses with the four fixed")
    changed = [source for source in SOURCES if run.draws[source] != other.draws[source]]
    equal(changed, [varied], "what another seed changes")
    assert run.losses != other.losses, f"another {varied} did not change the losses"


@pytest.mark.claim("rand.separate-seeds")
def test_with_one_seed_a_draw_more_changes_all_that_follow(device):
    def draws(more):
        torch.manual_seed(0)
        torch.rand(more, device=device)
        return [torch.rand(2, device=device).tolist() for _ in range(3)]

    for one, other in zip(draws(0), draws(1), strict=True):
        assert one != other, "a draw more does not change what follows it"


@pytest.mark.claim("rand.as-well-as-you-can")
@given(seed=seeds, dtype=dtypes_among(["fp32", "fp64", "bf16", "fp16"]))
def test_a_sum_in_another_order_rounds_otherwise(device, seed, dtype):
    """Two large terms that cancel, and a small one that is lost beside either."""
    generator = torch.Generator().manual_seed(seed)
    small = (1 + torch.rand(1, generator=generator)).to(TORCH_DTYPES[dtype]).to(device) / 8
    large = torch.full_like(small, 1 / torch.finfo(small.dtype).eps)
    first = (large + small) - large
    second = (large - large) + small
    assert first.item() != second.item(), f"both orders give {first}"
    equal(((large + small) - large).item(), first.item(), "the sum again")


# Beyond the batch of one, for which libraries have another routine.
PRODUCTS = [(rows, inner) for rows in (2, 7, 32, 256) for inner in (16, 100, 1024)]


@pytest.mark.claim("rand.as-well-as-you-can")
def test_an_examples_result_depends_on_the_batch_it_is_computed_in(device, record_figure):
    differing = []

    for rows, inner in PRODUCTS:
        generator = torch.Generator().manual_seed(rows * inner)
        a = torch.randn(rows, inner, generator=generator).to(device)
        w = torch.randn(inner, 64, generator=generator).to(device)
        together = (a @ w)[:1]
        alone = a[:1] @ w
        equal((a @ w)[:1], together, "the same product again")
        off = (together - alone).abs().max().item()
        differing += [(rows, inner)] if off else []
        bound = inner * torch.finfo(a.dtype).eps * (a[:1].abs() @ w.abs()).max().item()
        # Rounding alone: each of the additions is off by at most an eps of the sum of magnitudes.
        at_most(off, bound, "the distance of the results", rows=rows, inner=inner)

    record_figure(f"{len(differing)} of {len(PRODUCTS)} fp32 products differ with the batch")
    if not differing:
        # MKL has a setting for that.
        pytest.skip("this library sums in the same order at every batch size")


@pytest.mark.claim("rand.as-well-as-you-can")
def test_deterministic_mode_refuses_the_undefined_and_fills_the_rest(device, deterministic):
    """Two values for one place: which of them wins is not defined."""
    x = torch.zeros(2, device=device)
    index = torch.tensor([1, 1], device=device)
    values = torch.tensor([3.0, 4.0], device=device)
    with pytest.raises(RuntimeError, match="deterministic"):
        x.put_(index, values)
    empty = torch.empty(1000, device=device)

    assert empty.isnan().all(), "torch.empty left what was in memory"

    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="deterministic"):
        x.put_(index, values)

    torch.use_deterministic_algorithms(False)
    x.put_(index, values)
    assert x.tolist() in ([0.0, 3.0], [0.0, 4.0]), f"put_ made {x} of two values for one place"
