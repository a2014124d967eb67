"""What a layer of latents keeps and attends to."""

from accounting.families import latent_attention
from accounting.models import cache_bytes, decoding_work


def test_latents_are_what_is_cached_and_attended_to_at_inference():
    layer = latent_attention(7168, 128, 1536, 512, 128, 64, 128)
    assert cache_bytes(layer, 1, 1000) == 2 * 1000 * (512 + 64)
    assert cache_bytes(layer, 1, 1000, latents=False) == 2 * 1000 * 128 * (192 + 128)
    absorbed, expanded = (decoding_work(layer, 1, 1000, latents=latents) for latents in (True, False))
    assert absorbed.flops - expanded.flops == 2 * 128 * 1001 * ((576 + 512) - (192 + 128))
    few, many = (decoding_work(layer, 64, 8192, latents=latents).intensity for latents in (True, False))
    assert few > 50 * many, f"{few:.0f} FLOPs a byte with latents, {many:.0f} with whole keys and values"
