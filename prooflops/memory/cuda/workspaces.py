"""The workspaces that cuBLAS and cuBLASLt keep on a card."""

from __future__ import annotations

from prooflops.memory.allocator import CUBLASLT_WORKSPACE_BYTES
from prooflops.memory.ledger import Ledger
from prooflops.trace import FORWARD, Operation

WORKSPACES = "workspaces"
UNKNOWN_CARD = "cuBLAS (it depends on the card)"


class Workspaces:
    """Enters a workspace at the first product of each thread's handle.

    `cublas_bytes` is None where the card is not known.
    Source: CublasHandlePool.cpp and addmm_out_cuda_impl in Blas.cpp (torch 2.11); on one H200
    33,554,432 bytes for each of two handles, and 1,048,576 at the first biased linear layer.
    """

    def __init__(self, cublas_bytes: int | None) -> None:
        self._cublas_bytes = cublas_bytes
        self._entered: set[tuple[str, bool]] = set()

    def enter(self, ledger: Ledger, product: Operation) -> None:
        """Enters what this product is the first to need: autograd's thread has its own handle."""
        if self._cublas_bytes is None:
            ledger.unknown[UNKNOWN_CARD] = None
            return
        needed = {"cublas": self._cublas_bytes}
        if product.operator._opname == "addmm" and product.args[0].dim() == 1:
            needed["cublaslt"] = CUBLASLT_WORKSPACE_BYTES
        in_backward = product.phase != FORWARD
        for name, size in needed.items():
            if (name, in_backward) not in self._entered:
                self._entered.add((name, in_backward))
                ledger.allocate(size, WORKSPACES)
