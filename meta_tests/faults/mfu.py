"""Faults in the utilisation's formula, in the peak table, in the clock, and in what torch counts and does."""

import time

import torch

import accounting.roofline
from accounting import devices, measured
from meta_tests.faults import fault, replace


@fault("mfu.definition")
def mfu_forgets_the_seconds(patch):
    mfu = accounting.roofline.mfu
    replace(patch, mfu, lambda flops, seconds, peak, count=1, devices=1: mfu(flops, 1.0, peak, devices))


@fault("mfu.definition", "mfu.fp32-example", "mfu.bf16-example", "mfu.hfu")
def mfu_is_held_against_the_sparse_peak(patch):
    dense = devices.peak_flop_per_s
    replace(patch, dense, lambda *args, **rest: (peak := dense(*args, **rest)) and 2 * peak)


@fault("mfu.hfu", "mfu.term-for-kernel")
def hfu_leaves_out_recomputation_and_counts_a_forward_instead(patch):
    hfu = accounting.roofline.hfu
    replace(patch, hfu, lambda model, again, *rest: hfu(model, model // 2, *rest))


@fault("mfu.hfu")
def torch_checkpoints_without_recomputing(patch):
    import torch.utils.checkpoint as checkpoints

    patch.setattr(checkpoints, "checkpoint", lambda run, *args, use_reentrant: run(*args))


@fault("mfu.recipe")
def the_clock_does_not_wait_for_the_device(patch):
    replace(patch, measured.clock, lambda device="cpu": time.perf_counter)


@fault("mfu.recipe")
def the_warm_up_is_left_out(patch):
    timed = measured.time
    patch.setattr(
        measured, "time", lambda fn, device="cpu", *, warmup, rounds: timed(fn, device, warmup=0, rounds=rounds)
    )


@fault("mfu.low-causes")
def sleeping_takes_no_time(patch):
    patch.setattr(time, "sleep", lambda seconds: None)


@fault("mfu.higher-if-matmul")
def a_norm_drops_all_rows_but_one(patch):
    patch.setattr(torch.nn.functional, "layer_norm", lambda x, shape: x[:1])


@fault("mfu.never-near-one", "mfu.target")
def a_published_run_slips_by_a_digit(patch):
    from test_claims.oracles import published

    patch.setattr(published, "LARGE_RUNS", {name: (95.0, source) for name, (_, source) in published.LARGE_RUNS.items()})


@fault("mfu.target", "mfu.benchmark-yourself")
def large_products_are_as_inefficient_as_small_ones(patch):
    mm, sleep = torch.mm, time.sleep

    def slowly(a, b, out=None):
        if len(a) >= 64:
            sleep(0.02)
        return mm(a, b, out=out)

    patch.setattr(torch, "mm", slowly)
