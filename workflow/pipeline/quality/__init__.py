"""Quality: scores with lm-eval, fidelity on held-out chats, reading, early exit, and similarity of layer inputs."""

BROKEN = "the weights are damaged, or numbers in the model overflow; compare the checkpoint with where it is from"
