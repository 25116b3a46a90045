"""Benchmark scores with lm-eval, and fidelity to the teacher on held-out chats."""
