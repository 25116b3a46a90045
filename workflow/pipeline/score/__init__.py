"""Benchmark scores with lm-eval, and fidelity to the teacher on held-out chats."""

BROKEN = "the weights are damaged, or numbers in the model overflow; compare the checkpoint with where it is from"
