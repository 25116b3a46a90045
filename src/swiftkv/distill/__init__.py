"""Training: distillation of a SwiftKV student from its own model (Sec. 3.4, App. B.1), or fine-tuning (App. D)."""
