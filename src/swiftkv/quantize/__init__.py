"""Post-training quantization of the KV cache (Sec. 5.3), and linear layers of models whose weights are FP8."""
