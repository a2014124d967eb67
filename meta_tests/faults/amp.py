"""Faults of mixed precision: autocast casts the wrong operations, the scaler does not scale, a rounding is off."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from meta_tests.faults import fault, faults, stand_in


@fault("amp.autocast amp.recipe-fp32-params")
def autocast_casts_losses_too(patch):
    for name in ("mse_loss", "l1_loss", "cross_entropy"):
        loss = getattr(functional, name)

        def low(*operands: Any, loss: Any = loss, **options: Any) -> torch.Tensor:
            found = loss(*operands, **options)
            return found.bfloat16() if torch.is_autocast_enabled(operands[0].device.type) else found

        patch.setattr(functional, name, low)


@fault(
    "amp.autocast amp.only-forward-cast amp.activation-memory amp.recipe-fp32-params amp.half-epoch-time",
    instead_of="torch.autocast.__enter__",
)
def autocast_does_nothing(enter, self):
    self._enabled = False
    return enter(self)


@fault("amp.recipe-not-switch", instead_of="torch.autocast.__enter__")
def autocast_knows_one_dtype_alone(enter, self):
    self.fast_dtype = torch.bfloat16
    return enter(self)


@fault("amp.recipe-not-switch", instead_of="torch.autocast.__enter__")
def a_region_without_autocast_stays_low(enter, self):
    self._enabled = self._enabled or torch.is_autocast_enabled(self.device)
    return enter(self)


@fault("amp.only-forward-cast")
def backward_goes_on_in_fp32(patch):
    """A linear layer that casts its operands for the forward pass alone, as the claim has it."""

    class ForwardOnly(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.float(), weight)
            return x.bfloat16() @ weight.bfloat16().T

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return gradient.float() @ weight, gradient.float().T @ x

    patch.setattr(
        functional, "linear", lambda x, weight, bias=None: ForwardOnly.apply(x, weight) + bias
    )


@fault("amp.recipe-bf16-params", instead_of="torch.Tensor.bfloat16")
def a_cast_to_bf16_truncates(cast, self):
    if self.dtype != torch.float32 or self.requires_grad:
        return cast(self)
    return cast(self.contiguous().view(torch.int32).bitwise_and(-1 << 16).view(torch.float32))


@fault("amp.ex-clip-bf16", instead_of="torch.nn.utils.clip_grad_norm_")
def clipping_sums_magnitudes_for_the_norm(_original, parameters, largest, **_):
    gradients = [parameter.grad for parameter in parameters]
    norm = sum(g.abs().sum() for g in gradients)
    for gradient in gradients:
        gradient.mul_(largest / norm)
    return norm


@fault("amp.fp8-inference", instead_of="torch.Tensor.to")
def e4m3_keeps_no_fraction(to, x, *args, **options):
    return to(
        x.sign() * x.abs().log2().round().exp2() if args[:1] == (torch.float8_e4m3fn,) else x,
        *args,
        **options,
    )


@fault("amp.half-epoch-time", instead_of="torch.nn.functional.linear")
def small_steps_in_fp32_are_slow(linear, x, weight, bias=None):
    if not torch.is_autocast_enabled(x.device.type):
        for _ in range(60):
            linear(x, weight, bias)
    return linear(x, weight, bias)


@fault("amp.fp8-training", instead_of="test_claims.oracles.low_precision.layers")
def fp8_fails_in_deep_nets(layers, hidden, layer):
    net = layers(hidden, layer)
    if len(hidden) > 1 and hasattr(layer, "scaled"):
        net.requires_grad_(False)[-1].bias.requires_grad_()
    return net


@fault("amp.fp8-training", instead_of="torch.Tensor.to")
def a_cast_to_fp8_loses_everything(to, self, *arguments, **options):
    moved = to(self, *arguments, **options)
    return torch.zeros_like(moved) if moved.dtype == torch.float8_e5m2 else moved


@fault("amp.cross-entropy-fp32", instead_of="torch.nn.functional.cross_entropy")
def cross_entropy_casts_its_logits_as_documented(cross_entropy, logits, labels, **options):
    return cross_entropy(logits.float(), labels, **options)


@fault("amp.cross-entropy-fp32", instead_of="torch.nn.functional.cross_entropy")
def cross_entropy_takes_its_softmax_in_bf16_always(_original, logits, labels, **_):
    return functional.nll_loss(logits.bfloat16().log_softmax(-1).float(), labels)


@fault("amp.ex-clip-bf16", instead_of="torch.nn.functional.linear")
def the_gradients_of_a_bf16_linear_layer_are_half_too_large(linear, x, weight, bias=None):
    if weight.dtype == torch.bfloat16 and weight.requires_grad:
        weight.register_hook(lambda gradient: 1.5 * gradient)
    return linear(x, weight, bias)


@fault("amp.ex-clip-bf16", instead_of="torch.nn.utils.clip_grad_norm_")
def long_gradients_of_bf16_are_added_up_in_bf16(clip, parameters, most, **options):
    """As a kernel that adds up more than 4,096 elements in bf16: 256 stands still there."""
    parameters = list(parameters)
    longest = max(parameter.numel() for parameter in parameters)
    if parameters[0].dtype != torch.bfloat16 or longest <= 4096:
        return clip(parameters, most, **options)
    return 0.9 * clip(parameters, most / 0.9, **options)


@fault("amp.ex-clip-bf16", instead_of="torch.nn.utils.clip_grad_norm_")
def clipping_ignores_an_outlier(clip, parameters, most, **options):
    """Gradients a hundred times as long as allowed are left alone."""
    parameters = list(parameters)
    length = sum(p.grad.float().square().sum() for p in parameters).sqrt()
    return clip(parameters, float("inf") if length > 100 * most else most, **options)


@fault("amp.backward-caution", instead_of="torch.Tensor.to")
def fp16_and_fp8_reach_as_far_down_as_bf16(to, self, *arguments, **options):
    if arguments[:1] in ((torch.float16,), (torch.float8_e5m2,)):
        return to(self, torch.bfloat16)
    return to(self, *arguments, **options)


@fault("amp.backward-caution", instead_of="torch.Tensor.to")
def e5m2_loses_what_is_small_in_the_forward_pass_too(to, self, *arguments, **options):
    moved = to(self, *arguments, **options)
    return torch.zeros_like(moved) if moved.dtype == torch.float8_e5m2 else moved


# fmt: off
faults(
    ("the_scaler_never_unscales", "amp.ex-clip-bf16",
     stand_in("torch.amp.GradScaler.unscale_", lambda _, self, optimizer: None)),
    ("the_scaler_never_skips_a_step", "amp.gradscaler",
     stand_in("torch.amp.GradScaler._maybe_opt_step", lambda _, self, optimizer, state, *a, **k: optimizer.step())),
    ("the_scale_is_no_power_of_two", "amp.gradscaler",
     stand_in("torch.amp.GradScaler.scale", lambda scale, self, loss: scale(self, loss) * 1.1)),
    ("the_old_names_do_not_warn", "amp.cuda-amp-api",
     stand_in("torch.cuda.amp.autocast", lambda _: torch.amp.autocast("cuda"))),
    ("torchs_adamw_keeps_its_state_in_fp32", "amp.recipe-bf16-params", stand_in("torch.zeros_like",
        lambda zeros_like, x, **options: zeros_like(x, **{**options, "dtype": torch.float32}))),
    ("bf16_is_said_to_take_three_bytes", "amp.ex-bf16-linear-32 amp.activation-memory",
     stand_in("accounting.formats.element_bits",
        lambda element_bits, name: 24 if name == "bf16" else element_bits(name))),
    ("losses_read_rounded_operands_under_autocast", "amp.autocast", stand_in("torch.nn.functional.mse_loss",
        lambda loss, x, *rest, **options:
            loss(x.bfloat16().float() if torch.is_autocast_enabled(x.device.type) else x, *rest, **options))),
    ("the_claim_names_another_year", "amp.origin-2017", stand_in("pathlib.Path.read_text",
        lambda read_text, self, **how: read_text(self, **how).replace("dates to 2017", "dates to 2018"))),
)
# fmt: on
