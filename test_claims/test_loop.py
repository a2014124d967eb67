"""Claims about the training loop: the order of its calls, where gradients are zeroed, modes, and its start."""

import math
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accounting.activations import activation_bytes
from accounting.models import DeepLinear
from test_claims.oracles.dispatched import linear_net
from test_claims.oracles.low_precision import trained_net
from test_claims.oracles.tensors import OPTIMIZERS, difference, held_after, without_collector
from test_claims.oracles.training import Training, generators_kept
from test_claims.strategies import in_fp64, seeds, sizes, with_dtype

RATE = 0.05


class Regression:
    """Linear regression in fp64, and the calls of a training step; all examples are the batch until one is fetched."""

    def __init__(
        self, device, seed, optimizer="sgd", examples=32, features=4, batch=32, noise=0.1, most=0.0
    ):
        device = with_dtype(device)
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(examples, features, generator=generator, dtype=torch.float64)
        y = 20 * x.sum(dim=1) + noise * torch.randn(
            examples, generator=generator, dtype=torch.float64
        )
        self.x = x.to(device)
        self.y = y.to(device)
        self.weights = nn.Parameter(torch.zeros(features, dtype=torch.float64, device=device))
        self.optimizer = OPTIMIZERS[optimizer]([self.weights], lr=RATE)
        self.most = most
        self.batches = cycle(zip(self.x.split(batch), self.y.split(batch), strict=True))

    def run(self, calls, steps):
        """Makes these calls `steps` times over; the losses."""
        losses = []
        x = self.x
        y = self.y
        for _ in range(steps):
            for call in calls:
                if call == "fetch":
                    x, y = next(self.batches)
                elif call == "forward":
                    loss = (x @ self.weights - y).square().mean()
                    losses.append(loss.item())
                elif call == "backward":
                    loss.backward()
                elif call == "clip":
                    nn.utils.clip_grad_norm_([self.weights], self.most)
                else:
                    getattr(self.optimizer, call)()
        return losses

    def numbers(self):
        return [array.detach().cpu().numpy() for array in (self.x, self.y, self.weights)]


def gradient_descent(x, y, steps, summed=False, most=math.inf, batch=32):
    """Weights after `steps` steps of w − rate · gradient, of norm `most` at most; `summed`: of all steps so far."""
    weights = np.zeros(x.shape[1])
    total = np.zeros(x.shape[1])
    for step in range(steps):
        first = step % math.ceil(len(y) / batch) * batch
        some = x[first : first + batch]
        of = y[first : first + batch]
        gradient = 2 / len(of) * some.T @ (some @ weights - of)
        gradient *= min(1.0, most / max(np.linalg.norm(gradient), 1e-300))
        total = total + gradient if summed else gradient
        weights = weights - RATE * total
    return weights


def assert_close(got, should, what, tolerance=1e-9):
    __tracebackhide__ = True
    got, should = (
        np.asarray(torch.as_tensor(of).detach().cpu(), dtype=float) for of in (got, should)
    )
    off = np.abs(got - should).max()
    assert off <= tolerance * (1 + np.abs(should).max()), (
        f"{what}: {got}, but should be {should}, off by {off:.2g}"
    )


POSITIONS = {
    "at the end": ("forward", "backward", "step", "zero_grad"),
    "before backward": ("forward", "zero_grad", "backward", "step"),
    "before forward": ("zero_grad", "forward", "backward", "step"),
}
ORDER = POSITIONS["before backward"]


@pytest.mark.claim("loop.order")
@given(data=st.data(), seed=seeds, batch=sizes(1, 9), more=sizes(1, 5), steps=sizes(1, 6))
def test_fetch_forward_backward_step_is_gradient_descent_alone(
    device, data, seed, batch, more, steps
):
    order = ["fetch", "forward", "backward", "step"]
    differ = st.permutations(order).filter(
        lambda of: of != order and of.index("forward") < of.index("backward")
    )
    for calls in (order, data.draw(differ, label="calls")):
        task = Regression(device, seed, examples=batch + more, batch=batch)
        task.run(" ".join(calls).replace("backward", "zero_grad backward").split(), steps)
        x, y, got = task.numbers()
        should = gradient_descent(x, y, steps, batch=batch)
        same = np.allclose(got, should, rtol=1e-9, atol=1e-9)
        assert same == (calls == order), (
            f"{calls} gives {got}, gradient descent {should} [{seed=}, {steps=}, {batch=}]"
        )


@pytest.mark.claim("loop.zero-grad-position")
@given(seed=seeds, optimizer=st.sampled_from(["sgd", "momentum", "adamw"]), steps=sizes(1, 5))
def test_three_places_for_zero_grad_train_bit_for_bit_alike_and_a_fourth_not_at_all(
    device, seed, optimizer, steps
):
    ends = {}
    for position, calls in POSITIONS.items():
        task = Regression(device, seed, optimizer)
        ends[position] = (task.run(calls, steps), task.weights.tolist())
    first, *others = ends.values()
    assert all(other == first for other in others), (
        f"the loops differ: {ends} [{seed=}, {optimizer}]"
    )
    task = Regression(device, seed, optimizer)
    task.run(("forward", "backward", "zero_grad", "step"), steps)
    assert not task.weights.any(), (
        f"the weights moved to {task.weights.tolist()} though their gradients were dropped"
    )


@pytest.mark.claim("loop.zero-grad-position")
@given(seed=seeds, steps=sizes(2, 6))
def test_without_zero_grad_every_step_takes_the_sum_of_all_gradients_so_far(device, seed, steps):
    task = Regression(device, seed)
    task.run(("forward", "backward", "step"), steps)
    x, y, got = task.numbers()
    summed, right = (gradient_descent(x, y, steps, summed=also) for also in (True, False))
    assert_close(got, summed, f"without zero_grad [{seed=}, {steps=}]")
    assert not np.allclose(got, right), (
        f"the loop without zero_grad ends where the right one does [{seed=}, {steps=}]"
    )


@pytest.mark.claim("loop.clipping")
@given(seed=seeds, steps=sizes(1, 6), most=st.floats(0.1, 50))
def test_clipping_between_backward_and_step_bounds_the_gradient_and_elsewhere_does_nothing(
    device, seed, steps, most
):
    ends = {}
    for place in range(1, 5):
        task = Regression(device, seed, most=most)
        task.run((*ORDER[:place], "clip", *ORDER[place:]), steps)
        x, y, ends[place] = task.numbers()
    clipped = gradient_descent(x, y, steps, most=most)
    free = gradient_descent(x, y, steps)
    for place, end in ends.items():
        should = clipped if place == 3 else free  # torch adds 1e-6 to the norm
        assert_close(
            end,
            should,
            f"clipped to {most} before call {place} of {ORDER} [{seed=}, {steps=}]",
            1e-6,
        )


@pytest.mark.claim("loop.evaluation")
@given(seed=st.integers(0, 999), every=sizes(1, 4))
def test_evaluation_changes_no_step_in_eval_mode_without_gradients(device, seed, every):
    def run(mode, steps=8):
        with generators_kept():
            task = Training(device, ["torch" if device.type == "cpu" else "accelerator"], seed=seed)
            for step in range(steps):
                if mode is not None and step % every == 0:
                    getattr(task.net, mode)()
                    with torch.no_grad():
                        task.net(task.x.to(device))
                    task.net.train()
                task.step()
        return task.weights()

    without = run(None)
    evaluated = run("eval")
    in_train_mode = run("train")
    assert evaluated == without, f"evaluation every {every} steps changed the weights [{seed=}]"
    assert in_train_mode != without, (
        f"evaluation in train mode drew no dropout, and changed nothing [{seed=}]"
    )


@pytest.mark.claim("loop.logging")
@given(batch=sizes(), width=sizes(most=12), layers=sizes(most=4), logged=sizes(1, 3))
def test_a_log_keeps_activations_of_losses_never_differentiated(
    metered_device, batch, width, layers, logged
):
    net = linear_net([width] * (layers + 1), metered_device)
    x = torch.ones(batch, width, device=metered_device)

    def loss():
        return net(x).square().mean()

    def trained():
        (kept := loss()).backward()
        net.zero_grad()
        return kept

    each = activation_bytes(DeepLinear(dim=width, layers=layers), batch) + 4
    for entry, should in ((lambda: loss().item(), 0), (trained, 4), (loss, each)):
        _, held = held_after(metered_device, *[entry] * logged)
        assert held[-1] == logged * should, (
            f"{logged} losses hold {held[-1]} bytes, not {should} each [{layers=}]"
        )


@pytest.mark.claim("loop.train-mode")
@given(p=st.floats(0.05, 0.95), seed=seeds)
def test_dropout_drops_a_share_p_and_scales_the_rest_in_train_mode_only(device, p, seed):
    torch.manual_seed(seed)
    layer = nn.Dropout(p)
    x = torch.ones(4000, device=device, requires_grad=True)
    layer.eval()
    wrong = difference(layer(x), x)
    assert not wrong, f"dropout in eval mode: {wrong} [{p=}]"
    layer.train()
    y = layer(x)
    dropped = in_fp64(y == 0).mean().item()
    kept = y[y != 0]
    # Six deviations of a binomial share: one false alarm in 5e8.
    assert abs(dropped - p) < 6 * math.sqrt(p * (1 - p) / len(x)), (
        f"{dropped:.3f} were dropped, not {p:.3f} [{seed=}]"
    )
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - p))), (
        f"what is kept is not scaled by 1/(1 − {p})"
    )
    y.sum().backward()
    # Kernels may round 1/(1 − p) otherwise in the backward pass: by one unit of fp32.
    off = (x.grad - y).abs().max().item()
    assert off <= 2**-22 * y.max().item(), f"gradients are off by {off} from what is kept [{p=}]"


@pytest.mark.claim("loop.train-mode")
@given(seed=seeds, features=sizes(), rows=sizes(2, 8))
def test_batch_norm_uses_the_batch_in_train_mode_and_what_it_has_learnt_in_eval(
    device, seed, features, rows
):
    generator = torch.Generator().manual_seed(seed)
    x = (3 + 2 * torch.randn(rows, features, generator=generator)).to(device)
    layer = nn.BatchNorm1d(features).to(device)
    variance, mean = torch.var_mean(x, dim=0, correction=0)
    trained = (x - mean) / (variance + layer.eps).sqrt()
    assert_close(layer(x), trained, f"in train mode [{seed=}]", 1e-3)
    running_mean = 0.1 * mean
    running_var = 0.9 + 0.1 * torch.var(x, dim=0)
    evaluated = (x - running_mean) / (running_var + layer.eps).sqrt()
    layer.eval()
    assert_close(layer(x), evaluated, f"in eval mode, after one batch [{seed=}]", 1e-3)
    for statistic, should in (("running_mean", running_mean), ("running_var", running_var)):
        assert_close(
            getattr(layer, statistic), should, f"{statistic} after one batch [{seed=}]", 1e-4
        )


@pytest.mark.claim("loop.train-mode")
def test_eval_stays_until_train_is_called_and_does_not_turn_gradients_off(device):
    net = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Dropout(0.5))).to(device)
    x = torch.ones(1, 64, device=device)
    assert net.training, "a fresh net is not in train mode"
    assert not torch.equal(net(x), net(x)), (
        "two passes in train mode are alike, in spite of dropout"
    )
    net.eval()
    wrong = difference(net(x), net(x))
    assert not wrong, f"a second pass in eval mode: {wrong}"
    assert net(x).requires_grad, "eval mode turned gradients off"
    net(x).sum().backward()
    assert not net[1][0].training, "a backward pass switched back to train mode"
    net.train()
    assert net[1][0].training, "train() did not reach an inner layer"


@pytest.mark.claim("loop.mixed-two-layer")
@pytest.mark.parametrize(
    ("dtype", "scaler"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)]
)
@pytest.mark.parametrize(("width", "seed"), [(32, 0), (32, 1), (64, 0), (128, 0)])
def test_a_minimal_mixed_precision_loop_learns(device, record_figure, dtype, scaler, width, seed):
    net, losses = trained_net(device, dtype, scaler=scaler, hidden=(width,), seed=seed)
    record_figure(f"{dtype}: loss {losses[0]:.1f} to {losses[-1]:.3f} in 60 steps")
    assert losses[-1] < losses[0] / 20, (
        f"the loss fell only from {losses[0]} to {losses[-1]} in {dtype}"
    )
    where = {tensor.device for p in net.parameters() for tensor in (p, p.grad)}
    assert where == {torch.empty(0, device=device).device}, (
        f"parameters and gradients are on {where}, not {device}"
    )


@pytest.mark.claim("loop.mixed-two-layer")
@pytest.mark.needs("cuda")
@without_collector()
def test_the_loop_takes_memory_of_one_gpu_alone(device):
    others = [index for index in range(torch.cuda.device_count()) if index != (device.index or 0)]
    before = [torch.cuda.memory_allocated(index) for index in others]
    net, _ = trained_net(device, torch.bfloat16, steps=2)
    after = [torch.cuda.memory_allocated(index) for index in others]
    assert after == before, f"the other GPUs' memory went from {before} to {after} bytes"
    assert next(net.parameters()).device == device


@pytest.mark.claim("loop.mixed-two-layer", "amp.gradscaler")
def test_in_fp16_a_loop_without_the_scaler_stands_still_where_gradients_are_small(device):
    """Gradients below 2^-25 are zero in fp16, and Adam does not move; scaled by 65536 they are not."""
    plain, scaled, bf16 = (
        trained_net(device, dtype, scaler=scaler, loss_factor=1e-9)[1]
        for dtype, scaler in [
            (torch.float16, False),
            (torch.float16, True),
            (torch.bfloat16, False),
        ]
    )
    assert plain[0] == plain[-1], f"fp16 without a scaler learnt, from {plain[0]} to {plain[-1]}"
    for name, losses in (("fp16 with a scaler", scaled), ("bf16", bf16)):
        assert losses[-1] < losses[0] / 20, (
            f"{name}: the loss fell only from {losses[0]} to {losses[-1]}"
        )
