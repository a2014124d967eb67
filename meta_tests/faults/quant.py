"""Faults of quantisation: roundings that are off or free, gradients that stop, bytes and kernels not as said."""

from meta_tests.faults import faults, stand_in

# fmt: off
faults(
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
)
# fmt: on
