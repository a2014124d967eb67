"""Faults that the claims about the backward pass must notice."""

import torch
import torch.utils.checkpoint

from meta_tests.faults import fault


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


@fault("grad.same-shape", instead_of="torch.nn.Linear.forward")
def autocast_turns_the_parameter_itself_into_bf16(original, self, x):
    if torch.is_autocast_enabled(x.device.type):
        self.to(torch.bfloat16)
    return original(self, x)


@fault(
    "grad.backward-4BN grad.six-rule grad.param-sharing grad.quadruples",
    "grad.single-layer-exercise",
)
def a_linear_layer_skips_the_gradient_of_its_input(patch):
    patch.setattr(torch.nn.functional, "linear", _WithoutInputGradient.layer)


@fault(
    "grad.backward-4BN grad.six-rule grad.param-sharing",
    "grad.same-as-forward-misconception grad.seq-length",
)
def a_linear_layer_computes_its_output_again_in_the_backward_pass(patch):
    patch.setattr(torch.nn.functional, "linear", _ComputedTwice.layer)


@fault("grad.wallclock-3x", instead_of="torch.autograd.grad")
def a_gradient_is_computed_twice(grad, *args, **rest):
    return (grad(*args, **{**rest, "retain_graph": True}), grad(*args, **rest))[1]


@fault("grad.notes-shapes", instead_of="torch.autograd.grad")
def the_gradient_of_a_weight_is_k_by_d(grad, *args, **rest):
    return tuple(each.mT for each in grad(*args, **rest))


@fault("grad.extra-activation-factor", instead_of="torch.utils.checkpoint.checkpoint")
def a_checkpoint_runs_again_and_yet_keeps_all(_, function, x, **__):
    return ((y := function(x)), y.register_hook(lambda dy: (function(x), dy)[1]))[0]
