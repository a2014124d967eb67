"""Faults of mixed precision: autocast, the scaler, a rounding."""

import torch

from meta_tests.faults import fault


@fault("amp.recipe-bf16-params", instead_of="torch.Tensor.bfloat16")
def a_cast_to_bf16_truncates(cast, self):
    if self.dtype != torch.float32 or self.requires_grad:
        return cast(self)
    return cast(self.contiguous().view(torch.int32).bitwise_and(-1 << 16).view(torch.float32))


@fault("amp.half-epoch-time", instead_of="torch.nn.functional.linear")
def small_steps_in_fp32_are_slow(linear, x, weight, bias=None):
    if not torch.is_autocast_enabled(x.device.type):
        for _ in range(60):
            linear(x, weight, bias)
    return linear(x, weight, bias)


@fault("amp.backward-caution", instead_of="torch.Tensor.to")
def fp16_and_fp8_reach_as_far_down_as_bf16(to, self, *arguments, **options):
    if arguments[:1] in ((torch.float16,), (torch.float8_e5m2,)):
        return to(self, torch.bfloat16)
    return to(self, *arguments, **options)


@fault("amp.gradscaler", instead_of="torch.amp.GradScaler._maybe_opt_step")
def the_scaler_never_skips_a_step(_, self, optimizer, state, *a, **k):
    return optimizer.step()


@fault("amp.cuda-amp-api", instead_of="torch.cuda.amp.autocast")
def the_old_autocast_goes_to_another_dtype(autocast):
    # Neither 16-bit format: another fault of this process may have left one as the default.
    return autocast(dtype=torch.float32)


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


@fault("amp.fp8-training amp.fp8-inference", instead_of="torch._scaled_mm")
def large_fp8_products_err_by_a_tenth(scaled_mm, a, b, *scales, **options):
    product = scaled_mm(a, b, *scales, **options)
    return product * 1.1 if a.numel() > 4096 else product
