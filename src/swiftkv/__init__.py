"""SwiftKV: prefill-optimised inference through model rewiring and self-distillation."""
