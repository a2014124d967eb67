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


def alone():
    return nn.Linear(2, 2)


def nonsense():
    return 42


def too_many():
    return (nn.Linear(2, 2), x, None, None, None)


def function_for_a_module():
    return torch.relu, x


def no_tensor():
    return nn.Linear(2, 2), (1, "two")


def text_for_inputs():
    return nn.Linear(2, 2), "images"


def lazy():
    return nn.LazyLinear(2), x


def frozen():
    return nn.Linear(2, 2).requires_grad_(False), x


def on_meta():
    return nn.Linear(2, 2, device="meta"), x


def optimizer_by_name():
    return nn.Linear(2, 2), x, "adamw"


def foreign_optimizer():
    return nn.Linear(2, 2), x, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def always_the_same():
    return module, x


def wrong_shape():
    return nn.Linear(2, 2), torch.ones(1, 3)


def loss_of_a_vector():
    return nn.Linear(2, 2), x, None, lambda output: output


def loss_by_name():
    return nn.Linear(2, 2), x, None, "mse"


def detached_loss():
    return nn.Linear(2, 2), x, None, lambda output: output.detach().sum()


class Silent(nn.Linear):
    def forward(self, x):
        return "nothing"


def no_output():
    return Silent(2, 2), x


class Breaking(torch.optim.SGD):
    def step(self, closure=None):
        raise OverflowError("the optimizer stumbled")


def breaking_step():
    model = nn.Linear(2, 2)
    return model, x, Breaking(model.parameters(), lr=0.1)
