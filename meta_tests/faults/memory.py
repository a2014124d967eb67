"""Faults in the prediction of memory and in the allocator that it runs through."""

import torch
from torch.utils._pytree import tree_map_only

from meta_tests.faults import fault, wrong_value
from prooflops.trace import FORWARD

PREDICTED = "meta_tests/prooflops/memory"
ALLOCATOR = "meta_tests/prooflops/memory/test_allocator.py"
SEQUENCE = f"{ALLOCATOR}::test_a_sequence_of_requests_and_frees_costs_what_the_card_charged"
REQUESTED = f"{PREDICTED}/test_recorded.py::test_requested_bytes_are_those_recorded"
CHARGED = f"{PREDICTED}/test_recorded.py::test_charged_bytes_are_those_recorded"
COLD = (
    f"{PREDICTED}/test_recorded.py::"
    "test_requested_bytes_with_the_workspaces_of_cublas_are_those_recorded"
)
STRIDES = (
    f"{PREDICTED}/test_layouts.py::test_any_stride_and_offset_of_the_data_reaches_the_prediction"
)
TRAININGS = (
    "meta_tests/prooflops/model/test_fits.py::"
    "test_layers_recomputed_another_dtype_and_8_bit_states_fit_more"
)

# --- the allocator --------------------------------------------------------------------------------

wrong_value(
    "a_block_is_rounded_to_256_bytes",
    SEQUENCE,
    f"{CHARGED}[mlp-gelu-sum]",
    target="prooflops.memory.allocator.BLOCK_BYTES",
    value=256,
)


@fault(SEQUENCE, instead_of="prooflops.memory.caching_allocator.CachingAllocator._is_split")
def a_large_block_is_split_down_to_512_bytes(_, self, block, size):
    return block.size - size >= 512


@fault(SEQUENCE, instead_of="prooflops.memory.caching_allocator.CachingAllocator._add_merged")
def free_neighbours_stay_apart(_, self, block):
    block.pool.add(block)


@fault(SEQUENCE, instead_of="prooflops.memory.caching_allocator.Pool.best_fit")
def the_largest_free_block_is_taken(best_fit, self, size):
    fitting = [block for block in self.blocks() if block.size >= size]
    return max(fitting, key=lambda block: block.size, default=None)


@fault(
    f"{PREDICTED}/test_fits.py::test_a_step_fits_that_gets_through_once_the_cache_is_emptied",
    f"{ALLOCATOR}::test_a_full_card_empties_its_cache_before_it_refuses",
    instead_of="prooflops.memory.caching_allocator.CachingAllocator._release",
)
def a_free_segment_is_never_given_back(*_):
    pass


# --- what a step requests -------------------------------------------------------------------------


@fault(
    f"{COLD}[mlp-adam-micro]",
    instead_of="prooflops.memory.cuda.workspaces.Workspaces.enter",
)
def autograds_thread_shares_the_workspace_of_cublas(enter, self, ledger, product):
    enter(self, ledger, product._replace(phase=FORWARD))


@fault(f"{REQUESTED}[gpt-bf16]", instead_of="torch.is_autocast_cache_enabled")
def autocast_casts_a_parameter_each_time(_):
    return False


@fault(f"{REQUESTED}[gpt-bf16]", instead_of="prooflops.memory.cuda.autocast.Casts.clear")
def autocast_keeps_its_casts_for_ever(*_):
    pass


@fault(
    f"{REQUESTED}[encoder-dropout]",
    instead_of="prooflops.memory.cuda.reductions.staging_bytes",
)
def a_sum_needs_no_staging(*_):
    return ()


@fault(
    f"{REQUESTED}[encoder-dropout]",
    instead_of="prooflops.memory.cuda.choices._dropout",
)
def dropout_keeps_its_mask_as_numbers(_, x, p, train):
    return x * torch.empty_like(x) if train and p else x


@fault(
    f"{REQUESTED}[gpt-fp32]",
    instead_of="prooflops.memory.ledger.Ledger.free",
)
def a_storage_is_freed_before_its_last_operation(free, self, number):
    free(self, number)
    last, before = self.events[-1], self.events[-2]
    if not last.is_allocated and before.is_allocated and last.storage != before.storage:
        self.events[-2:] = [last, before]


@fault(
    f"{PREDICTED}/test_prediction.py::test_each_phase_leaves_bytes_of_its_class",
    f"{REQUESTED}[mlp-adam-micro]",
    instead_of="torch.Tensor.backward",
)
def gradients_are_gone_after_the_backward_pass(backward, self, *args, **options):
    from meta_tests.faults import leaves_of

    leaves = leaves_of(self)
    backward(self, *args, **options)
    for leaf in leaves:
        leaf.grad = None


@fault(
    f"{STRIDES}[every second row]",
    f"{STRIDES}[strides of 3]",
    instead_of="prooflops.memory.copies.Copies.tree",
)
def the_strides_of_inputs_are_ignored(tree, self, given):
    return tree(self, tree_map_only(torch.Tensor, torch.Tensor.contiguous, given))


@fault(
    f"{PREDICTED}/test_prediction.py::"
    "test_a_long_net_holds_what_is_predicted_and_peaks_no_lower[bags]",
    instead_of="prooflops.memory.fake_outputs._in_storage_of_terms",
)
def a_loss_keeps_one_number(_, terms, out):
    return out


@fault(
    f"{PREDICTED}/test_modules.py::"
    "test_a_module_behind_a_linear_layer_holds_what_is_predicted[nn.MultiLabelSoftMarginLoss]",
    f"{PREDICTED}/test_prediction.py::"
    "test_a_long_net_holds_what_is_predicted_and_peaks_no_lower[rows]",
    instead_of="prooflops.memory.boxed_numbers.BoxedNumbers.note",
)
def the_numbers_that_autograd_keeps_are_not_seen(*_):
    pass


# --- on which cards it fits -----------------------------------------------------------------------


@fault(TRAININGS, instead_of="prooflops.model.training.recompute_layers")
def checkpointed_layers_keep_their_tensors(*_):
    pass


@fault(
    "meta_tests/prooflops/model/test_fits.py::"
    "test_a_state_of_8_bits_takes_a_byte_an_element_and_a_scale_for_each_256",
    instead_of="prooflops.model.training.AdamW8bit._init_state",
)
def a_state_of_8_bits_is_in_fp32(_, self, tensor):
    for name in ("state1", "state2"):
        self.state[tensor][name] = torch.zeros_like(tensor, dtype=torch.float32)


@fault(
    f"{PREDICTED}/test_fits.py::test_memory_is_what_torch_sees_less_the_context",
    instead_of="accounting.devices.usable_bytes",
)
def the_context_takes_no_memory(_, card):
    from accounting.devices import memory_bytes

    return memory_bytes(card)


@fault(
    f"{PREDICTED}/test_fits.py::test_the_largest_batch_fits_and_its_successor_does_not",
    f"{PREDICTED}/test_search.py::test_the_largest_size_is_found_in_few_trials",
    instead_of="prooflops.memory.search.largest_size",
)
def the_largest_size_is_one_too_small(right, *args, **options):
    fits, beyond = right(*args, **options)
    return fits - 1, beyond - 1


@fault(
    f"{PREDICTED}/test_recorded.py::"
    "test_what_is_unknown_is_named_and_makes_the_figure_a_lower_bound",
    instead_of="prooflops.memory.tracker.scratch_sizes",
)
def what_is_unknown_is_not_named(scratch_sizes, *operation):
    return scratch_sizes(*operation) or ()
