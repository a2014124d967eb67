"""Bytes on the wire and on a device, against what torch's own parallel code issues and holds.

It runs in a fake process group, of which the process is one rank of any number: the collectives
return at once, and nothing else differs.
"""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import parallel
from torch.testing._internal.distributed import fake_pg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accounting.models import Transformer
from accounting.parallel import Parallelism, collectives, device_parameters
from prooflops.families import from_config
from test_claims.oracles.messages import equal

LLAMA = Transformer(
    vocab_size=32,
    layers=2,
    dim=16,
    heads=8,
    kv_heads=4,
    head_dim=2,
    hidden=24,
    gated=True,
    norm="rmsnorm",
)
GPT = Transformer(vocab_size=64, layers=2, dim=32, heads=4, hidden=128)
BATCH, SEQUENCE = 8, 16

each_model = pytest.mark.parametrize(
    ("model", "ranks"), [(LLAMA, 4), (GPT, 2)], ids=["llama on 4", "gpt on 2"]
)


@contextmanager
def world(*sizes, rank=0):
    """This process as one rank of a fake group of so many, as a mesh of these sizes."""
    total = torch.Size(sizes).numel()
    dist.init_process_group("fake", rank=rank, world_size=total, store=fake_pg.FakeStore())
    try:
        names = tuple(f"axis{number}" for number in range(len(sizes)))
        yield dist.init_device_mesh("cpu", sizes, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


KINDS = {
    "c10d._allgather_base_": "all-gather",
    "c10d._reduce_scatter_base_": "reduce-scatter",
    "c10d.allreduce_": "all-reduce",
    "c10d.send": "send",
    "_c10d_functional.all_gather_into_tensor": "all-gather",
    "_c10d_functional.all_reduce": "all-reduce",
    "_c10d_functional.reduce_scatter_tensor": "reduce-scatter",
}


class Wire(TorchDispatchMode):
    """Bytes of the whole array of each collective that is dispatched."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func).partition(".default")[0]
        if kind := KINDS.get(name):
            leaves = tree_leaves((args, result))
            array = max((x for x in leaves if isinstance(x, torch.Tensor)), key=torch.numel)
            # One number is a pipeline's vote.
            if array.numel() > 1:
                self.bytes[kind] += array.nbytes
        elif "c10d" in func.namespace:
            assert name.endswith(("wait_tensor", "_wrap_tensor_autograd", "recv_")), name
        return result


def arrays(model, split, recipe="fp32", batch=BATCH):
    """The bytes of the formula's arrays by collective."""
    total = Counter()
    for each in collectives(model, split, batch, SEQUENCE, recipe):
        total[each.name] += each.times * each.bytes
    return dict(total)


@pytest.mark.parametrize("micro_batches", [1, pytest.param(2, marks=pytest.mark.prove)])
@pytest.mark.parametrize("stage", [0, 2, 3])
@each_model
def test_data_parallelism_moves_what_ddp_and_fsdp2_move(
    workloads, model, ranks, stage, micro_batches
):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def reduce_at_once(_, bucket):
        # The fake group has no futures of its own.
        dist.all_reduce(bucket.buffer())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    net = workloads.build(model)
    split = Parallelism(data=ranks, zero_stage=stage, micro_batches=micro_batches)
    recipe = "bf16-fp32-gradients-master" if stage else "fp32"
    with world(ranks) as mesh:
        if stage:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for part in (*net.layers, net):
                reshards = stage == 3 and part is not net
                fully_shard(part, mesh=mesh, mp_policy=precision, reshard_after_forward=reshards)
        else:
            net = nn.parallel.DistributedDataParallel(net)
            net.register_comm_hook(None, reduce_at_once)
        tokens = workloads.inputs(model, BATCH // ranks, SEQUENCE)
        with Wire() as wire:
            for number, part in enumerate(tokens.chunk(micro_batches), start=1):
                if stage:
                    net.set_reshard_after_backward(stage == 3 or number == micro_batches)
                else:
                    net.require_backward_grad_sync = number == micro_batches
                net(part).float().sum().backward()
    should = arrays(model, split, recipe)
    equal(dict(wire.bytes), should, "bytes by collective", split=split)


def sharded(net, mesh, sequence):
    """Megatron's tensor parallelism in torch's own styles; of the norms' tokens if `sequence`."""
    from torch.distributed.tensor import Replicate, Shard

    outside, inside = Shard(1) if sequence else Replicate(), Replicate()
    gather = parallel.PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(inside,))
    leave = parallel.RowwiseParallel(output_layouts=outside)
    columns = parallel.ColwiseParallel()
    plan = {
        "embedding": parallel.RowwiseParallel(input_layouts=inside, output_layouts=outside),
        "layers.*.attention": gather,
        "layers.*.attention.[qkv]*": columns,
        "layers.*.attention.out": leave,
        "layers.*.mlp": gather,
        # The gate, where there is one, and the map up.
        "layers.*.mlp.[gu]*": columns,
        "layers.*.mlp.down": leave,
        "head": parallel.ColwiseParallel(
            input_layouts=outside, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sequence:
        for name in ("norm", "layers.*.attention_norm", "layers.*.mlp_norm"):
            plan[name] = parallel.SequenceParallel()
    return parallel.parallelize_module(net, mesh, plan)


def local_part(tensor):
    """What this rank has of a tensor, communication on it ended."""
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor.wait() if hasattr(tensor, "wait") else tensor


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@each_model
def test_tensor_parallelism_moves_and_holds_what_torchs_styles_do(
    workloads, model, ranks, sequence
):
    split = Parallelism(tensor=ranks, sequence=sequence)
    with world(ranks) as mesh:
        net = sharded(workloads.build(model), mesh, sequence)
        held = [local_part(parameter) for parameter in net.parameters()]
        tokens = workloads.inputs(model, BATCH, SEQUENCE)
        with Wire() as wire:
            net(tokens).to_local().sum().backward()
    should = arrays(model, split)
    equal(dict(wire.bytes), should, "bytes by collective", split=split)
    assert sum(tensor.numel() for tensor in held) == sum(device_parameters(model, split))


def pipeline(ranks, chunks, micro_batches, rank, shape):
    """torch's 1F1B schedule on one rank, of stages of one linear map each."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    def stage(number):
        given = torch.empty(shape, requires_grad=number > 0)
        made, linear = torch.empty(shape, requires_grad=True), nn.Linear(shape[-1], shape[-1])
        return PipelineStage(
            linear, number, ranks * chunks, torch.device("cpu"), input_args=given, output_args=made
        )

    stages = [stage(rank + chunk * ranks) for chunk in range(chunks)]
    options = {"loss_fn": lambda output, target: (output - target).sum()}
    if chunks == 1:
        return Schedule1F1B(stages[0], micro_batches, **options)
    return ScheduleInterleaved1F1B(stages, micro_batches, **options)


@pytest.mark.parametrize(("ranks", "chunks"), [(4, 1), (2, 2)])
def test_a_pipeline_sends_what_torchs_schedules_send(monkeypatch, ranks, chunks):
    # The other stages know their shapes too.
    monkeypatch.setattr(dist, "recv", lambda vote, **_: vote.fill_(1))
    micro = 4
    sent = []
    model = replace(LLAMA, layers=ranks * chunks)
    split = Parallelism(pipeline=ranks, interleaved=chunks, micro_batches=micro)
    x = torch.ones(BATCH, SEQUENCE, model.dim)
    for rank in range(ranks):
        with world(ranks, rank=rank):
            schedule = pipeline(ranks, chunks, micro, rank, (BATCH // micro, SEQUENCE, model.dim))
            inputs = [x] if rank == 0 else []
            targets = {"target": x} if rank == ranks - 1 else {}
            with Wire() as wire:
                schedule.step(*inputs, **targets)
        sent.append(wire.bytes["send"])
    should = sum(each.sent_bytes for each in collectives(model, split, BATCH, SEQUENCE, "fp32"))
    equal(max(sent), should, "bytes that the busiest rank sends", split=split)


EXPERTS = replace(LLAMA, experts=4, active_experts=2)


@pytest.mark.parametrize("kind", ["tensor", "context", "pipeline", "expert"])
def test_micro_batches_divide_what_activations_move(kind):
    moved = []
    for micro in (1, 2, 4):
        split = Parallelism(**{"data": 2, kind: 2}, micro_batches=micro)
        found = collectives(EXPERTS, split, BATCH, SEQUENCE)
        moved.append([each.times * each.bytes for each in found if each.kind == kind])
    assert moved[0] == moved[1] == moved[2] != []


def test_devices_of_deepseek_v3_hold_what_an_analysis_of_its_memory_prints():
    # Zhang and Su 2025, arXiv:2502.07846: 86 GiB in bf16 on each stage of 4 layers, 11.64 on each
    # of its 2 · 8 ranks; both of a tensor group have the whole shared expert and the maps to rotary
    # queries.
    model = from_config("deepseek-ai/DeepSeek-V3")
    rank = Parallelism(data=4, tensor=2, pipeline=16, expert=4)
    of_stage = sum(device_parameters(model, Parallelism(pipeline=16))[:2])
    assert round(of_stage * 2 / 2**30) == 86
    of_rank = sum(device_parameters(model, rank)[:2])
    whole_there = 4 * (3 * 7168 * 2048 + 1536 * 128 * 64) / 2
    assert round((of_rank + whole_there) * 2 / 2**30, 2) == 11.64
