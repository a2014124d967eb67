"""Factories that return no model, each wrong in its own way."""

import torch
from torch import nn

number = 3
module = nn.Linear(2, 2)
x = torch.ones(1, 2)


def raises():
    raise ZeroDivisionError("nothing to divide")


def leaves():
    raise SystemExit(2)


def needs_a_size(size):
    return nn.Linear(size, 2), x


class Silent(nn.Linear):
    def forward(self, x):
        return "nothing"


class Breaking(torch.optim.SGD):
    def step(self, closure=None):
        raise OverflowError("the optimizer stumbled")


def breaking_step():
    model = nn.Linear(2, 2)
    return model, x, Breaking(model.parameters(), lr=0.1)


# What the other factories return, made anew at each call.
RETURNED = {
    "alone": lambda: nn.Linear(2, 2),
    "nonsense": lambda: 42,
    "too_many": lambda: (nn.Linear(2, 2), x, None, None, None, None),
    "no_tokens": lambda: (nn.Linear(2, 2), x, None, None, 0),
    "no_parameters": lambda: (nn.Tanh(), x),
    "function_for_a_module": lambda: (torch.relu, x),
    "no_tensor": lambda: (nn.Linear(2, 2), (1, "two")),
    "text_for_inputs": lambda: (nn.Linear(2, 2), "images"),
    "lazy": lambda: (nn.LazyLinear(2), x),
    "frozen": lambda: (nn.Linear(2, 2).requires_grad_(False), x),
    "on_meta": lambda: (nn.Linear(2, 2, device="meta"), x),
    "optimizer_by_name": lambda: (nn.Linear(2, 2), x, "adamw"),
    "foreign_optimizer": lambda: (nn.Linear(2, 2), x, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)),
    "always_the_same": lambda: (module, x),
    "wrong_shape": lambda: (nn.Linear(2, 2), torch.ones(1, 3)),
    "loss_of_a_vector": lambda: (nn.Linear(2, 2), x, None, lambda output: output),
    "loss_by_name": lambda: (nn.Linear(2, 2), x, None, "mse"),
    "detached_loss": lambda: (nn.Linear(2, 2), x, None, lambda output: output.detach().sum()),
    "no_output": lambda: (Silent(2, 2), x),
}
globals().update(RETURNED)
