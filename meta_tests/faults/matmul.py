"""Faults that the claims about products, einsum and einops must notice."""

import re

import torch

from meta_tests.faults import fault


@fault("matmul.einsum-ellipsis", instead_of="torch.einsum")
def einsum_takes_only_the_first_element_of_an_ellipsis(einsum, equation, *operands):
    result = einsum(equation, *operands)
    return result[:1].expand(result.shape) if "..." in equation and result.dim() > 2 else result


@fault(
    "matmul.einsum-unnamed-summed matmul.einsum-equals-transpose matmul.einsum-ellipsis",
    instead_of="torch.einsum",
)
def einsum_averages_over_the_dimensions_that_the_output_lacks(einsum, equation, *operands):
    result = einsum(equation, *operands)
    return result / max(sum(x.numel() for x in operands) // max(result.numel(), 1), 1)


@fault("matmul.einsum-efficient", instead_of="torch.einsum")
def einsum_contracts_from_right_to_left(einsum, equation, *operands):
    if len(operands) < 3:
        return einsum(equation, *operands)
    path = [
        position
        for present in range(len(operands), 1, -1)
        for position in (present - 2, present - 1)
    ]
    return torch._VF.einsum(equation, operands, path=path)


@fault("matmul.einsum-efficient", instead_of="torch.einsum")
def an_einsum_of_two_takes_twenty_times_as_long(einsum, equation, *operands):
    if len(operands) == 2:
        for _ in range(19):
            einsum(equation, *operands)
    return einsum(equation, *operands)


@fault("matmul.einsum-efficient", instead_of="torch.einsum")
def an_einsum_with_dots_is_multiplied_out(einsum, equation, *operands):
    if "..." not in equation or len(operands) != 2:
        return einsum(equation, *operands)
    a, b = operands
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


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


@fault(EXAMPLES, instead_of="torch.Tensor.__matmul__")
def products_of_bf16_add_up_in_bf16(matmul, a, b):
    if a.dtype != torch.bfloat16:
        return matmul(a, b)
    total = 0
    for column, row in zip(a.unsqueeze(-1).unbind(-2), b.unsqueeze(-2).unbind(-3), strict=True):
        total = total + column * row
    return total


@fault("matmul.rearrange-inverse matmul.rearrange-heads", instead_of="einops.rearrange")
def a_large_rearrangement_that_copies_mixes_up_its_last_rows(rearrange, x, pattern, **sizes):
    y = rearrange(x, pattern, **sizes)
    if x.numel() > 4096 and y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        return torch.cat([y[:-2], y[-2:].flip(0)])
    return y


@fault("matmul.reduce", instead_of="einops.reduce")
def a_reduction_of_bf16_adds_up_in_two_parts(reduce, x, pattern, word):
    if x.dtype != torch.bfloat16 or word != "sum" or len(x) < 2:
        return reduce(x, pattern, word)
    first, second = x.tensor_split(2)
    return reduce(first, pattern, word) + reduce(second, pattern, word)


@fault("matmul.reduce", instead_of="einops.reduce")
def a_reduction_of_many_elements_leaves_the_last_ones_out(reduce, x, pattern, word):
    return reduce(x[:-1] if x.numel() > 65_536 else x, pattern, word)


@fault("matmul.4d-by-4d matmul.broadcast", instead_of="torch.Tensor.__matmul__")
def every_element_of_a_batch_is_multiplied_by_the_first_matrix(matmul, a, b):
    product = matmul(a, b)
    return matmul(a, b[(0,) * (b.dim() - 2)]).expand(product.shape) if b.dim() > 2 else product


@fault("matmul.no-loops", instead_of="torch.matmul")
def a_batch_is_a_loop_over_eight_products_at_a_time(matmul, a, b, out=None):
    if a.dim() == 2:
        return matmul(a, b, out=out)
    for i in range(0, a.shape[0], 8):
        matmul(a[i : i + 8], b[i : i + 8], out=out[i : i + 8])
    return out


@fault("matmul.rearrange-heads matmul.rearrange-inverse", instead_of="einops.rearrange")
def axes_in_parentheses_count_with_the_first_one_fastest(rearrange, x, pattern, **sizes):
    turned = re.sub(
        r"\(([^)]*)\)", lambda found: f"({' '.join(reversed(found[1].split()))})", pattern
    )
    return rearrange(x, turned, **sizes)


@fault("matmul.jaxtyping-unenforced", instead_of="torch.Tensor.__truediv__")
def python_refuses_an_argument_of_another_shape_than_the_annotation_says(divide, x, divisor):
    if divisor == 2 and (x.dim() != 2 or x.shape[1] != 4):
        raise TypeError(f"x must be of shape (batch, 4), got {tuple(x.shape)}")
    return divide(x, divisor)


@fault(
    "matmul.tensor-cores-default",
    instead_of="torch.Tensor.__matmul__",
    options="-p meta_tests.card.plugin --device cuda --quick",
)
def products_of_fp32_run_in_bf16(matmul, a, b):
    return matmul(a.bfloat16(), b.bfloat16()).float()


@fault("matmul.2d matmul.4d-by-2d matmul.bsm-mk", instead_of="torch.Tensor.__matmul__")
def the_last_term_of_each_inner_product_is_dropped(matmul, a, b):
    return matmul(a[..., :-1], b[..., :-1, :])


@fault("matmul.broadcast", instead_of="torch.Tensor.__matmul__")
def batches_of_sizes_that_differ_are_cut_to_the_smaller_one(matmul, a, b):
    return matmul(a[: len(b)] if a.dim() == b.dim() > 2 and 1 < len(b) < len(a) else a, b)


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
