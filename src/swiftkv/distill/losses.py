"""Losses on final hidden states, computed a few rows at a time so that never all logits exist.

For final normed hidden states h_S, h_T [N, D] and the language-model head W [V, D] the distillation loss is
T^2 KL(p_T || p_S), p = softmax(h W' / T) (paper, Sec. 3.4, with App. B.1's T = 2). Its gradient for the student's
logits is T (p_S - p_T), so the forward pass also computes the gradients for h_S and W. The largest temporary is
`ROWS` x V logits of teacher and student in the model's dtype; float32 copies have `INNER_ELEMENTS`, which fit in the
CPU's cache.
"""

from __future__ import annotations

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
    return _HeadLoss.apply(student, head, weights, _Distillation(teacher, temperature, teacher_head))


def lm_loss(student: torch.Tensor, head: torch.Tensor, weights: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Weighted sum over positions of the cross-entropy with `targets`, int64 [N], in nats; see `distillation_loss`."""
    return _HeadLoss.apply(student, head, weights, _CrossEntropy(targets))


def hidden_state_loss(student: torch.Tensor, teacher: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum over positions of the mean squared error over features; [N, D], [N, D], float32 [N]."""
    return ((student.float() - teacher.float()).square().mean(-1) * weights).sum()


class _Distillation:
    def __init__(self, teacher: torch.Tensor, temperature: float, head: torch.Tensor | None) -> None:
        self.teacher, self.temperature, self.head = teacher, temperature, head

    def logits(self, rows: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return self.teacher[rows] @ (head if self.head is None else self.head).T

    def rows(self, student: torch.Tensor, teacher: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss [r] and gradient [r, V] for float32 logits [r, V], which are overwritten."""
        scale = 1 / self.temperature
        student, teacher = student.mul_(scale), teacher.mul_(scale)
        student_p, teacher_p = student.softmax(-1), teacher.softmax(-1)
        # log-normalizer = logit - log p, at the largest logit, where p is far from 0.
        gap = (teacher.amax(-1) - teacher_p.amax(-1).log_()) - (student.amax(-1) - student_p.amax(-1).log_())
        difference = teacher.sub_(student)
        divergence = torch.linalg.vecdot(teacher_p, difference) - gap
        return divergence * self.temperature**2, student_p.sub_(teacher_p).mul_(self.temperature)


class _CrossEntropy:
    def __init__(self, targets: torch.Tensor) -> None:
        self.targets = targets

    def logits(self, rows: torch.Tensor, head: torch.Tensor) -> None:
        return None

    def rows(self, student: torch.Tensor, _: None, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_p = student.log_softmax(-1)
        target = self.targets[rows, None]
        loss = -log_p.gather(-1, target).squeeze(-1)
        gradient = log_p.exp_()
        gradient.scatter_add_(-1, target, torch.full_like(target, -1, dtype=gradient.dtype))
        return loss, gradient


class _HeadLoss(torch.autograd.Function):
    """Computes head, loss and gradients in one pass over chunks of rows."""

    @staticmethod
    def forward(ctx, student, head, weights, kind):
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
            teacher = kind.logits(rows, head)
            for start in range(0, len(rows), inner):
                part = slice(start, start + inner)
                values, slope = kind.rows(
                    logits[part].float(), None if teacher is None else teacher[part].float(), rows[part]
                )
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
        gradient, head_gradient = ctx.saved_tensors
        return gradient.mul_(upstream), None if head_gradient is None else head_gradient.mul_(upstream), None, None
