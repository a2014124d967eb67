"""Faults that the claims about products, einsum and einops must notice."""

import re

import einops
import torch

import accounting.flops
import accounting.models
from meta_tests.faults import fault, replace

# What the patched functions were before.
EINSUM, MATMUL, REARRANGE, REDUCE = torch.einsum, torch.matmul, einops.rearrange, einops.reduce


@fault("matmul.einsum-ellipsis")
def einsum_takes_only_the_first_element_of_an_ellipsis(patch):
    def first_alone(equation, *operands):
        result = EINSUM(equation, *operands)
        return result[:1].expand(result.shape) if "..." in equation and result.dim() > 2 else result

    patch.setattr(torch, "einsum", first_alone)


@fault("matmul.einsum-unnamed-summed", "matmul.einsum-equals-transpose", "matmul.einsum-ellipsis")
def einsum_averages_over_the_dimensions_that_the_output_lacks(patch):
    def averaging(equation, *operands):
        result = EINSUM(equation, *operands)
        return result / max(sum(x.numel() for x in operands) // max(result.numel(), 1), 1)

    patch.setattr(torch, "einsum", averaging)


@fault("matmul.einsum-efficient")
def einsum_contracts_from_right_to_left(patch):
    def from_the_right(equation, *operands):
        if len(operands) < 3:
            return EINSUM(equation, *operands)
        path = [position for present in range(len(operands), 1, -1) for position in (present - 2, present - 1)]
        return torch._VF.einsum(equation, operands, path=path)

    patch.setattr(torch, "einsum", from_the_right)


@fault("matmul.einsum-efficient")
def the_best_order_is_said_to_be_that_from_left_to_right(patch):
    einsum_flops = accounting.flops.einsum_flops
    replace(patch, einsum_flops, lambda equation, *shapes, order="": einsum_flops(equation, *shapes, order="left"))


@fault("matmul.4d-by-4d", "matmul.broadcast")
def every_element_of_a_batch_is_multiplied_by_the_first_matrix(patch):
    def by_the_first(a, b):
        product = MATMUL(a, b)
        return MATMUL(a, b[(0,) * (b.dim() - 2)]).expand(product.shape) if b.dim() > 2 else product

    patch.setattr(torch.Tensor, "__matmul__", by_the_first)


@fault("matmul.2d", "matmul.4d-by-2d", "matmul.bsm-mk")
def the_last_term_of_each_inner_product_is_dropped(patch):
    patch.setattr(torch.Tensor, "__matmul__", lambda a, b: MATMUL(a[..., :-1], b[..., :-1, :]))


@fault("matmul.tensor-cores-default")
def products_of_fp32_run_in_bf16(patch):
    patch.setattr(torch.Tensor, "__matmul__", lambda a, b: MATMUL(a.bfloat16(), b.bfloat16()).float())


@fault("matmul.no-loops")
def a_batch_is_a_loop_in_python(patch):
    def looping(a, b, out=None):
        if a.dim() == 2:
            return MATMUL(a, b, out=out)
        for i in range(a.shape[0]):
            looping(a[i], b, out=out[i])
        return out

    patch.setattr(torch, "matmul", looping)


@fault("matmul.rearrange-heads", "matmul.rearrange-inverse")
def axes_in_parentheses_count_with_the_first_one_fastest(patch):
    def reversed_groups(x, pattern, **sizes):
        turned = re.sub(r"\(([^)]*)\)", lambda found: f"({' '.join(reversed(found[1].split()))})", pattern)
        return REARRANGE(x, turned, **sizes)

    patch.setattr(einops, "rearrange", reversed_groups)


@fault("matmul.rearrange-is-view")
def rearrange_always_copies(patch):
    patch.setattr(einops, "rearrange", lambda x, pattern, **sizes: REARRANGE(x, pattern, **sizes).clone())


@fault("matmul.rearrange-ambiguous")
def rearrange_takes_one_head_where_none_is_given(patch):
    def guessing(x, pattern, **sizes):
        return REARRANGE(x, pattern, **(sizes or {"heads": 1}))

    patch.setattr(einops, "rearrange", guessing)


@fault("matmul.reduce")
def the_mean_over_named_dimensions_is_their_sum(patch):
    patch.setattr(einops, "reduce", lambda x, pattern, word: REDUCE(x, pattern, "sum" if word == "mean" else word))


@fault("matmul.jaxtyping-unenforced")
def python_refuses_an_argument_of_another_shape_than_the_annotation_says(patch):
    divide = torch.Tensor.__truediv__

    def refusing(x, divisor):
        if divisor == 2 and (x.dim() != 2 or x.shape[1] != 4):
            raise TypeError(f"x must be of shape (batch, 4), got {tuple(x.shape)}")
        return divide(x, divisor)

    patch.setattr(torch.Tensor, "__truediv__", refusing)


@fault("matmul.bread-and-butter")
def the_products_of_attention_are_forgotten(patch):
    replace(
        patch,
        accounting.models.forward_flops,
        lambda model, batch, sequence=1, **_: 2 * batch * sequence * accounting.models.matmul_parameter_count(model),
    )
