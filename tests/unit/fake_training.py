"""Training steps of one rank of many on fake tensors, in a process group whose other ranks do not exist.

Model, step, loss, DeepSpeed's engine and ZeRO are the project's own; only what would need data is answered in its place.
Argument: a file with JSON of the cases, each a `Case` by its fields, all of as many ranks and on the same kind of device.
Prints a JSON line for each, `measure`'s answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import re
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swiftkv.distill import attention, losses, trainer
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import make_step
from swiftkv.quantize.linear import quantized_names, use_float8
from swiftkv.spec import SwiftKVSpec

OPTIMIZER_STEPS = 2  # in the first, AdamW has no moments yet and ZeRO-3 only learns the order of layers
SAMPLE = 128  # tokens of each packed sample


@dataclasses.dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        config: config.json of its model.
        spec, recipe: as JSON; spec None trains the model as it is.
        ranks: in all.
        fp8: whether the model's linear layers are.
        gpu: whether the attention and the loss are those of a GPU, or the processor's own.
        real: whether tensors have memory.
    """

    config: dict[str, Any]
    spec: dict[str, Any] | None
    recipe: dict[str, Any]
    ranks: int
    fp8: bool = False
    gpu: bool = True
    real: bool = False


class Bytes(TorchDispatchMode):
    """Counts the bytes of all tensors that live, and answers what only data would tell.

    No position is left out of a loss, and each number that is asked for is 0: no overflow, a gradient of norm 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            return 0.0
        if function is torch.ops.aten.nonzero.default:
            result = torch.arange(args[0].numel(), device=args[0].device)[:, None]
        else:
            result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key not in self._known:
            self._known[key] = weakref.finalize(storage, self._drop, key, size)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _drop(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size


class FakeTensors(FakeTensorMode):
    """A copy of a fake tensor is of the same mode."""

    def __deepcopy__(self, memo):
        return self


FAKE = FakeTensors()  # one, as the processor's attention keeps its mask for the next case


class _Attention(torch.autograd.Function):
    """What FlashAttention 2 keeps and needs besides: a number a row, float32 gradients of queries, keys of all heads."""

    @staticmethod
    def forward(ctx, query, key, value):
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        sums = torch.empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, _, sums = ctx.saved_tensors
        scratch = torch.empty_like(query, dtype=torch.float32), torch.empty_like(sums)
        wide = key.new_empty(*query.shape[:-1], key.shape[-1]), value.new_empty(gradient.shape)
        gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del scratch, wide
        return gradients


def _attend(module, query, key, value, attention_mask, **_):
    return _Attention.apply(*(states.transpose(1, 2) for states in (query, key, value))), None


def pretend(case: Case) -> None:
    """Take the place of all that looks for a GPU, at data, or at other ranks; once in a process."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(case.ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.distributed.init_process_group("fake", rank=0, world_size=case.ranks, store=FakeStore())
    with trainer.quiet_deepspeed():
        import deepspeed
        from deepspeed.runtime.zero import partitioned_param_coordinator

        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda numbers: None
    torch.nn.Module._apply = lambda module, *_, **__: module  # all is where and what it has to be
    attention.sample_lengths = lambda positions: [SAMPLE] * (positions.numel() // SAMPLE)
    if case.gpu:
        ALL_ATTENTION_FUNCTIONS.register("counted", _attend)
        attention.choose_for = lambda *_: "counted"
        losses.INNER_ELEMENTS = losses.GPU_INNER_ELEMENTS
    # As on a GPU; on a processor, whose untouched memory is none, no more than is used.
    changes = {"overlap_comm": True} if case.gpu else {"reduce_bucket_size": 10**6}
    initialize = deepspeed.initialize

    def changed(config, **arguments):
        config["zero_optimization"] |= changes
        return initialize(config=config, **arguments)

    deepspeed.initialize = changed


def measure(case: Case) -> dict[str, float]:
    """Bytes of tensors of a rank, between two steps (`state`) and at most (`peak`), and of the process (`resident`)."""
    recipe = Recipe.from_dict(case.recipe)
    spec = None if case.spec is None else SwiftKVSpec(**case.spec)
    with contextlib.nullcontext() if case.real else FAKE, Bytes() as counted:
        torch.set_default_dtype(recipe.torch_dtype)
        base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**case.config))
        if case.fp8:
            use_float8(base, quantized_names(base))
        torch.set_default_dtype(torch.float32)
        step = make_step(base, spec, recipe)
        del base
        accumulation = recipe.accumulation(case.ranks)
        engine = trainer.make_engine(step, recipe, accumulation)
        shape = (recipe.micro_batch_size, recipe.max_length)
        for _ in range(OPTIMIZER_STEPS):
            gc.collect()  # what only a cycle holds depends on the cases before
            counted.peak = 0
            for _ in range(accumulation):
                positions = (torch.arange(shape[1]) % SAMPLE).expand(shape)
                batch = {"input_ids": torch.zeros(shape, dtype=torch.int64), "position_ids": positions}
                if recipe.logits_tokens == "assistant":
                    batch["assistant_mask"] = torch.ones(shape, dtype=torch.uint8)
                loss, parts = engine(weights=torch.ones(shape), **batch)
                engine.backward(loss)
                del loss, parts, batch
                engine.step()
        found = {"state": counted.now, "peak": counted.peak}
        engine.destroy()
    # Not getrusage's, which a process inherits from the one that started it.
    (resident,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return found | {"resident": 1024 * int(resident)}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    cases = [Case(**fields) for fields in json.loads(Path(sys.argv[1]).read_text())]
    pretend(cases[0])
    for case in cases:
        print(json.dumps(measure(case)), file=answers)
