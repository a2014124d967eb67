"""Factories that return no model, each wrong in its own way, with the refusal that it gets."""

import torch
from torch import nn

x = torch.ones(1, 2)
VALID = (
    "(module, inputs) or (module, inputs, optimizer, loss, D),"
    " of which the last three may be left out or None"
)


def raises():
    raise ZeroDivisionError("nothing to divide")


def leaves():
    raise SystemExit(2)


def needs_a_size(size):
    return nn.Linear(size, 2), x


def linear(*others):
    return nn.Linear(2, 2), x, None, *others


REFUSALS = {
    "raises": "the factory raised ZeroDivisionError: nothing to divide (",
    "leaves": "the factory raised SystemExit: 2",
    "needs_a_size": "the factory raised TypeError:"
    " needs_a_size() missing 1 required positional argument: 'size'",
}
# Returned anew at each call, and refused.
RETURNED = {
    "alone": (
        lambda: nn.Linear(2, 2),
        f"the factory must return {VALID}, got a Linear",
    ),
    "no_tokens": (
        lambda: linear(None, 0),
        "D must be at least 1, got 0",
    ),
    "no_tensor": (
        lambda: (nn.Linear(2, 2), (1, "two")),
        "with at least one tensor in it, got a tuple",
    ),
    "empty_batch": (
        lambda: (nn.Linear(2, 2), torch.ones(0, 2)),
        "input 0 of shape (0, 2) is an empty batch; give at least one example",
    ),
    "frozen": (
        lambda: (nn.Linear(2, 2).requires_grad_(False), x),
        "the Linear has no parameter that requires a gradient",
    ),
    "on_meta": (
        lambda: (nn.Linear(2, 2, device="meta"), x),
        "parameters on the meta device hold no values: weight",
    ),
    "wrong_shape": (
        lambda: (nn.Linear(2, 2), torch.ones(1, 3)),
        "a training step raised RuntimeError: mat1 and mat2",
    ),
    "loss_of_a_vector": (
        lambda: linear(lambda out: out),
        "grad can be implicitly created only for scalar outputs",
    ),
    "detached_loss": (
        lambda: linear(lambda out: out.detach().sum()),
        "element 0 of tensors does not require grad",
    ),
}
globals().update({name: factory for name, (factory, _) in RETURNED.items()})
REFUSALS |= {name: refusal for name, (_, refusal) in RETURNED.items()}
