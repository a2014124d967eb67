"""Faults in what devices that train together are said to send, hold and wait for."""

from accounting import parallel
from meta_tests.faults import faults, replaced, stand_in

# fmt: off
faults(
    ("an_all_reduce_goes_around_once", "parallel.all-reduce",
     lambda patch: patch.setitem(parallel.PASSES, "all-reduce", 1)),
    ("data_parallelism_sends_its_gradients_again", "parallel.all-reduce",
     stand_in("accounting.parallel.collectives", lambda sent, *args, **rest: 2 * [*sent(*args, **rest)])),
    ("an_exchange_sends_what_stays_at_home_too", "parallel.experts",
     lambda patch: patch.setitem(parallel.PASSES, "all-to-all", 2)),
    ("the_bubble_counts_every_stage", "parallel.bubble",
     replaced("accounting.parallel.Parallelism.bubble", property(lambda of: of.pipeline / of.micro_batches))),
    ("norms_are_divided_as_matrices_are", "parallel.tensor", replaced("accounting.parallel.REPLICATED", ())),
    ("attention_counts_one_head_fewer", "parallel.tensor", stand_in("torch.nn.functional.scaled_dot_product_attention",
        lambda attend, query, *rest, **options: attend(query, *rest, **options) * (query.shape[1] > 1))),
    ("a_split_takes_any_number_of_heads", "parallel.tensor",
     stand_in("accounting.parallel.Parallelism.stage_layers", lambda _, split, model: (model.layers, model.layers))),
)
# fmt: on
