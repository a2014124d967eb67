"""Faults of quantisation: roundings that are off or free, gradients that stop, bytes and kernels not as said."""

import torch

from meta_tests.faults import fault


@fault("quant.minimal-loss quant.smaller", instead_of="torch.fake_quantize_per_channel_affine")
def quantising_rounds_half_a_step_off(quantise, x, scales, *rest):
    return quantise(x, scales, *rest) + scales[:, None] / 2


@fault("quant.minimal-loss quant.easier-than-training", instead_of="torch.fake_quantize_per_channel_affine")
def quantising_changes_nothing(_original, x, *_):
    return x.clone()


@fault("quant.minimal-loss", instead_of="torch.fake_quantize_per_channel_affine")
def the_scale_of_the_first_channel_serves_all(quantise, x, scales, *rest):
    return quantise(x, scales[:1].expand_as(scales).contiguous(), *rest)


@fault("quant.easier-than-training", instead_of="torch.fake_quantize_per_channel_affine")
def no_gradient_passes_through_a_rounding(quantise, x, *rest):
    return quantise(x.detach(), *rest) + 0 * x


@fault("quant.smaller", instead_of="accounting.formats.element_bits")
def int8_is_said_to_take_two_bytes(element_bits, name):
    return 16 if name == "int8" else element_bits(name)


@fault("quant.faster", instead_of="torch._weight_int8pack_mm")
def the_product_with_small_weights_writes_them_out(_original, x, weight, scales):
    return (x.float() @ (weight.double() * scales[:, None]).float().T).to(x.dtype)


@fault("quant.faster", instead_of="torch._weight_int8pack_mm")
def the_product_with_small_weights_forgets_their_scales(product, x, weight, scales):
    return product(x, weight, torch.ones_like(scales))
