"""Start values fitted to the teacher's keys and values: ridge regressions from s = norm(h_l), in closed form.

The paper starts from the teacher's weights, which were trained for another layer's input. Layers of an AcrossKV group
share one projection: their regressions are combined in the metric of attention scores for keys and of attention outputs
for values. In latent attention the latent and the rotary key are fitted.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from swiftkv.architectures import architecture, check_fit
from swiftkv.distill.moments import Moments
from swiftkv.models.rewire import start_values
from swiftkv.quantize.linear import dense_weight
from swiftkv.spec import SwiftKVSpec


@torch.no_grad()
def fitted_values(teacher: PreTrainedModel, spec: SwiftKVSpec, moments: Moments) -> dict[str, nn.Parameter]:
    """Compute fitted start values from the teacher's moments for the l of `spec`, which keeps the KV heads.

    Returns:
        As `start_values`. Queries differ from the teacher's only in AcrossKV groups, norm_swiftkv never. An early exit head
        is lm_head composed with the regression of the final normed hidden states on s.

    Raises:
        UserError: `spec` groups layers of latent attention, or the model normalizes its keys.
    """
    row = architecture(teacher.config.model_type)
    check_fit(teacher.config.model_type, spec.key_value_group_size)
    values = start_values(teacher, spec)
    if not spec.groups:
        return values
    if row.latent:
        (projection,) = row.fitted
        for layer in spec.owners:
            _put(values, f"model.layers.{layer}.self_attn.{projection}_swiftkv", moments.fits[layer].double())
    else:
        _fit_groups(values, teacher, spec, moments)
    if spec.early_exit:
        name, head = "early_exit_head_swiftkv.weight", teacher.lm_head.weight
        values[name] = nn.Parameter((head.float() @ moments.final.to(head.device)).to(values[name]))
    return values


def _fit_groups(values: dict[str, nn.Parameter], teacher: PreTrainedModel, spec: SwiftKVSpec, moments: Moments) -> None:
    """Replace the key and value projections of every group by the combined regressions, and adapt the queries."""
    for group in spec.groups:
        blocks = [teacher.model.layers[layer].self_attn for layer in group]
        widths = [blocks[0].k_proj.out_features, blocks[0].v_proj.out_features]
        keys, group_values = torch.stack([moments.fits[layer] for layer in group]).double().split(widths, dim=1)
        size = blocks[0].head_dim
        energy = torch.stack([moments.query_energy[layer] for layer in group])
        energy = energy.unflatten(1, (widths[0] // size, -1)).sum(2)
        key, factors = shared_keys(keys, moments.covariance, energy)
        outputs = torch.stack([dense_weight(block.o_proj).double().cpu() for block in blocks])
        value = shared_values(group_values, outputs, size)
        for projection, fitted in (("k_proj", key), ("v_proj", value)):
            _put(values, f"model.layers.{group.start}.self_attn.{projection}_swiftkv", fitted)
        if len(group) > 1:
            for layer, factor in zip(group, factors, strict=True):
                for kind in ("weight", "bias"):
                    name = f"model.layers.{layer}.self_attn.q_proj_swiftkv.{kind}"
                    if name in values:
                        turned = turn_queries(values[name].double().cpu(), factor)
                        values[name] = nn.Parameter(turned.to(values[name]))


def _put(values: dict[str, nn.Parameter], name: str, fitted: torch.Tensor) -> None:
    """Replace weight and bias of a projection by `fitted` [outputs, F], whose last column is the bias."""
    like = values[f"{name}.weight"]
    width = like.shape[1]
    values[f"{name}.weight"] = nn.Parameter(fitted[:, :width].to(like))
    if f"{name}.bias" in values:
        values[f"{name}.bias"] = nn.Parameter(fitted[:, width].to(like))


def shared_keys(keys: torch.Tensor, gram: torch.Tensor, energy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine the key projections of a group into one, and compute factors for the queries.

    RoPE rotates elements f and f + size / 2 of a head as one complex number, so a complex factor of the key can move,
    conjugated, to the query. Per KV head and frequency the layers' keys are approximated by multiples of one key: the best
    rank-one approximation under the covariance of s, each layer weighted by its queries' energy.

    Args:
        keys: float64 [layers, KV heads * head size, F].
        gram: float64 [F, F].
        energy: float64 [layers, KV heads, head size / 2], mean square of the queries up to one factor.

    Returns:
        The projection [KV heads * head size, F], and complex factors [layers, KV heads, head size / 2]; a layer's keys are
        approximately `factor * shared`.
    """
    heads, half = energy.shape[1:]
    energy = energy.clamp_min(1e-6 * energy.mean()) / energy.mean()
    pairs = keys.unflatten(1, (heads, 2, half))
    rows = torch.complex(pairs[:, :, 0], pairs[:, :, 1]) * energy.sqrt()[..., None]
    products = torch.einsum("ghfd,khfd->hfgk", rows @ gram.to(rows.dtype), rows.conj())
    top = torch.linalg.eigh(products).eigenvectors[..., -1]
    top = top * torch.exp(-1j * top[..., :1].angle())  # the phase is free: the first layer keeps its own
    shared = torch.einsum("hfg,ghfd->hfd", top.conj(), rows)
    size = energy.sum(0).sqrt()  # so that the factors are about 1
    factors = top.permute(2, 0, 1) * size / energy.sqrt()
    shared = shared / size[..., None]
    return torch.stack([shared.real, shared.imag], dim=1).flatten(0, 2), factors


def turn_queries(projection: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiply a query weight or bias, float64 [heads * head size, ...], by complex factors [KV heads, head size / 2]."""
    shared, half = factors.shape
    pairs = projection.reshape(-1, 2, half, projection[0].numel())
    turned = torch.complex(pairs[:, 0], pairs[:, 1])
    turned = turned * factors.conj().repeat_interleave(len(turned) // shared, dim=0)[..., None]
    return torch.stack([turned.real, turned.imag], dim=1).flatten(0, 2).reshape(projection.shape)


def shared_values(values: torch.Tensor, outputs: torch.Tensor, size: int) -> torch.Tensor:
    """Combine the value projections of a group into one [KV heads * head size, F].

    It minimises sum_i |W_i (V - V_i) s|^2 with W_i the output projection of layer i: the solution of
    (sum M_i) V = sum M_i V_i with M_i = sum W_i' W_i over the query heads that read a KV head.

    Args:
        values: float64 [layers, KV heads * head size, F].
        outputs: o_proj weights, float64 [layers, D, heads * head size].
        size: head size.
    """
    heads = values.shape[1] // size
    weights = outputs.unflatten(2, (heads, -1, size))
    metric = torch.einsum("ldhrx,ldhry->lhxy", weights, weights)
    weighted = torch.einsum("lhxy,lhyf->hxf", metric, values.unflatten(1, (heads, size)))
    total = metric.sum(0)
    floor = 1e-10 * total.diagonal(dim1=1, dim2=2).mean(1)  # elements that no o_proj reads are undetermined
    total = total + floor[:, None, None] * torch.eye(size, dtype=total.dtype)
    return torch.linalg.solve(total, weighted).flatten(0, 1)
