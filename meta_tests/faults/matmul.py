"""Faults that the claims about products, einsum and einops must notice."""

import re

import torch

from meta_tests.faults import fault


@fault("matmul.einsum-efficient", instead_of="torch.einsum")
def an_einsum_of_two_takes_twenty_times_as_long(einsum, equation, *operands):
    if len(operands) == 2:
        for _ in range(19):
            einsum(equation, *operands)
    return einsum(equation, *operands)


@fault(
    "matmul.einsum-equals-transpose matmul.einsum-unnamed-summed matmul.einsum-ellipsis",
    "matmul.rearrange-heads",
    instead_of="torch.einsum",
)
def einsums_of_fp32_run_in_bf16(einsum, equation, *operands):
    if operands[0].dtype != torch.float32 or len(operands) < 2:
        return einsum(equation, *operands)
    return einsum(equation, *(x.bfloat16() for x in operands)).float()


EXAMPLES = "matmul.2d matmul.4d-by-2d matmul.4d-by-4d matmul.broadcast matmul.bsm-mk"


@fault(EXAMPLES, instead_of="torch.Tensor.__matmul__")
def products_of_fp32_keep_the_bits_of_bf16(matmul, a, b):
    if a.dtype != torch.float32:
        return matmul(a, b)
    return matmul(a.bfloat16(), b.bfloat16()).float()


@fault("matmul.no-loops", instead_of="torch.matmul")
def a_batch_is_a_loop_over_eight_products_at_a_time(matmul, a, b, out=None):
    if a.dim() == 2:
        return matmul(a, b, out=out)
    for i in range(0, a.shape[0], 8):
        matmul(a[i : i + 8], b[i : i + 8], out=out[i : i + 8])
    return out


@fault("matmul.jaxtyping-unenforced", instead_of="torch.Tensor.__truediv__")
def python_refuses_an_argument_of_another_shape_than_the_annotation_says(divide, x, divisor):
    if divisor == 2 and (x.dim() != 2 or x.shape[1] != 4):
        raise TypeError(f"x must be of shape (batch, 4), got {tuple(x.shape)}")
    return divide(x, divisor)


@fault("matmul.rearrange-is-view", instead_of="einops.rearrange")
def rearrange_copies_what_is_not_contiguous(rearrange, x, pattern, **sizes):
    return rearrange(x.contiguous(), pattern, **sizes)


@fault("matmul.rearrange-ambiguous", instead_of="einops.rearrange")
def rearrange_takes_a_first_factor_that_is_not_given_for_1(rearrange, x, pattern, **sizes):
    return rearrange(
        x,
        pattern,
        **(
            {re.findall("\\w+", pattern)[1]: 1}
            if len(sizes) + 2 < len(pattern.split()) // 2
            else {}
        )
        | sizes,
    )


@fault("matmul.reduce", instead_of="einops.reduce")
def the_mean_over_named_dimensions_is_their_sum(reduce, x, pattern, word):
    return reduce(x, pattern, "sum" if word == "mean" else word)
