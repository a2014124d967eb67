"""What the torch that is running keeps otherwise than the formulas of `accounting.activations`.

These follow 2.13.
"""

import torch
from torch.nn import functional

from accounting.activations import activation_bytes
from accounting.formats import element_bits


def has_grouped_flash():
    """Whether attention in groups runs as flash attention on the CPU.

    Older releases take the math path.
    """
    query, key = torch.ones(1, 2, 4, 8, requires_grad=True), torch.ones(1, 1, 4, 8)
    mixed = functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    return "Flash" in mixed.grad_fn.name()


def weighs_rms_norm_narrow():
    """Whether RMSNorm casts back to 16 bits before it multiplies by the weight.

    It then keeps that factor in 16 bits.
    """
    x = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(4, dtype=torch.bfloat16)
    return "Mul" in functional.rms_norm(x, (4,), weight).grad_fn.name()


def activation_bytes_here(
    model,
    batch,
    sequence,
    dtype,
    attention="flash",
    **options,
):
    """`activation_bytes` with the attention and the norm of the torch that is running."""
    if attention == "flash" and model.heads != model.kv_heads and not has_grouped_flash():
        attention = "math"
    norms = 1 if options.get("checkpoint_every") else 2 * model.layers + 1
    formula = activation_bytes(model, batch, sequence, dtype, attention=attention, **options)
    return formula - norms * narrower_norm_bytes(model, batch * sequence, dtype)


def narrower_norm_bytes(model, tokens, dtype):
    """By how much one norm of the running torch keeps less than the formula says."""
    is_narrow = model.norm == "rmsnorm" and element_bits(dtype) == 16 and weighs_rms_norm_narrow()
    return tokens * model.dim * 2 if is_narrow else 0
