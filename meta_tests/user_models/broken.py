"""Factories that return no model, each wrong in its own way, with the refusal that it gets."""

import torch
from torch import nn

number = 3
module = nn.Linear(2, 2)
x = torch.ones(1, 2)
VALID = "(module, inputs) or (module, inputs, optimizer, loss, D), of which the last three may be left out or None"


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


def foreign_optimizer():
    return nn.Linear(2, 2), x, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def linear(*others):
    return nn.Linear(2, 2), x, None, *others


REFUSALS = {
    "number": "must be callable, got 3 of type int",
    "module": f"got a Linear itself; name a function that returns {VALID}",
    "raises": "the factory raised ZeroDivisionError: nothing to divide (",
    "leaves": "the factory raised SystemExit: 2",
    "needs_a_size": "the factory raised TypeError: needs_a_size() missing 1 required positional argument: 'size'",
    "breaking_step": "the training step of the Linear raised OverflowError: the optimizer stumbled",
    "foreign_optimizer": "2 of its tensors are not among them",
}
# Returned anew at each call, and refused.
RETURNED = {
    "alone": (lambda: nn.Linear(2, 2), f"the factory returned a Linear alone, but must return {VALID}"),
    "nonsense": (lambda: 42, "got a int"),
    "too_many": (lambda: linear(None, None, None), "got a tuple of 6"),
    "no_tokens": (lambda: linear(None, 0), 'D must be a number of tokens above 0 or a pair such as (784, "patches")'),
    "function": (lambda: (torch.relu, x), "module must be a torch.nn.Module, got a builtin_function_or_method"),
    "no_tensor": (lambda: (nn.Linear(2, 2), (1, "two")), "got a tuple without any"),
    "text_for_inputs": (lambda: (nn.Linear(2, 2), "images"), "inputs must be a tensor, a tuple of arguments or a dict"),
    "lazy": (lambda: (nn.LazyLinear(2), x), "parameters without a shape yet: weight, bias"),
    "frozen": (lambda: (nn.Linear(2, 2).requires_grad_(False), x), "none of the 2 parameters of the Linear requires"),
    "on_meta": (lambda: (nn.Linear(2, 2, device="meta"), x), "parameters on the meta device hold no values: weight"),
    "optimizer_by_name": (lambda: (nn.Linear(2, 2), x, "adamw"), "optimizer must be a torch.optim.Optimizer or None"),
    "always_the_same": (lambda: (module, x), "returned the same parameters twice"),
    "wrong_shape": (lambda: (nn.Linear(2, 2), torch.ones(1, 3)), "forward pass with these inputs of the Linear raised"),
    "loss_of_a_vector": (lambda: linear(lambda out: out), "must return a scalar tensor, got a tensor of shape (1, 2)"),
    "loss_by_name": (lambda: linear("mse"), "loss must be a function of the module's output, got 'mse'"),
    "detached_loss": (lambda: linear(lambda out: out.detach().sum()), "the loss does not depend on any parameter"),
    "no_output": (lambda: (Silent(2, 2), x), "the forward pass returned a str without any tensor"),
}
globals().update({name: factory for name, (factory, _) in RETURNED.items()})
REFUSALS |= {name: refusal for name, (_, refusal) in RETURNED.items()}
