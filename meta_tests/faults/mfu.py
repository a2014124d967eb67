"""Faults in the utilisation's formula, in the peak table, in the clock, and in what torch counts and does."""

import time
from dataclasses import replace

from accounting import measured
from meta_tests.faults import fault


@fault("mfu.definition", instead_of="accounting.roofline.mfu")
def mfu_forgets_the_seconds(mfu, flops, seconds, peak, count=1, devices=1):
    return mfu(flops, 1.0, peak, devices)


@fault("mfu.hfu mfu.term-for-kernel", instead_of="accounting.roofline.hfu")
def hfu_leaves_out_recomputation_and_counts_a_forward_instead(hfu, model, again, *rest):
    return hfu(model, model // 2, *rest)


@fault("mfu.recipe", instead_of="accounting.measured.clock")
def the_clock_does_not_wait_for_the_device(_original, device="cpu"):
    return time.perf_counter


@fault("mfu.recipe")
def the_warm_up_is_left_out(patch):
    timed = measured.time
    patch.setattr(
        measured, "time", lambda fn, device="cpu", *, warmup, rounds: timed(fn, device, warmup=0, rounds=rounds)
    )


@fault("mfu.low-causes", instead_of="time.sleep")
def sleeping_takes_no_time(_original, seconds):
    return None


@fault("mfu.higher-if-matmul", instead_of="torch.nn.functional.layer_norm")
def a_norm_drops_all_rows_but_one(_original, x, shape):
    return x[:1]


@fault("mfu.never-near-one mfu.target")
def a_published_run_slips_by_a_digit(patch):
    from test_claims.oracles import published

    patch.setattr(published, "LARGE_RUNS", {name: (95.0, source) for name, (_, source) in published.LARGE_RUNS.items()})


@fault("mfu.target mfu.benchmark-yourself", instead_of="torch.mm")
def large_products_are_as_inefficient_as_small_ones(mm, a, b, out=None):
    if len(a) >= 64:
        time.sleep(0.02)
    return mm(a, b, out=out)


@fault("mfu.credits-avoided", instead_of="accounting.attention.attention_flops")
def attention_counts_only_the_pairs_that_are_needed(attention_flops, shape):
    return attention_flops(replace(shape, pairs="causal"))


@fault("mfu.credits-avoided", instead_of="accounting.roofline.mfu")
def mfu_is_cut_off_at_one(mfu, *args, **options):
    return min(mfu(*args, **options), 1.0)


@fault("mfu.bf16-example")
def an_h100_has_a_tenth_more_units(patch):
    from accounting import devices

    row = devices.ACCELERATORS["H100 SXM5 80GB"]
    patch.setitem(devices.ACCELERATORS, row.label, row._replace(units=145))
