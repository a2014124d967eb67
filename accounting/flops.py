"""FLOPs of the operations a network is made of: forward, backward and recomputed.

One FLOP is one floating-point multiplication, addition or other elementary operation (comparison,
exponential). Every sum starts from zero, so k terms cost k additions where k − 1 suffice; that
overstates a product by 1/(2k). Moving, reshaping, transposing and broadcasting cost bytes, not
FLOPs. Every function raises ValueError for a negative size, TypeError for one that is not an
integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import prod

from accounting import contraction
from accounting.checks import checked, validate_fields, validated_bool, validated_ints
from accounting.layout import broadcast_shape

Shape = Sequence[int]

MULTIPLY_ADD_FLOPS = 2  # one multiplication and one addition; a fused multiply-add does both

# Products of a layer y = x·w, in units of its forward cost. 2·(1 + 1 + 1) is the 6 of 6ND.
FORWARD_PRODUCTS = 1
WEIGHT_GRADIENT_PRODUCTS = 1  # dw = xᵀ·dy
INPUT_GRADIENT_PRODUCTS = 1  # dx = dy·wᵀ; not for a first layer whose input needs no gradient
RECOMPUTED_PRODUCTS = 1  # the forward again, if its result was not kept for the backward pass


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one training step by purpose; layers and steps add up with `+` and `sum`.

    MFU counts `model`, the FLOPs that the mathematics needs; HFU counts `hardware`, the FLOPs that
    ran.

    >>> linear_step(32, 128, 64, recomputed=True).hardware // linear_flops(32, 128, 64)
    4
    """

    forward: int
    backward: int
    recomputation: int = 0

    def __post_init__(self) -> None:
        validate_fields(self, "forward", "backward", "recomputation")

    @property
    def model(self) -> int:
        """Forward and backward."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Forward, backward and recomputation."""
        return self.model + self.recomputation

    def __add__(self, other: StepFlops) -> StepFlops:
        if not isinstance(other, StepFlops):
            return NotImplemented
        return StepFlops(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __radd__(self, other: object) -> StepFlops:
        # `sum` starts from 0.
        return self if other == 0 else NotImplemented


@checked("m", "k", "n", "batch")
def matmul_flops(m: int, k: int, n: int, batch: int = 1) -> int:
    """FLOPs of `batch` products of (m, k) by (k, n): 2·batch·m·k·n.

    Each of the m·n outputs takes k multiplications and k additions.
    Ignored: the first addition could be a copy, so the strict minimum is m·n·(2k − 1).
    Strassen-like algorithms need fewer multiplications.
    Source: Golub and Van Loan, Matrix Computations, 4th ed., section 1.1.

    >>> matmul_flops(1024, 512, 256)
    268435456
    """
    return MULTIPLY_ADD_FLOPS * m * k * n * batch


def broadcast_matmul_flops(a_shape: Shape, b_shape: Shape) -> int:
    """FLOPs of `a @ b` by the rules of torch.matmul: 2·(broadcast batch)·m·k·n.

    The last two dimensions are multiplied, and the dimensions before them are broadcast. A
    one-dimensional `a` is a row (m = 1), a one-dimensional `b` a column (n = 1). An operand that
    the batch shares is read once but multiplied every time.
    Raises ValueError for a scalar, inner sizes that differ, batch dimensions that do not broadcast.
    Source: torch.matmul, https://docs.pytorch.org/docs/stable/generated/torch.matmul.html

    >>> broadcast_matmul_flops((4, 8, 16, 32), (32, 2))
    65536
    >>> broadcast_matmul_flops((4, 8, 16, 32), (4, 8, 32, 64))
    2097152
    """
    a, b = validated_ints("a_shape", a_shape), validated_ints("b_shape", b_shape)
    if not a or not b:
        raise ValueError(f"a_shape and b_shape must have at least one dimension, got {a} and {b}")
    a = a if len(a) > 1 else (1, *a)
    b = b if len(b) > 1 else (*b, 1)
    if a[-1] != b[-2]:
        raise ValueError(
            "the last size of a_shape must equal the last but one of b_shape (the only one, "
            f"if 1-D), got {a[-1]} and {b[-2]} for {tuple(a_shape)} and {tuple(b_shape)}"
        )
    return matmul_flops(a[-2], a[-1], b[-1], batch=prod(broadcast_shape(a[:-2], b[:-2])))


def einsum_flops(equation: str, *shapes: Shape, order: str = "best") -> int:
    """FLOPs of an einsum contracted pair by pair.

    A pair costs 2·(product of the sizes of all its indices). A step multiplies once per combination
    of its indices, and adds once if it sums an index; outer and elementwise products only multiply.
    An index that one operand alone has and nothing later needs is summed first: one addition per
    element. torch.einsum dispatches exactly these (torch's FlopCounterMode counts only the
    products).

    `equation` is torch's: letters, commas, `->`, `...`; a repeated letter takes the diagonal, a
    size of 1 stretches. `order` is "best" (the cheapest) or "left" (left to right, as torch without
    opt_einsum).
    Raises ValueError for a malformed equation, a wrong number of shapes, inconsistent sizes.
    Source: torch.einsum, https://docs.pytorch.org/docs/stable/generated/torch.einsum.html

    >>> chain = "ij,jk,kl->il", (2, 100), (100, 3), (3, 50)
    >>> einsum_flops(*chain), einsum_flops("ij,jk,kl->il", (50, 3), (3, 100), (100, 2))
    (1800, 1800)
    """
    einsum = contraction.parsed(equation, shapes)
    if len(einsum.operands) == 1:
        [operand] = einsum.operands
        is_summed = bool(operand - einsum.output)
        return einsum.size(operand) if is_summed else 0
    return einsum.flops(order)


@checked("batch", "in_features", "out_features", bias=validated_bool)
def linear_flops(batch: int, in_features: int, out_features: int, bias: bool = False) -> int:
    """FLOPs of a linear layer: 2·batch·in·out, and batch·out additions of a bias.

    `batch` counts rows: sequences times their length. The usual 2·B·D·K leaves the bias out:
    1/(2·in) too low.

    >>> linear_flops(1, 128, 64), linear_flops(32, 128, 64), linear_flops(32, 128, 64, bias=True)
    (16384, 524288, 526336)
    """
    products = MULTIPLY_ADD_FLOPS * batch * in_features * out_features
    return products + batch * out_features if bias else products


@checked(input_gradient=validated_bool)
def linear_backward_flops(
    batch: int,
    in_features: int,
    out_features: int,
    bias: bool = False,
    *,
    input_gradient: bool = True,
) -> int:
    """FLOPs of a linear layer's gradients: 2·batch·in·out each for the weight and the input.

    A bias's gradient sums over the batch: batch·out additions. A first layer fed with data needs no
    input gradient: its backward pass costs one forward, not two.
    Source: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1,
    arXiv:2001.08361.

    >>> linear_backward_flops(16, 64, 32), linear_backward_flops(16, 64, 32, input_gradient=False)
    (131072, 65536)
    """
    products = WEIGHT_GRADIENT_PRODUCTS
    if input_gradient:
        products += INPUT_GRADIENT_PRODUCTS
    forward = linear_flops(batch, in_features, out_features)
    bias_additions = linear_flops(batch, in_features, out_features, bias) - forward
    return products * forward + bias_additions


@checked(recomputed=validated_bool)
def linear_step(
    batch: int,
    in_features: int,
    out_features: int,
    bias: bool = False,
    *,
    input_gradient: bool = True,
    recomputed: bool = False,
) -> StepFlops:
    """FLOPs of a linear layer in a training step: 6·batch·in·out, or 8 if recomputed.

    Activation checkpointing recomputes everything between two checkpoints; torch stops before a
    segment's last layer, since nothing needs its output.
    Source: Korthikanti et al., Reducing Activation Recomputation (2022), section 6,
    arXiv:2205.05198: MFU and HFU.

    >>> linear_step(32, 128, 64)
    StepFlops(forward=524288, backward=1048576, recomputation=0)
    """
    forward = linear_flops(batch, in_features, out_features, bias)
    backward = linear_backward_flops(
        batch, in_features, out_features, bias, input_gradient=input_gradient
    )
    return StepFlops(forward, backward, RECOMPUTED_PRODUCTS * forward if recomputed else 0)


@checked("flops_per_element")
def elementwise_flops(*shapes: Shape, flops_per_element: int = 1) -> int:
    """FLOPs of an elementwise operation on these shapes: one per element of their broadcast.

    Exact for addition, multiplication, relu. An exponential, inverse root or GELU takes several
    instructions: pass `flops_per_element`. The time of such an operation follows its bytes, not its
    FLOPs.
    Raises ValueError for shapes that do not broadcast.

    >>> elementwise_flops((1024, 512), (1024, 512))
    524288
    """
    return flops_per_element * prod(broadcast_shape(*shapes))
