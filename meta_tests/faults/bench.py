"""Faults in torch, formulas, clocks and the simulated card that benchmarks must notice, most of them on that card.

A benchmark must not record a figure that is wrong: its clock has to wait for the device, its inputs are random, its
FLOPs and bytes are those that were counted, its result is right, and its rate is possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from meta_tests.faults import Plant, fault, put, replaced

ON_CARD = "-p meta_tests.simulated_card.plugin --device cuda --quick --card-memory=4096"
ON_CPU = "--device cpu --quick"
MATMUL = "bench/test_matmul.py::test_matmul[fp32-square-256]"
LARGE = "bench/test_matmul.py::test_matmul[fp32-square-1024]"
CEILING = "bench/test_matmul.py::test_ceiling[fp32-sustainable]"
STREAM = "bench/test_bandwidth.py::test_stream[memory-triad]"
KERNEL = "bench/test_roofline.py::test_kernel[relu]"
LAYER = "bench/test_roofline.py::test_layer[fp32-batch-4]"
STEP = "bench/test_training.py::test_step[deep-linear-fp32-eager]"
TOKENS = "bench/test_training.py::test_step[transformer-fp32-eager]"
ACCUMULATION = "bench/test_training.py::test_accumulation[deep-linear]"
CHECKPOINTING = "bench/test_training.py::test_checkpointing[deep-linear]"
BATCHES = "bench/test_data.py::test_batches[uint16-random-0]"
COPY = "bench/test_transfer.py::test_copy[to-device-pinned-blocking]"
LATE_COPY = COPY.replace("-blocking", "-non-blocking")
PARTS = "bench/test_transfer.py::test_many_small[to-device]"
OVERLAP = "bench/test_transfer.py::test_overlap[to-host]"
CAST = "bench/test_numerics.py::test_cast[fp16]"
USER_MODEL = "bench/test_user_model.py::test_training_step"

# ---- clocks and inputs -------------------------------------------------------------------------------------------


@fault(LARGE, CEILING, STREAM, LATE_COPY, OVERLAP, options=ON_CARD, saying=r"was the device waited for\?")
def the_clock_does_not_wait_for_the_device(patch: pytest.MonkeyPatch) -> None:
    put(patch, "accounting.measured.clock", lambda device="cpu": lambda: time.perf_counter())


@fault(MATMUL, CEILING, STREAM, COPY, OVERLAP, CAST, options=ON_CARD, saying="but inputs should be random")
def all_inputs_are_zeros(patch: pytest.MonkeyPatch) -> None:
    for name in ("randn", "rand"):
        right = getattr(torch, name)
        patch.setattr(torch, name, lambda *shape, right=right, **options: right(*shape, **options).zero_())
    patch.setattr(torch, "exp2", torch.zeros_like)


@fault(TOKENS, options=ON_CPU, saying="but inputs should be random", instead_of="bench.models.inputs")
def all_tokens_are_zeros(right: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
    return torch.zeros_like(right(*arguments, **options))


@fault(
    MATMUL,
    CEILING,
    STEP,
    options=ON_CARD,
    saying="is it the sparse one",
    instead_of="prooflops.machine.device.peak_flop_per_s",
)
def the_peak_is_that_of_sparse_products(dense: Callable[..., float | None], *arguments: Any) -> float | None:
    return (peak := dense(*arguments)) and 2 * peak


@fault(LAYER, options=ON_CARD, saying="the caches are still hot")
def the_flush_touches_no_memory(patch: pytest.MonkeyPatch) -> None:
    from bench.cache import Flush

    def flush(self: Flush) -> None:
        torch.cuda._sleep(10**5)  # the device is as busy as with a right one
        self.calls += 1

    patch.setattr(Flush, "__call__", flush)


@fault(LARGE, options=ON_CARD, saying="the FLOPs or the clock are wrong")
def a_product_takes_no_time(patch: pytest.MonkeyPatch) -> None:
    from meta_tests.simulated_card.card import Card

    patch.setattr(Card, "kernel_s", lambda *_: 1e-12)


# ---- formulas ----------------------------------------------------------------------------------------------------


def halved(field: str) -> Callable[..., Any]:
    """Stands for a formula, and says half of its FLOPs or bytes."""

    def formula(right: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        work = right(*arguments, **options)
        return replace(work, **{field: getattr(work, field) // 2})

    return formula


for tests, formula in (
    ((MATMUL, CEILING, LAYER), "accounting.roofline.matmul_work"),
    ((STREAM,), "bench.streams.stream_work"),
    ((KERNEL,), "accounting.roofline.elementwise_work"),
):
    for field, saying in (("flops", "FLOPs are (declared|counted)"), ("bytes", "bytes are declared")):
        name = f"{formula.rpartition('.')[2]}_says_half_of_the_{field}"
        fault(*tests, instead_of=formula, options=ON_CARD, saying=saying, name=name)(halved(field))
fault(
    STEP, instead_of="accounting.models.step_flops", options=ON_CARD, saying="FLOPs a step, but",
    name="step_flops_says_half_of_the_forward_pass",
)(halved("forward"))  # fmt: skip
fault(
    USER_MODEL, instead_of="prooflops.model.examination.flops_of", saying="FLOPs a step are declared, but",
    options=f"{ON_CPU} --model=meta_tests/user_models/gpt.py:factory", name="a_users_model_has_half_of_its_flops",
)(halved("forward"))  # fmt: skip


@fault(COPY, CAST, options=ON_CARD, saying="bytes are declared", instead_of="accounting.memory.element_bytes")
def an_element_has_half_of_its_bytes(right: Callable[..., int], *arguments: Any) -> int:
    return right(*arguments) // 2


@fault(BATCHES, options=ON_CPU, saying="1 bytes a token are declared")
def a_token_has_half_of_its_bytes(patch: pytest.MonkeyPatch) -> None:
    from bench import test_data

    patch.setattr(test_data, "itemsize", lambda dtype: 1)


# ---- results -----------------------------------------------------------------------------------------------------


@fault(MATMUL, CEILING, LAYER, options=ON_CARD, saying="a product of fp32 differs from fp64", instead_of="torch.mm")
def a_product_is_half_of_what_it_should_be(mm: Callable[..., Tensor], a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    return mm(a, b, out=out).mul_(0.5)


@fault(MATMUL, options=ON_CARD, saying="a product of fp32 differs from fp64 by nan")
def a_product_stops_working_after_twenty_calls(patch: pytest.MonkeyPatch) -> None:
    right, calls = torch.mm, [0]

    def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        calls[0] += out.shape == (256, 256)
        return right(a, b, out=out) if calls[0] <= 20 else out.mul_(1.0)

    patch.setattr(torch, "mm", mm)


def last_element_wrong(function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
    out = function(*arguments, **options)
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():  # unseen by those who count
        if options.get("out") is not None:
            out.view(-1)[-1:].add_(1.0)
    return out


for test, operator in ((STREAM, "torch.add"), (KERNEL, "torch.clamp")):
    fault(
        test, instead_of=operator, options=ON_CARD, saying="differs from fp64",
        name=f"the_last_element_of_{operator.replace('.', '_')}_is_wrong",
    )(last_element_wrong)  # fmt: skip


@fault(STEP, options=ON_CARD, saying="the loss on one batch should fall")
def the_optimizer_makes_no_step(patch: pytest.MonkeyPatch) -> None:
    from bench.training import Step

    patch.setattr(Step, "update", lambda self: self.optimizer.zero_grad())


@fault(ACCUMULATION, options=ON_CPU, saying="accumulated gradients differ by")
def micro_batches_count_in_full(patch: pytest.MonkeyPatch) -> None:
    from bench.training import Step

    right = Step.forward
    patch.setattr(Step, "forward", lambda self, *batch: right(self, *batch) * self.micro_batches)


@fault(CHECKPOINTING, options=ON_CPU, saying="checkpointing holds", instead_of="bench.models.build")
def checkpointing_keeps_all(right: Callable[..., Any], model: Any, *, device: Any = "cpu", **_: Any) -> Any:
    return right(model, device=device)


# ---- data and transfers ------------------------------------------------------------------------------------------


def loading(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        from bench.tokens import Batches

        right = Batches.load
        patch.setattr(Batches, "load", lambda self, starts: change(*right(self, starts)))

    return plant


for name, saying, change in (
    ("rows_go_astray", "are not those", lambda x, y: (x.flip(0), y)),
    ("a_batch_is_half_as_long", "a batch is .*, declared is", lambda x, y: (x[:, :32], y[:, :32])),
    ("tokens_are_zeros", "are not those", lambda x, y: (torch.zeros_like(x), torch.zeros_like(y))),
):
    fault(BATCHES, options=ON_CPU, saying=saying, name=name)(loading(change))


@fault(COPY, options=ON_CARD, saying="bytes are declared", instead_of="torch.Tensor.copy_")
def nothing_is_copied(right: Callable[..., Tensor], target: Tensor, source: Tensor, **options: Any) -> Tensor:
    return target if target.numel() > 2**20 else right(target, source, **options)


@fault(COPY, options=ON_CARD, saying="elements arrived changed", instead_of="torch.Tensor.copy_")
def a_copy_goes_elsewhere(right: Callable[..., Tensor], target: Tensor, source: Tensor, **options: Any) -> Tensor:
    right(torch.empty_like(target) if target.numel() > 2**20 else target, source, **options)
    return target


@fault(PARTS, options=ON_CARD, saying="bytes are declared", instead_of="bench.transfers.in_parts")
def the_last_part_is_forgotten(right: Callable[..., Any], whole: Any, parts: int) -> Any:
    less = replace(whole, source=whole.source[:-64], target=whole.target[:-64])
    return replace(right(whole, parts), run=right(less, parts).run)


for name, saying, pick in (
    ("products_run_without_the_copy", "elements arrived changed", lambda device, main, aside: main),
    ("a_copy_runs_without_the_products", "the products beside the copy were not", lambda device, main, aside: aside),
):
    fault(OVERLAP, options=ON_CARD, saying=saying, name=name)(replaced("bench.transfers.beside", pick))


# ---- casts -------------------------------------------------------------------------------------------------------

LEAST_NORMAL, LEAST_SUBNORMAL = 2.0**-14, 2.0**-24  # of fp16


def truncated_subnormals(x: Tensor) -> Tensor:
    subnormal = (x.abs() >= LEAST_SUBNORMAL) & (x.abs() < LEAST_NORMAL)
    return torch.where(subnormal, (x / LEAST_SUBNORMAL).trunc() * LEAST_SUBNORMAL, x)


CASTS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "flushes_subnormals": ("values became 0 in fp16", lambda x: torch.where(x.abs() < LEAST_NORMAL, 0.0, x)),
    "truncates": ("fp16 rounds with a relative error", lambda x: torch.where(
        x.abs() >= LEAST_NORMAL, (x.view(torch.int32) & ~0x1FFF).view(torch.float32), x)),
    "truncates_subnormals": ("fp16 rounds a subnormal number", truncated_subnormals),
    "saturates_early": ("beyond the largest fp16 became smaller", lambda x: x.clamp(-32768, 32768)),
}  # fmt: skip


def casting(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def to(right: Callable[..., Tensor], x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return right(change(x) if arguments[:1] == (torch.float16,) else x, *arguments, **options)

    return to


for name, (saying, change_before) in CASTS.items():
    fault(CAST, instead_of="torch.Tensor.to", options=ON_CARD, saying=saying, name=f"a_cast_{name}")(
        casting(change_before)
    )


# ---- what a card does that a CPU does not ------------------------------------------------------------------------

fault(
    STREAM, options=ON_CARD.replace("4096", "1024"), saying="out of memory", name="the_memory_taken_is_not_looked_at"
)(replaced("prooflops.machine.device.free_bytes", lambda device: None))
fault(
    "test_claims/test_matmul.py::test_tensor_cores_multiply_faster_than_fp32_by_default[tf32]",
    options=f'{ON_CARD} --simulated-card "RTX 4090"', name="a_geforce_is_expected_to_gain_by_tf32",
)(replaced("prooflops.machine.device.peak_flop_per_s", lambda *_: None))  # fmt: skip
fault(
    "test_claims/test_matmul.py::test_a_product_of_fp32_matrices_keeps_every_bit_of_fp32", options=ON_CARD,
    saying="do not keep its 23 bits", name="an_image_allows_tf32",
)(replaced("torch.get_float32_matmul_precision", lambda: "high"))  # fmt: skip
fault(
    "meta_tests/simulated_card/test_card.py::test_int8_is_multiplied_at_full_rate",
    saying="int8 is multiplied at 0.2", name="the_second_operand_of_int8_lies_by_rows",
)(replaced("bench.products.lies_by_columns", lambda dtype, device: dtype == "fp8_e4m3"))  # fmt: skip
