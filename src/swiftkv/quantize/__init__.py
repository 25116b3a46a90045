"""Post-training quantization of the KV cache (Sec. 5.3), and linear layers of models whose weights are FP8."""

from swiftkv.quantize.kv_cache import KV_CACHES, Fp8Cache, Peak, dequantize, new_cache, quantize, round_trip

__all__ = ["KV_CACHES", "Fp8Cache", "Peak", "dequantize", "new_cache", "quantize", "round_trip"]
