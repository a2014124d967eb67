"""Faults in torch, formulas, clocks and the simulated card that benchmarks must notice, most of them on that card.

A benchmark must not record a figure that is wrong: its clock has to wait for the device, its inputs are random, its
FLOPs and bytes are those that were counted, its result is right, and its rate is possible.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from meta_tests.faults import Plant, fault, faults, replaced, stand_in

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
PRODUCT = "bench/test_numerics.py::test_product[{}]"


@fault(
    MATMUL,
    CEILING,
    STREAM,
    COPY,
    OVERLAP,
    CAST,
    options=ON_CARD,
    saying="but inputs should be random",
)
def all_inputs_are_zeros(patch: pytest.MonkeyPatch) -> None:
    for name in ("randn", "rand"):
        right = getattr(torch, name)
        patch.setattr(
            torch, name, lambda *shape, right=right, **options: right(*shape, **options).zero_()
        )
    patch.setattr(torch, "exp2", torch.zeros_like)


@fault(MATMUL, options=ON_CARD, saying="a product of fp32 differs from fp64 by nan")
def a_product_stops_working_after_twenty_calls(patch: pytest.MonkeyPatch) -> None:
    right, calls = torch.mm, [0]

    def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        calls[0] += out.shape == (256, 256)
        return right(a, b, out=out) if calls[0] <= 20 else out.mul_(1.0)

    patch.setattr(torch, "mm", mm)


@fault(COPY, options=ON_CARD, saying="elements arrived changed", instead_of="torch.Tensor.copy_")
def a_copy_goes_elsewhere(
    right: Callable[..., Tensor], target: Tensor, source: Tensor, **options: Any
) -> Tensor:
    right(torch.empty_like(target) if target.numel() > 2**20 else target, source, **options)
    return target


@fault(PARTS, options=ON_CARD, saying="bytes are declared", instead_of="bench.transfers.in_parts")
def the_last_part_is_forgotten(right: Callable[..., Any], whole: Any, parts: int) -> Any:
    less = replace(whole, source=whole.source[:-64], target=whole.target[:-64])
    return replace(right(whole, parts), run=right(less, parts).run)


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
    for field, saying in (
        ("flops", "FLOPs are (declared|counted)"),
        ("bytes", "bytes are declared"),
    ):
        name = f"{formula.rpartition('.')[2]}_says_half_of_the_{field}"
        fault(*tests, instead_of=formula, options=ON_CARD, saying=saying, name=name)(halved(field))


def last_element_wrong(function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
    out = function(*arguments, **options)
    with (
        torch.utils._python_dispatch._disable_current_modes(),
        torch.no_grad(),
    ):  # unseen by those who count
        if options.get("out") is not None:
            out.view(-1)[-1:].add_(1.0)
    return out


def flush_without_memory(self: Any) -> None:
    torch.cuda._sleep(10**5)  # the device is as busy as with a right one
    self.calls += 1


FP16_LEAST_NORMAL = 2.0**-14
FP16_LEAST_SUBNORMAL = 2.0**-24


def truncated_subnormals(x: Tensor) -> Tensor:
    subnormal = (x.abs() >= FP16_LEAST_SUBNORMAL) & (x.abs() < FP16_LEAST_NORMAL)
    return torch.where(subnormal, (x / FP16_LEAST_SUBNORMAL).trunc() * FP16_LEAST_SUBNORMAL, x)


def flushed(x: Tensor, below: float) -> Tensor:
    return torch.where(x.float().abs() < below, 0.0, x.float()).to(x.dtype)


def added_in_parts(mm: Callable[..., Tensor], a: Tensor, b: Tensor, **_: Any) -> Tensor:
    """Keeps the sum of 64 terms, and the sum of such sums, in the dtype of the operands."""
    parts = (mm(x, y) for x, y in zip(a.split(64, dim=1), b.split(64), strict=True))
    return functools.reduce(torch.add, parts)


def casting(change: Callable[[Tensor], Tensor]) -> Plant:
    """Has casts to fp16 go through `change` first."""

    def to(right: Callable[..., Tensor], x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return right(change(x) if arguments[:1] == (torch.float16,) else x, *arguments, **options)

    return stand_in("torch.Tensor.to", to)


def loading(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Plant:
    """Has each batch that is loaded go through `change`."""
    return stand_in(
        "bench.tokens.Batches.load", lambda right, self, starts: change(*right(self, starts))
    )


# fmt: off
faults(
    ("the_clock_does_not_wait_for_the_device", (LARGE, CEILING, STREAM, LATE_COPY, OVERLAP),
     replaced("prooflops.measured.clock", lambda device="cpu": lambda: time.perf_counter()),
     r"was the device waited for\?"),
    ("the_peak_is_that_of_sparse_products", (MATMUL, CEILING, STEP),
     stand_in("prooflops.machine.device.peak_flop_per_s",
        lambda dense, *arguments: (peak := dense(*arguments)) and 2 * peak), "is it the sparse one"),
    ("the_flush_touches_no_memory", LAYER,
     replaced("bench.cache.Flush.__call__", flush_without_memory), "the caches are still hot"),
    ("a_product_takes_no_time", LARGE,
     replaced("meta_tests.simulated_card.card.Card.kernel_s", lambda *_: 1e-12), "the FLOPs or the clock are wrong"),
    ("step_flops_says_half_of_the_forward_pass", STEP,
     stand_in("accounting.models.step_flops", halved("forward")),
     "FLOPs a step, but"),
    ("an_element_has_half_of_its_bytes", CAST,
     stand_in("accounting.memory.element_bytes", lambda right, *arguments: right(*arguments) // 2),
     "bytes are declared"),
    ("a_product_is_half_of_what_it_should_be", (MATMUL, CEILING, LAYER),
     stand_in("torch.mm", lambda mm, a, b, *, out: mm(a, b, out=out).mul_(0.5)),
     "a product of fp32 differs from fp64"),
    ("the_last_element_of_torch_add_is_wrong", STREAM,
     stand_in("torch.add", last_element_wrong), "differs from fp64"),
    ("the_last_element_of_torch_clamp_is_wrong", KERNEL,
     stand_in("torch.clamp", last_element_wrong), "differs from fp64"),
    ("the_optimizer_makes_no_step", STEP,
     replaced("bench.training.Step.update", lambda self: self.optimizer.zero_grad()),
     "the loss on one batch should fall"),
    ("nothing_is_copied", COPY, stand_in("torch.Tensor.copy_", lambda right, target, source, **options:
        target if target.numel() > 2**20 else right(target, source, **options)), "bytes are declared"),
    ("products_run_without_the_copy", OVERLAP,
     replaced("bench.transfers.beside", lambda device, main, aside: main), "elements arrived changed"),
    ("a_copy_runs_without_the_products", OVERLAP,
     replaced("bench.transfers.beside", lambda device, main, aside: aside),
     "the products beside the copy were not"),
    ("a_cast_flushes_subnormals", CAST,
     casting(lambda x: torch.where(x.abs() < FP16_LEAST_NORMAL, 0.0, x)), "values became 0 in fp16"),
    ("a_cast_truncates", CAST, casting(lambda x: torch.where(
        x.abs() >= FP16_LEAST_NORMAL, (x.view(torch.int32) & ~0x1FFF).view(torch.float32), x)),
     "fp16 rounds with a relative error"),
    ("a_cast_truncates_subnormals", CAST, casting(truncated_subnormals), "fp16 rounds a subnormal number"),
    ("a_cast_saturates_early", CAST,
     casting(lambda x: x.clamp(-32768, 32768)), "beyond the largest fp16 became smaller"),
    ("a_cast_flushes_the_least_subnormals", CAST.replace("fp16", "fp8_e5m2"),
     stand_in("torch.Tensor.to", lambda right, x, *arguments, **options: right(
        flushed(x, 2.0**-15) if arguments == (torch.float8_e5m2,) and x.dim() == 2 else x, *arguments, **options)),
     "fp8_e5m2 cast of 1.52588e-05 became 0, but should be kept"),
    ("products_of_fp16_read_subnormals_as_zero", PRODUCT.format("fp16"),
     stand_in("torch.mm", lambda mm, a, b, **_: mm(flushed(a, FP16_LEAST_NORMAL), b)),
     "fp16 operand 3.05176e-05 became 0, but should be kept"),
    ("products_of_fp16_write_subnormals_as_zero", PRODUCT.format("fp16"),
     stand_in("torch.mm", lambda mm, a, b, **_: flushed(mm(a, b), FP16_LEAST_NORMAL)),
     "fp16 result 3.05176e-05 became 0, but should be kept"),
    ("products_of_bf16_lose_normal_numbers", PRODUCT.format("bf16"),
     stand_in("torch.mm", lambda mm, a, b, **_: mm(flushed(a, 2.0**-125), b)),
     "bf16 operand 1.17549e-38 became 0, but should be kept, or all subnormal numbers and no others become 0"),
    ("products_of_fp8_read_subnormals_as_zero", PRODUCT.format("fp8_e4m3"),
     stand_in("torch._scaled_mm", lambda mm, a, b, *scales, **options: mm(flushed(a, 2.0**-6), b, *scales, **options)),
     "fp8_e4m3 operand 0.0078125 became 0, but should be kept"),
    ("products_of_fp32_keep_ten_bits", PRODUCT.format("fp32"),
     stand_in("torch.mm", lambda mm, a, b, **_: mm(
        torch.where(a.abs() < 2.0**-100, a, (a.view(torch.int32) & ~0x1FFF).view(torch.float32)), b)),
     "fp32 products by 1 keep 10 bits of a fraction, but should keep 23"),
    ("products_of_fp16_are_added_in_fp16", PRODUCT.format("fp16"), stand_in("torch.mm", added_in_parts),
     "fp16 products 1 terms apart are added to 11 bits, but should be to at least 24"),
    ("an_image_allows_tf32",
     "test_claims/test_matmul.py::test_a_product_of_fp32_matrices_keeps_every_bit_of_fp32",
     replaced("torch.get_float32_matmul_precision", lambda: "high"), "do not keep its 23 bits"),
    options=ON_CARD,
)
faults(
    ("all_tokens_are_zeros", TOKENS,
     stand_in("bench.models.inputs",
        lambda right, *arguments, **options: torch.zeros_like(right(*arguments, **options))),
     "but inputs should be random"),
    ("a_token_has_half_of_its_bytes", BATCHES,
     lambda patch: patch.setattr("bench.test_data.itemsize", lambda dtype: 1), "1 bytes a token are declared"),
    ("micro_batches_count_in_full", ACCUMULATION, stand_in("bench.training.Step.forward",
        lambda right, self, *batch: right(self, *batch) * self.micro_batches), "accumulated gradients differ by"),
    ("checkpointing_keeps_all", CHECKPOINTING, stand_in("bench.models.build",
        lambda right, model, *, device="cpu", **_: right(model, device=device)), "checkpointing holds"),
    ("rows_go_astray", BATCHES, loading(lambda x, y: (x.flip(0), y)), "are not those"),
    ("a_batch_is_half_as_long", BATCHES,
     loading(lambda x, y: (x[:, :32], y[:, :32])), "a batch is .*, declared is"),
    ("tokens_are_zeros", BATCHES, loading(lambda x, y: (torch.zeros_like(x), torch.zeros_like(y))), "are not those"),
    options=ON_CPU,
)
faults(
    ("a_users_model_has_half_of_its_flops", "bench/test_user_model.py::test_training_step",
     stand_in("prooflops.model.flop_difference.ProductsOfParameters.explained",
              halved("forward")),
     "FLOPs a step are declared, but"),
    options=f"{ON_CPU} --model=meta_tests/user_models/gpt.py:factory",
)
faults(
    ("the_memory_taken_is_not_looked_at", STREAM,
     replaced("prooflops.machine.device.free_bytes", lambda device: None), "out of memory"),
    options=ON_CARD.replace("4096", "1024"),
)
faults(
    ("a_geforce_is_expected_to_gain_by_tf32",
     "test_claims/test_matmul.py::test_tensor_cores_multiply_faster_than_fp32_by_default[tf32]",
     replaced("prooflops.machine.device.peak_flop_per_s", lambda *_: None)),
    options=f'{ON_CARD} --simulated-card "RTX 4090"',
)
faults(
    ("the_second_operand_of_int8_lies_by_rows",
     "meta_tests/simulated_card/test_card.py::test_int8_is_multiplied_at_full_rate",
     replaced("bench.products.lies_by_columns", lambda dtype, device: dtype == "fp8_e4m3"),
     "lie by columns"),
)
# fmt: on
