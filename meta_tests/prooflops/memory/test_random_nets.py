"""Nets of a grammar, drawn by a seed: no peak is predicted too low, and no workspace that is said
to be known.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from random import SystemRandom

import pytest
import torch

from meta_tests.prooflops.memory.predicting import both
from meta_tests.prooflops.memory.random_nets import RandomNet
from prooflops.memory import kernels, scratch, tracker

# A kernel may hold boxed numbers beside its scratch.
BOXED_NUMBERS_BYTES = 16
# Most bytes said to be known, and measured, of an operator.


@pytest.fixture
def known(monkeypatch):
    """Measures every kernel, and compares those whose scratch is said to be known."""
    found = {}
    seen = set()
    kernels_of_calls = kernels.kernels_of

    def kernels_of(calls, device):
        measured = kernels_of_calls(calls, device)
        for call in measured.keys() - seen:
            args, kwargs = call.arguments()
            with torch.set_grad_enabled(call.grad_mode):
                out = call.operator(*args, **kwargs)
            said = scratch.known_scratch(call.operator, args, device, out)
            if said is not None:
                now = said, measured[call].scratch_bytes
                name = call.operator._opname
                found[name] = max(found.get(name, now), now, key=lambda pair: pair[1] - pair[0])
        seen.update(measured)
        return measured

    monkeypatch.setattr("prooflops.memory.ledger.kernels_of", kernels_of)
    monkeypatch.setattr(
        tracker, "known_scratch", lambda operator, *_: 0 if operator.is_view else None
    )
    return found


def share_of(seed):
    """The highest predicted peak of the net's phases over the measured one, after a look at each
    phase.
    """
    net = RandomNet(seed)
    torch.manual_seed(seed)
    options = {
        name: getattr(net, name) for name in ("optimizer", "loss", "autocast", "micro_batches")
    }
    try:
        guess, held = both(net.build, net.batch, **options)
    except RuntimeError as error:
        # What torch cannot run has no peak: an LSTM under autocast without AVX-512, say.
        autocast = torch.autocast("cpu", net.autocast) if net.autocast else nullcontext()
        with pytest.raises(RuntimeError, match=re.escape(str(error))), autocast:
            net.build()(net.batch)
        return 1.0
    peaks = []
    for name, real in held.phases.items():
        ours = guess.phases[name]
        assert ours.live_bytes == real.live_bytes, (
            f"{name} of net {seed}: {ours.live_bytes=}, but {real} [{net}]"
        )
        if name != "built":
            peak = ours.peak_bytes_with_scratch
            assert peak >= real.peak_bytes - BOXED_NUMBERS_BYTES, (
                f"{name} of net {seed}: {peak=} is too low: {real} [{net}]"
            )
            peaks.append((peak, real.peak_bytes))
    predicted, measured = map(max, zip(*peaks, strict=True))
    return predicted / measured


def seeds_off(seeds):
    """The nets whose highest peak is predicted more than 1 % off, with the share."""
    return {seed: share for seed in seeds if abs((share := share_of(seed)) - 1) > 0.01}


ignored = pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight",
    "ignore:dropout option adds",
    # Of a reentrant checkpoint in the first layer.
    "ignore:None of the inputs have requires_grad",
)


@ignored
@pytest.mark.parametrize("nets", [40])
def test_no_peak_of_a_random_net_is_predicted_too_low(nets, known):
    off = seeds_off(range(nets))
    assert len(off) <= 0.05 * nets, (
        f"more than 5 % of the peaks are off by more than 1 %: by seed {off}"
    )
    assert len(known) > 50, f"only {sorted(known)} are said to be known"
    wrong = {name: pair for name, pair in known.items() if pair[1] > pair[0] + BOXED_NUMBERS_BYTES}
    assert not wrong, f"(known, measured) bytes of scratch: {wrong}"


@ignored
@pytest.mark.prove
def test_of_2000_nets_that_nobody_has_seen_one_in_a_hundred_is_off():
    start = SystemRandom().randrange(2**31)
    off = seeds_off(range(start, start + 2000))
    assert len(off) <= 20, f"more than 1 % of the peaks are off by more than 1 %: by seed {off}"
