"""Claims about training on many devices: ranks in one process, and the bytes that they send."""

from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from accounting.models import Transformer
from accounting.optimizers import RECIPES
from accounting.parallel import Collective, Parallelism, bus_factor, collectives, device_parameters
from test_claims.oracles.messages import equal
from test_claims.strategies import (
    TORCH_DTYPES,
    fewer,
    sizes,
)


def all_reduce_around(parts):
    """Adds up the parts of ranks in a ring, in place.

    Returns the bytes that each rank sends for the sums, and for what is complete.
    """
    ranks = len(parts)
    sent_bytes = [0, 0]
    # Sums go around, then what is complete.
    for turn in range(2 * (ranks - 1)):
        moved = [parts[rank, (rank - turn) % ranks].copy() for rank in range(ranks)]
        for rank, part in enumerate(moved):
            place = (rank - turn) % ranks
            there = parts[(rank + 1) % ranks]
            if turn < ranks - 1:
                there[place] += part
            else:
                there[place] = part
        sent_bytes[turn >= ranks - 1] += moved[0].nbytes
    return sent_bytes


HALVES = ("reduce-scatter", "all-gather", "all-reduce")


@pytest.mark.claim("parallel.all-reduce")
@given(ranks=sizes(most=9), each=sizes(0, 5))
def test_a_ring_all_reduce_sends_the_array_twice_less_a_ranks_share_of_it(ranks, each):
    parts = np.random.default_rng(0).integers(-9, 9, (ranks, ranks, each))
    should = parts.sum(axis=0)
    sent_bytes = all_reduce_around(parts)
    assert (parts == should).all(), f"after the ring the ranks hold {parts}, not {should} each"

    for name, sent in zip(HALVES, (*sent_bytes, sum(sent_bytes)), strict=True):
        formula = Collective("data", name, ranks, bytes=should.nbytes, times=1).sent_bytes
        factor = round(bus_factor(name, ranks) * should.nbytes)
        equal((formula, factor), (sent, sent), "bytes sent", name=name)


@pytest.mark.claim("parallel.all-reduce")
@fewer
@given(ranks=sizes(most=9))
def test_data_parallelism_all_reduces_every_gradient(workloads, ranks):
    model = Transformer(
        vocab_size=ranks, layers=1, dim=8 * ranks, heads=4, hidden=12, learned_positions=ranks
    )
    net = workloads.build(model, device="meta")
    for (recipe, of), micro_batches in product(RECIPES.items(), (1, 3)):
        gradients = [p.to(TORCH_DTYPES[of.gradients]).nbytes for p in net.parameters()]
        split = Parallelism(data=ranks, micro_batches=micro_batches)
        needed = collectives(model, split, ranks * micro_batches, 1, recipe)
        sent_bytes = sum(each.sent_bytes for each in needed)
        should = Fraction(2 * (ranks - 1), ranks) * sum(gradients)

        equal(sent_bytes, should, "bytes sent", recipe=recipe)


@pytest.mark.claim("parallel.bubble")
@pytest.mark.parametrize(
    ("send_s", "slow_s"), [(0, 0), (1, 0), (0, 1)], ids=["as stated", "sends", "a slow stage"]
)
@given(stages=sizes(most=9), micro_batches=sizes(most=9), passes_s=st.tuples(sizes(), sizes()))
def test_a_pipeline_idles_for_stages_less_one_over_micro_batches(
    stages, micro_batches, passes_s, send_s, slow_s
):
    # When each stage is free, how far each micro-batch is done, and the work of all.
    free_s = [0] * stages
    done_s = [0] * micro_batches
    busy_s = 0
    orders = range(stages), range(stages)[::-1]
    for seconds, order in zip(passes_s, orders, strict=True):
        for stage, number in product(order, range(micro_batches)):
            works_s = seconds + slow_s if stage == 0 else seconds
            arrives_s = done_s[number] if stage == order[0] else done_s[number] + send_s
            ends_s = max(free_s[stage], arrives_s) + works_s
            free_s[stage] = done_s[number] = ends_s
            busy_s += works_s
    idle = float(Fraction(stages * max(free_s), busy_s) - 1)
    formula = Parallelism(pipeline=stages, micro_batches=micro_batches).bubble
    off = idle - formula
    more = stages > 1 and (send_s or (slow_s and micro_batches > 1))
    right = off > 1e-9 if more else abs(off) < 1e-9

    assert right, f"the bubble is {formula}, but idle is {idle}"


@pytest.mark.claim("parallel.experts")
@pytest.mark.parametrize(
    ("among", "off"), [((0, 1, 2, 3), 0), ((0,), 1), ((3,), -1)], ids=["even", "home", "away"]
)
@fewer
@given(
    ranks=st.sampled_from([1, 2, 4]),
    groups=sizes(most=3),
    active=sizes(most=3),
    tokens=sizes(),
    layers=sizes(most=3),
    half=sizes(),
    micro_batches=sizes(most=3),
)
def test_tokens_go_to_their_experts_and_back_unless_at_home(
    workloads, among, off, ranks, groups, active, tokens, layers, half, micro_batches
):
    """Each group of ranks has all experts once."""
    model = Transformer(
        vocab_size=8,
        layers=layers,
        dim=2 * half,
        heads=2,
        hidden=12,
        experts=4,
        active_experts=active,
        learned_positions=8,
    )
    split = Parallelism(data=groups * ranks, expert=ranks, micro_batches=micro_batches)
    token = torch.arange(4 * tokens).repeat_interleave(active)
    expert = torch.tensor(among).repeat(len(token) // len(among))
    # The tokens of rank 0, which has the first experts.
    away = expert * ranks // 4 > 0
    sent = []

    def crossing(x):
        """Forward, `x` leaves the rank or comes back to it; backward, so does its gradient."""
        sent.append(x[away])
        x.register_hook(lambda gradient: sent.append(gradient[away]))
        return x

    x = torch.ones(4 * tokens, model.dim, requires_grad=True)
    experts = torch.rand(4, model.dim, model.dim)
    for _ in range(layers):
        results = crossing(x[token])[:, None] @ experts[expert]
        x = torch.zeros_like(x).index_add(0, token, crossing(results[:, 0]))
    x.sum().backward()
    batch = micro_batches * groups * ranks
    needed = collectives(model, split, batch, 4 * tokens, "fp32")
    formula = sum(each.sent_bytes for each in needed if each.kind == "expert")
    should = micro_batches * sum(part.nbytes for part in sent)

    if ranks == 1 or off == 0:
        equal(formula, should, "bytes that leave the rank")
    else:
        equal(formula > should, off > 0, "more by formula", formula=formula, counted=should)

    named = workloads.build(model, device="meta").named_parameters()
    whole = {True: 0, False: 0}
    for name, p in named:
        whole[".experts." in name] += p.numel()
    own, experts, ends = device_parameters(model, split)
    equal(experts * ranks, whole[True], "parameters of experts")
    equal(own + ends, whole[False], "parameters that each device holds")


def shared(ranks, block, x, reduced):
    """A block whose ranks each have some heads and columns.

    `reduced` collects the arrays that they all-reduce.
    """

    def summed(x, between, columns, rows):
        x = x.view_as(x)
        # Each rank has a summand of its gradient.
        x.register_hook(reduced.append)
        by_columns = [layer.weight.chunk(ranks) for layer in columns]
        by_rows = rows.weight.chunk(ranks, dim=1)
        y = 0
        for *own, last in zip(*by_columns, by_rows, strict=True):
            projected = [functional.linear(x, weight) for weight in own]
            y = y + functional.linear(between(*projected), last)
        reduced.append(y)
        return y

    def attended(*projected):
        heads = []
        for each in projected:
            of_heads = each.unflatten(-1, (-1, block.attention.width))
            heads.append(of_heads.transpose(1, 2))
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return y.transpose(1, 2).flatten(2)

    of = block.attention
    gelu = partial(functional.gelu, approximate="tanh")
    x = x + summed(block.attention_norm(x), attended, (of.query, of.key, of.value), of.out)
    return x + summed(block.mlp_norm(x), gelu, (block.mlp.up,), block.mlp.down)


@pytest.mark.claim("parallel.tensor")
@fewer
@given(
    ranks=st.sampled_from([1, 2, 4]),
    width=sizes(1, 4),
    batch=sizes(1, 3),
    tokens=sizes(1, 5),
    recipe=st.sampled_from([*RECIPES]),
    micro_batches=sizes(1, 3),
)
def test_ranks_all_reduce_the_activations_four_times_a_layer(
    workloads, ranks, width, batch, tokens, recipe, micro_batches
):
    one = Transformer(
        vocab_size=8, layers=1, dim=8, heads=4, head_dim=width, hidden=12, learned_positions=8
    )
    two = replace(one, layers=2)
    block = workloads.build(one).layers[0]
    reduced = []
    x = torch.randn(batch, tokens, one.dim, requires_grad=True)
    gradients = []
    for y in (block(x), shared(ranks, block, x, reduced)):
        loss = y.square().sum()
        gradients.append(torch.autograd.grad(loss, (x, *block.parameters())))

    for should, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, should, rtol=1e-3, atol=1e-4)

    split = Parallelism(tensor=ranks, sequence=False, micro_batches=micro_batches)
    sent = []
    for model in (one, two):
        needed = collectives(model, split, micro_batches * batch, tokens, recipe)
        sent.append(sum(each.times * each.bytes for each in needed))
    formula = sent[1] - sent[0]
    # In the recipe's dtype, and for each micro-batch.
    of_element = TORCH_DTYPES[RECIPES[recipe].parameters].itemsize * micro_batches * (ranks > 1)
    should = of_element * sum(array.numel() for array in reduced)

    equal(should, 4 * of_element * x.numel(), "bytes reduced")
    equal(formula, should, "bytes reduced by formula")

    equal(2 * sent[0] - sent[1], 2 * of_element * x.numel(), "bytes that embedding and head send")

    for kv_heads in (4, 2, 1):
        grouped = replace(one, kv_heads=kv_heads)
        own = 0
        for name, parameter in workloads.build(grouped, device="meta").layers.named_parameters():
            of_keys = "key" in name or "value" in name
            sharers = min(ranks, kv_heads) if of_keys else ranks
            own += parameter.numel() // (sharers if parameter.dim() > 1 else 1)
        equal(device_parameters(grouped, split)[0], own, "parameters of a device", model=grouped)


@pytest.mark.claim("parallel.tensor")
@given(heads=sizes(most=8), ranks=sizes(2, 8))
def test_heads_that_do_not_divide_are_refused(heads, ranks):
    model = Transformer(vocab_size=8, layers=1, dim=2 * heads, heads=heads, hidden=12)
    message = f"tensor must divide the heads of the model, {heads}, got {ranks}"
    refused = pytest.raises(ValueError, match=message)
    with refused if heads % ranks else nullcontext():
        collectives(model, Parallelism(tensor=ranks), 1, 1)
