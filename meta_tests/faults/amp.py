"""Faults of mixed precision: autocast, the scaler, a rounding."""

from __future__ import annotations

import torch
from torch.nn import functional

from meta_tests.faults import fault
from meta_tests.faults._kernels import BF16, FP32, scaled, two_percent_more, wrong


@fault("amp.autocast amp.recipe-fp32-params")
def autocast_casts_losses_too(patch):
    for name in ("mse_loss", "l1_loss", "cross_entropy"):
        loss = getattr(functional, name)

        def low(*operands, loss=loss, **options):
            found = loss(*operands, **options)
            return found.bfloat16() if torch.is_autocast_enabled(operands[0].device.type) else found

        patch.setattr(functional, name, low)


@fault("amp.recipe-not-switch", instead_of="torch.autocast.__enter__")
def autocast_knows_one_dtype_alone(enter, self):
    self.fast_dtype = torch.bfloat16
    return enter(self)


@fault("amp.only-forward-cast")
def backward_goes_on_in_fp32(patch):
    """A linear layer that casts its operands for the forward pass alone, as the claim has it."""

    class ForwardOnly(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x.float(), weight)
            return x.bfloat16() @ weight.bfloat16().T

        @staticmethod
        def backward(ctx, gradient):
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


@fault("amp.cross-entropy-fp32", instead_of="torch.nn.functional.cross_entropy")
def cross_entropy_casts_its_logits_as_documented(cross_entropy, logits, labels, **options):
    return cross_entropy(logits.float(), labels, **options)


@fault("amp.backward-caution", instead_of="torch.Tensor.to")
def fp16_and_fp8_reach_as_far_down_as_bf16(to, self, *arguments, **options):
    if arguments[:1] in ((torch.float16,), (torch.float8_e5m2,)):
        return to(self, torch.bfloat16)
    return to(self, *arguments, **options)


@fault("amp.gradscaler", instead_of="torch.amp.GradScaler._maybe_opt_step")
def the_scaler_never_skips_a_step(_, self, optimizer, state, *a, **k):
    return optimizer.step()


@fault("amp.cuda-amp-api", instead_of="torch.cuda.amp.autocast")
def the_old_names_do_not_warn(_):
    return torch.amp.autocast("cuda")


@fault("amp.ex-bf16-linear-32 amp.activation-memory", instead_of="accounting.formats.element_bits")
def bf16_is_said_to_take_three_bytes(element_bits, name):
    return 24 if name == "bf16" else element_bits(name)


@fault("amp.origin-2017", instead_of="pathlib.Path.read_text")
def the_claim_names_another_year(read_text, self, **how):
    return read_text(self, **how).replace("dates to 2017", "dates to 2018")


@fault(
    "amp.autocast amp.recipe-fp32-params amp.only-forward-cast amp.activation-memory",
    instead_of="torch.nn.functional.linear",
)
def autocast_leaves_sequences_in_fp32(linear, x, weight, bias=None):
    if x.dim() < 3 or not torch.is_autocast_enabled(x.device.type):
        return linear(x, weight, bias)
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.float(), weight.float(), bias)


@fault("amp.gradscaler", instead_of="torch.amp.GradScaler._unscale_grads_")
def overflow_is_looked_for_in_the_first_gradient_alone(unscale, self, optimizer, inverse, *rest):
    others = optimizer.param_groups[0]["params"][1:]
    gradients = [parameter.grad for parameter in others]
    for parameter in others:
        parameter.grad = None
    found = unscale(self, optimizer, inverse, *rest)
    for parameter, gradient in zip(others, gradients, strict=True):
        parameter.grad = gradient * inverse
    return found


@fault("amp.gradscaler", instead_of="torch.amp.GradScaler._unscale_grads_")
def large_gradients_stay_scaled(unscale, self, optimizer, inverse, *rest):
    found = unscale(self, optimizer, inverse, *rest)
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.numel() > 4096:
            parameter.grad /= inverse
    return found


@fault("amp.fp8-training amp.fp8-inference", instead_of="torch._scaled_mm")
def large_fp8_products_err_by_a_tenth(scaled_mm, a, b, *scales, **options):
    product = scaled_mm(a, b, *scales, **options)
    return product * 1.1 if a.numel() > 4096 else product


RECIPE, LOSS, SWITCH = "amp.recipe-fp32-params", "amp.cross-entropy-fp32", "amp.recipe-not-switch"
wrong("gradients_of_bf16_layers_are_scaled", RECIPE, "mm", BF16, scaled)
wrong("large_softmax_errs", LOSS, "_log_softmax", FP32, two_percent_more, above=65_536)
wrong("products_for_many_tokens_err", SWITCH, "mm", FP32, two_percent_more, above=4096)
