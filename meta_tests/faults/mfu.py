"""Faults in the utilisation's formula, in the peak table, in the clock, and in what torch counts and does."""

import time
from dataclasses import replace

from accounting.devices import ACCELERATORS
from meta_tests.faults import fault, faults, replaced, stand_in


@fault("mfu.never-near-one mfu.target")
def a_published_run_slips_by_a_digit(patch):
    from test_claims.oracles import published

    patch.setattr(
        published,
        "LARGE_RUNS",
        {name: (95.0, source) for name, (_, source) in published.LARGE_RUNS.items()},
    )


@fault("mfu.benchmark-yourself", instead_of="torch.mm")
def large_products_are_as_inefficient_as_small_ones(mm, a, b, out=None):
    if len(a) >= 64:
        time.sleep(0.02)
    return mm(a, b, out=out)


# fmt: off
faults(
    ("mfu_forgets_the_seconds", "mfu.definition", stand_in("accounting.roofline.mfu",
        lambda mfu, flops, seconds, peak, count=1, devices=1: mfu(flops, 1.0, peak, devices))),
    ("recomputing_a_part_counts_as_a_whole_forward_pass", "mfu.hfu", stand_in("accounting.roofline.hfu",
        lambda hfu, model, again, *rest: hfu(model, model // 3 if again else 0, *rest))),
    ("hfu_leaves_out_recomputation_and_counts_a_forward_instead", "mfu.term-for-kernel",
     stand_in("accounting.roofline.hfu", lambda hfu, model, again, *rest: hfu(model, model // 2, *rest))),
    ("a_median_is_the_last_round", "mfu.recipe",
     replaced("prooflops.measured.timing.Timing.median_s", property(lambda timing: timing.times_s[-1]))),
    ("sleeping_takes_no_time", "mfu.low-causes data.pipeline-bottleneck",
     stand_in("time.sleep", lambda _, seconds: None)),
    ("a_norm_drops_all_rows_but_one", "mfu.higher-if-matmul",
     stand_in("torch.nn.functional.layer_norm", lambda _, x, shape: x[:1])),
    ("attention_counts_only_the_pairs_that_are_needed", "mfu.credits-avoided",
     stand_in("accounting.attention.attention_flops",
        lambda attention_flops, shape: attention_flops(replace(shape, pairs="causal")))),
    ("fp32_has_the_peak_of_tf32", "mfu.fp32-example", stand_in("accounting.devices.peak_flop_per_s",
        lambda dense, device, dtype, **rest: dense(device, dtype.replace("fp32", "tf32"), **rest))),
    ("an_h100_has_a_tenth_more_units", "mfu.bf16-example",
     lambda patch: patch.setitem(ACCELERATORS, "H100 SXM5 80GB", ACCELERATORS["H100 SXM5 80GB"]._replace(units=145))),
)
# fmt: on
