"""Faults of quantisation: roundings that are off or free, gradients that stop, bytes and kernels not as said."""

import torch

from meta_tests.faults import faults, stand_in

# fmt: off
faults(
    ("quantising_rounds_half_a_step_off", "quant.minimal-loss quant.smaller",
     stand_in("torch.fake_quantize_per_channel_affine",
        lambda quantise, x, scales, *rest: quantise(x, scales, *rest) + scales[:, None] / 2)),
    ("quantising_changes_nothing", "quant.minimal-loss quant.easier-than-training",
     stand_in("torch.fake_quantize_per_channel_affine", lambda _original, x, *_: x.clone())),
    ("the_scale_of_the_first_channel_serves_all", "quant.minimal-loss",
     stand_in("torch.fake_quantize_per_channel_affine",
        lambda quantise, x, scales, *rest: quantise(x, scales[:1].expand_as(scales).contiguous(), *rest))),
    ("no_gradient_passes_through_a_rounding", "quant.easier-than-training",
     stand_in("torch.fake_quantize_per_channel_affine",
        lambda quantise, x, *rest: quantise(x.detach(), *rest) + 0 * x)),
    ("int8_is_said_to_take_two_bytes", "quant.smaller", stand_in("accounting.formats.element_bits",
        lambda element_bits, name: 16 if name == "int8" else element_bits(name))),
    ("the_product_with_small_weights_writes_them_out", "quant.faster", stand_in("torch._weight_int8pack_mm",
        lambda _, x, weight, scales: (x.float() @ (weight.double() * scales[:, None]).float().T).to(x.dtype))),
    ("four_bits_cost_a_trained_net_nothing", "quant.minimal-loss",
     stand_in("test_claims.oracles.low_precision.with_bits",
        lambda with_bits, net, bits: net if bits == 4 else with_bits(net, bits))),
    ("small_weights_are_fast_at_one_width_alone", "quant.faster", stand_in("torch._weight_int8pack_mm",
        lambda product, *operands: [product(*operands) for _ in range(1 if len(operands[1]) > 1024 else 9)].pop())),
    ("the_product_with_small_weights_forgets_their_scales", "quant.faster", stand_in("torch._weight_int8pack_mm",
        lambda product, x, weight, scales: product(x, weight, torch.ones_like(scales)))),
)
# fmt: on
