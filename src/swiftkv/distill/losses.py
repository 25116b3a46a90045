"""Losses on final hidden states, computed a few rows at a time so that never all logits exist.

For final normed hidden states h_S, h_T [N, D] and the language-model head W [V, D] the distillation loss is
T^2 KL(p_T || p_S), p = softmax(h W' / T) (paper, Sec. 3.4, with App. B.1's T = 2). Its gradient for the student's
logits is T (p_S - p_T), so the forward pass also computes the gradients for h_S and W. The largest temporary is
`ROWS` x V logits of teacher and student in the model's dtype; float32 copies have `INNER_ELEMENTS`, which fit in the
CPU's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

ROWS = 256  # reaches full matrix-product speed
INNER_ELEMENTS = 2**19  # on CPUs: float32 logits of both models take 4 MB
GPU_INNER_ELEMENTS = 2**27


def distillation_loss(
    student: torch.Tensor,
    head: torch.Tensor,
    weights: torch.Tensor,
    teacher: torch.Tensor,
    temperature: float,
    teacher_head: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weighted sum over positions of T^2 KL(teacher || student), in nats.

    Args:
        student: final normed hidden states [N, D]; get a gradient.
        head: language-model head [V, D]; gets a gradient unless frozen.
        weights: float32 [N]; positions of weight 0 are skipped.
        teacher: the teacher's hidden states [N, D].
        teacher_head: the teacher's head [V, D], frozen; None means `head`.

    Returns:
        Float32 scalar.
    """
    teacher_head = head if teacher_head is None else teacher_head
    return _HeadLoss.apply(
        student, head, weights, lambda rows: teacher[rows] @ teacher_head.T, partial(_divergence, temperature)
    )


def lm_loss(student: torch.Tensor, head: torch.Tensor, weights: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Weighted sum over positions of the cross-entropy with `targets`, int64 [N], in nats; see `distillation_loss`."""
    return _HeadLoss.apply(student, head, weights, targets.__getitem__, _cross_entropy)


def hidden_state_loss(student: torch.Tensor, teacher: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum over positions of the mean squared error over features; [N, D], [N, D], float32 [N]."""
    return ((student.float() - teacher.float()).square().mean(-1) * weights).sum()


def _divergence(temperature: float, student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss [r] and gradient [r, V] for logits [r, V], the student's float32 and overwritten."""
    scale = 1 / temperature
    student, teacher = student.mul_(scale), teacher.float().mul_(scale)
    student_p, teacher_p = student.softmax(-1), teacher.softmax(-1)
    # log-normalizer = logit - log p, at the largest logit, where p is far from 0.
    gap = (teacher.amax(-1) - teacher_p.amax(-1).log_()) - (student.amax(-1) - student_p.amax(-1).log_())
    difference = teacher.sub_(student)
    divergence = torch.linalg.vecdot(teacher_p, difference) - gap
    return divergence * temperature**2, student_p.sub_(teacher_p).mul_(temperature)


def _cross_entropy(student: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_divergence`, for targets [r]."""
    log_p, targets = student.log_softmax(-1), targets[:, None]
    loss = -log_p.gather(-1, targets).squeeze(-1)
    gradient = log_p.exp_()
    gradient.scatter_add_(-1, targets, torch.full_like(targets, -1, dtype=gradient.dtype))
    return loss, gradient


class _HeadLoss(torch.autograd.Function):
    """Computes head, loss and gradients in one pass over chunks of rows."""

    @staticmethod
    def forward(ctx, student, head, weights, reference: Callable, row_losses: Callable):
        gradient = torch.zeros_like(student)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        trains_head = ctx.needs_input_grad[1]
        needs_gradient = ctx.needs_input_grad[0] or trains_head
        # In float32: a 16-bit sum over chunks would be rounded every time.
        head_gradient = torch.zeros_like(head, dtype=torch.float32) if trains_head else None
        counted = weights.nonzero().squeeze(-1)
        budget = INNER_ELEMENTS if student.device.type == "cpu" else GPU_INNER_ELEMENTS
        inner = max(1, budget // head.shape[0])
        for rows in counted.split(ROWS):
            logits = student[rows] @ head.T
            compared = reference(rows)
            for start in range(0, len(rows), inner):
                part = slice(start, start + inner)
                values, slope = row_losses(logits[part].float(), compared[part])
                total += torch.dot(values, weights[rows[part]])
                if needs_gradient:
                    logits[part] = slope.mul_(weights[rows[part], None])
            if needs_gradient:
                gradient[rows] = logits @ head
            if trains_head:
                head_gradient += logits.T @ student[rows]
        ctx.save_for_backward(gradient, None if head_gradient is None else head_gradient.to(head.dtype))
        return total

    @staticmethod
    def backward(ctx, upstream):
        gradients = ctx.saved_tensors
        return *(None if gradient is None else gradient.mul_(upstream) for gradient in gradients), None, None, None
