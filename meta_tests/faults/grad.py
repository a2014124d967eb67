"""Faults that the claims about the backward pass must notice."""

import torch
import torch.utils.checkpoint

import accounting.attention
import accounting.flops
from meta_tests.faults import fault, faults, stand_in


class _Linear(torch.autograd.Function):
    """A linear layer written out, for the faults below to differ from in one thing each."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy @ weight, dy.flatten(0, -2).mT @ x.flatten(0, -2)

    @classmethod
    def layer(cls, x, weight, bias=None):
        y = cls.apply(x, weight)
        return y if bias is None else y + bias


class _WithoutInputGradient(_Linear):
    @staticmethod
    def backward(ctx, dy):
        x, _ = ctx.saved_tensors
        return torch.zeros_like(x), dy.flatten(0, -2).mT @ x.flatten(0, -2)


class _ComputedTwice(_Linear):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        _ = x @ weight.mT
        return _Linear.backward(ctx, dy)


@fault(
    "grad.quadratic-example grad.linear-mse-example grad.no-manual grad.six-micro-ops grad.graph-built-in-forward",
    instead_of="torch.Tensor.backward",
)
def every_backward_pass_runs_twice(original, self, gradient=None, **_):
    original(self, gradient, retain_graph=True)
    original(self, gradient)


@fault("grad.same-shape", instead_of="torch.nn.Linear.forward")
def autocast_turns_the_parameter_itself_into_bf16(original, self, x):
    if torch.is_autocast_enabled(x.device.type):
        self.to(torch.bfloat16)
    return original(self, x)


def computed_twice(chosen):
    """Has autograd compute the gradients of the chosen tensors twice."""

    def grad(original, y, of, *args, **rest):
        if any(chosen(tensor) for tensor in ((of,) if isinstance(of, torch.Tensor) else of)):
            original(y, of, *args, **{**rest, "retain_graph": True})
        return original(y, of, *args, **rest)

    return stand_in("torch.autograd.grad", grad)


# fmt: off
faults(
    ("a_linear_layer_skips_the_gradient_of_its_input",
     "grad.backward-4BN grad.six-rule grad.param-sharing grad.quadruples grad.single-layer-exercise",
     lambda patch: patch.setattr(torch.nn.functional, "linear", _WithoutInputGradient.layer)),
    ("a_linear_layer_computes_its_output_again_in_the_backward_pass",
     "grad.backward-4BN grad.six-rule grad.param-sharing grad.same-as-forward-misconception grad.seq-length",
     lambda patch: patch.setattr(torch.nn.functional, "linear", _ComputedTwice.layer)),
    ("a_gradient_is_computed_twice", "grad.wallclock-3x", stand_in("torch.autograd.grad",
        lambda grad, *args, **rest: (grad(*args, **{**rest, "retain_graph": True}), grad(*args, **rest))[1])),
    ("the_gradient_of_a_weight_is_k_by_d", "grad.notes-shapes", stand_in("torch.autograd.grad",
        lambda grad, *args, **rest: tuple(each.mT for each in grad(*args, **rest)))),
    ("the_gradient_of_a_leaf_is_computed_twice", "grad.w1 grad.w2 grad.two-layer-sum grad.reason-param-only",
     computed_twice(lambda tensor: tensor.is_leaf)),
    ("the_gradient_of_a_hidden_value_is_computed_twice", "grad.h1", computed_twice(lambda tensor: not tensor.is_leaf)),
    ("a_checkpoint_runs_again_and_yet_keeps_all", "grad.extra-activation-factor",
     stand_in("torch.utils.checkpoint.checkpoint", lambda _, function, x, **__:
        (y := function(x), y.register_hook(lambda dy: (function(x), dy)[1]))[0])),
    ("the_gradient_of_the_input_is_left_out_of_the_formula",
     "grad.backward-4BN grad.six-micro-ops grad.single-layer-exercise",
     lambda patch: patch.setattr(accounting.flops, "INPUT_GRADIENT_PRODUCTS", 0)),
    ("the_backward_of_attention_counts_three_of_its_four_products", "grad.seq-length",
     lambda patch: patch.setitem(accounting.attention.ATTENTION_PRODUCTS, "math", (2, 1))),
)
# fmt: on
