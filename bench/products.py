"""Matrix products as the device runs them, with a bound on their errors by dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from accounting.formats import Format, format_of
from accounting.roofline import Work, matmul_work
from prooflops.precision import Float32Products

# Dtypes of results that are wider than the operands.
RESULTS = {"int8": "int32", "fp8_e4m3": "bf16", "fp8_e5m2": "bf16"}
# Each operand has a scale in fp32, which no formula mentions.
SCALES_BYTES = {"fp8_e4m3": 2 * 4}
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8_e4m3")


def float_format(dtype: str) -> Format:
    """The row of a floating-point dtype."""
    form = format_of(dtype)
    assert isinstance(form, Format)
    return form


def torch_dtype(dtype: str) -> torch.dtype:
    """The dtype of tensors of `dtype`; numbers in tf32 lie in tensors of fp32."""
    return getattr(torch, "float32" if dtype == "tf32" else str(format_of(dtype).torch_name))


class Unsupported(RuntimeError):
    """The device or this torch does not multiply this dtype; the message is the reason."""


@dataclass(frozen=True)
class Product:
    """(m, k) by (k, n) in one dtype: random operands, and the call that multiplies them."""

    dtype: str
    a: Tensor
    b: Tensor
    multiply: Callable[[], Tensor]

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.a.shape, self.b.shape[1]

    @property
    def work(self) -> Work:
        return work_of(self.dtype, *self.shape)

    def check(self, result: Tensor) -> None:
        """Raises AssertionError if a sample of `result` differs from fp64 by more than rounding.

        The operands are random and of both signs, so sums of their products are about R = √Σ(ab)²
        large. The rounding of a partial sum is relative to R: √k times less than Σ|a||b|, which
        would let half of a result pass from k = 16384 on. Each of the k products may be rounded
        twice in the accumulator: units that truncate err to one side, so these errors add up. Eight
        partial sums may be rounded to the result's format, as split-k kernels do. The result may be
        rounded once. int8 is exact.
        """
        __tracebackhide__ = True
        (m, k), n = self.a.shape, self.b.shape[1]
        rows = torch.randint(m, (min(m, 8),), device=self.a.device)
        columns = torch.randint(n, (min(n, 64),), device=self.a.device)
        # Some devices have no fp64, so it is the host that multiplies.
        a, b = self.a[rows].cpu().double(), self.b[:, columns].cpu().double()
        got, exact = result[rows][:, columns].cpu().double(), a @ b
        if self.dtype == "int8":
            allowed = torch.zeros_like(exact)
        else:
            size = (a.square() @ b.square()).sqrt()
            allowed = (
                self._relative_error(k) * size + torch.finfo(result.dtype).eps / 2 * exact.abs()
            )
        worst = int((got - exact).abs().sub(allowed).argmax())
        difference, bound = (got - exact).abs().flatten()[worst], allowed.flatten()[worst]
        # `not <=` and not `>`: a NaN must fail.
        if not bool(difference <= bound):
            raise AssertionError(
                f"a product of {self.dtype} differs from fp64 by {difference:.3g}, but rounding "
                f"explains at most "
                f"{bound:.3g} [got={got.flatten()[worst]:.6g}, "
                f"exact={exact.flatten()[worst]:.6g}, {m=}, {k=}, {n=}]"
            )

    def _relative_error(self, k: int) -> float:
        """The error that rounding explains, as a share of R."""
        terms = 2 * max(k, 256)
        if self.dtype == "fp64":
            return terms * 2.0**-53
        if self.dtype == "fp32":
            return terms * 2.0**-24
        if self.dtype == "fp8_e4m3":
            # Hopper adds 32 products at a time to an accumulator of 14 bits; results and partial
            # sums are bf16.
            return terms / 2 / 32 * 2.0**-13 + 8 * 2.0**-9
        return terms * 2.0**-24 + 8 * float_format(self.dtype).eps / 2


def lies_by_columns(dtype: str, device: torch.device) -> bool:
    """True if the second operand is transposed in memory, as NVIDIA's int8 and fp8 kernels want.

    Elsewhere it lies by rows.
    """
    return dtype == "fp8_e4m3" or (dtype == "int8" and device.type == "cuda")


def product(dtype: str, m: int, k: int, n: int, device: torch.device) -> Product:
    """A product on `device`, tried on a small case first.

    Raises Unsupported with the reason.
    """
    try:
        if dtype == "tf32":
            probe_tf32(device)
        small = _product(dtype, 32, 64, 32, device)
        with Float32Products(dtype):
            small.check(small.multiply())
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"{device} does not multiply {dtype}: {str(error).splitlines()[0]}"
        ) from error
    return _product(dtype, m, k, n, device)


def probe_tf32(device: torch.device) -> None:
    """Raises Unsupported if fp32 products keep bits that tf32 does not have.

    Their rate would be compared with the wrong peak.
    """
    if device.type != "cuda":
        raise Unsupported("tf32 exists on CUDA devices only")
    x = torch.full((128, 128), 1 + 2.0**-12, device=device)
    with Float32Products("tf32"):
        got = x @ torch.eye(128, device=device)
    if bool((got == x).all()):
        raise Unsupported(
            f"{device} multiplies fp32 in full where tf32 is allowed (ROCm: HIPBLASLT_ALLOW_TF32=1)"
        )


def _product(dtype: str, m: int, k: int, n: int, device: torch.device) -> Product:
    by_columns = lies_by_columns(dtype, device)
    shapes = ((m, k), (n, k) if by_columns else (k, n))
    if dtype == "int8":
        a, b = (
            torch.randint(-128, 128, shape, dtype=torch.int8, device=device) for shape in shapes
        )
    else:
        a, b = (torch.randn(shape, device=device).to(torch_dtype(dtype)) for shape in shapes)
    b = b.t() if by_columns else b
    out = None if dtype in RESULTS else torch.empty(m, n, dtype=a.dtype, device=device)
    return Product(dtype, a, b, multiplication(dtype, a, b, out))


def work_of(dtype: str, m: int, k: int, n: int) -> Work:
    """FLOPs and bytes of a product as the device runs it."""
    return matmul_work(m, k, n, dtype, result=RESULTS.get(dtype))


def product_bytes(dtype: str, m: int, k: int, n: int) -> int:
    """The most bytes that a product needs at once: operands, result, and an operand being drawn.

    All operands but int8 are drawn in fp32 first, so the larger one then exists in fp32 as well.

    >>> product_bytes("int8", 2, 3, 4), product_bytes("bf16", 2, 3, 4)
    (50, 100)
    """
    held = work_of(dtype, m, k, n).bytes
    return held if dtype == "int8" else held + 4 * max(m * k, k * n)


def multiplication(
    dtype: str, a: Tensor, b: Tensor, out: Tensor | None, *, fast: bool = False
) -> Callable[[], Tensor]:
    """The call that multiplies two matrices, into `out` where the result has their dtype.

    The caller decides whether fp32 is rounded to tf32, and enters `Float32Products` around all
    calls. Inside each call it would cost 1 to 3 µs of host time, as much as a small product takes.
    `fast`: fp8 sums stay in the tensor core's own accumulator, 14 bits on a Hopper
    (use_fast_accum).
    """
    if dtype == "int8":
        return lambda: torch._int_mm(a, b)
    if dtype.startswith("fp8"):
        one = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(
            a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    return lambda: torch.mm(a, b, out=out)


class Operands:
    """Random operands of one dtype for every product up to (m, k) by (k, n).

    A search multiplies parts of them.

    Allocating and filling operands takes longer than most products: a search would mostly do that.
    """

    def __init__(self, dtype: str, m: int, k: int, n: int, device: torch.device) -> None:
        largest = product(dtype, m, k, n, device)
        self.dtype, self.device = dtype, device
        self._a = largest.a.flatten()
        self._by_columns = lies_by_columns(dtype, device)
        self._b = (largest.b.t() if self._by_columns else largest.b).flatten()
        self._out = (
            None if dtype in RESULTS else torch.empty(m * n, dtype=self._a.dtype, device=device)
        )

    def multiply(self, m: int, k: int, n: int) -> tuple[Callable[[], Tensor], int]:
        """The call that multiplies (m, k) by (k, n), and its FLOPs."""
        a, b = self._a[: m * k].view(m, k), self._b[: k * n]
        b = b.view(n, k).t() if self._by_columns else b.view(k, n)
        out = None if self._out is None else self._out[: m * n].view(m, n)
        return multiplication(self.dtype, a, b, out), work_of(self.dtype, m, k, n).flops
