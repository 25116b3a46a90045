"""Training with DeepSpeed on any number of ranks, GPUs or CPUs, with exact resume."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import shutil
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from swiftkv.device import accelerator, compute_device, join_ranks, rank, ranks
from swiftkv.distill.attention import choose_kernel
from swiftkv.distill.fit import fitted_values
from swiftkv.distill.moments import Moments
from swiftkv.distill.packing import PackedRows
from swiftkv.distill.progress import LOSSES, Clock, LossLog, ProgressLines, end_of_job, say
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.state import TrainingState, fingerprint
from swiftkv.distill.step import DistillationStep, FineTuningStep, Step, before
from swiftkv.distill.teacher import TeacherStates, check_identity, fits_identity
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_ahead, read_json
from swiftkv.models import load_base, load_tokenizer, save_model
from swiftkv.models.saving import try_saving
from swiftkv.models.sharing import base_dtype
from swiftkv.quantize.linear import is_quantized
from swiftkv.spec import SwiftKVSpec


@dataclass(frozen=True)
class Training:
    """Facts about a finished training.

    Attributes:
        rows: its packed rows.
        ranks: processes of the last attempt.
        machines: [ranks, name of their GPUs or None, seconds of optimizer steps] of all attempts.
        attention: name of the attention function.
    """

    rows: PackedRows
    ranks: int
    machines: list[list]
    attention: str


def train(
    model: Path,
    spec: SwiftKVSpec | None,
    recipe: Recipe,
    data: Path,
    state_dir: Path,
    checkpoint: Path,
    loss_log: Path,
    teacher_states: Path | None = None,
    moments: Path | None = None,
    minutes: float | None = None,
) -> Training | None:
    """Train one variant of a model, or resume its training; alone, or as a rank of torchrun.

    Args:
        model: folder of an ordinary checkpoint with tokenizer.
        spec: the rewiring; None trains the ordinary model.
        recipe: the training recipe.
        data: packed rows.
        state_dir: folder for resumable state.
        checkpoint: output folder of the trained checkpoint.
        loss_log: output CSV of the losses.
        teacher_states: stored states of the teacher, for recipes that use them.
        moments: file of `Moments`, for recipes with a fitted start.
        minutes: time limit outside SLURM, which states its own; the state is saved and the training stops before. None means
            no limit.

    Returns:
        Facts about the training; None on ranks other than the first.

    Raises:
        UserError: an input is impossible, missing or damaged, or the training was stopped; no output is written then.
    """
    keep_freed_memory()
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")  # DeepSpeed's calls
    recipe = recipe.on_this_device()
    recipe.check_spec(spec)
    if recipe.train != "qkv" and is_quantized(read_json(model / "config.json")):
        raise UserError(f"{model} has FP8 weights, which cannot be trained; use a recipe with train: qkv")
    choose_kernel(recipe)  # raises before the model is loaded
    own = spec is not None and spec.own_key_values
    rows = PackedRows(data, recipe.logits_tokens != "all" or own)
    if rows.max_length != recipe.max_length:
        raise UserError(
            f"{data} has rows of {rows.max_length} tokens, but the recipe's max_length is {recipe.max_length}"
        )
    total = recipe.total_steps(rows.rows)
    stored = None
    if recipe.teacher_states == "stored" and recipe.loss == "distillation":
        if teacher_states is None:
            raise UserError("the recipe asks for stored teacher states, but no file with them was given")
        stored = TeacherStates(teacher_states, spec, model, data, recipe)
    state = TrainingState(state_dir, fingerprint(recipe, spec, model, data))
    tokenizer = load_tokenizer(model)
    start_distributed()
    first = rank() == 0
    if os.environ["LOCAL_RANK"] == "0":
        read_ahead(model)
    torch.distributed.barrier()
    base = load_base(model, dtype=recipe.torch_dtype)
    start = None
    if recipe.start == "fitted":
        if moments is None:
            raise UserError("the recipe asks for a fitted start, but no file with moments was given")
        statistics = Moments.read(moments, spec.num_key_value_layers)
        check_identity("moments", moments, statistics.description, fits_identity(model, data, recipe))
        start = fitted_values(base, spec, statistics)
    step = FineTuningStep(base, recipe) if spec is None else DistillationStep(base, spec, recipe, start)
    dtype, shared = base_dtype(model), model if recipe.train == "qkv" else None
    if first:  # transformers writes nothing on the others
        try_saving(step.student, checkpoint, tokenizer, dtype, shared)
    if first and not state.checkpoints and state.others:
        say(f"the state kept in {state_dir} is of another recipe, spec, model or data set: training from the start")
    engine = make_engine(step, recipe)
    position = state.load(engine) or {"step": 0, "tokens": 0, "seconds": 0.0, "machines": [], "state_seconds": 0.0}
    if first and position["step"]:
        say(f"continuing after step {position['step']} of {total}")
    log = LossLog(state.log, position["step"]) if first else None
    loop = Loop(engine, recipe, rows, stored, total)
    progress = ProgressLines(f"training {checkpoint.name}", total, done=position["step"])
    tokens, seconds = position["tokens"], position["seconds"]
    spent = position["machines"]
    machines = Counter({(count, name): time_spent for count, name, time_spent in spent})
    # Asked once, as its answer reaches all ranks through the clock.
    end = end_of_job(minutes) if first else None
    with Clock(recipe.checkpoint_minutes, end, position["state_seconds"]) as clock:
        for number in range(position["step"], total):
            begin = time.monotonic()
            result = loop.run(number)
            elapsed = time.monotonic() - begin
            if not math.isfinite(result["loss"] + result["gradient_norm"]):
                state.diverge(
                    f"step {number + 1} of {total}: the loss is {result['loss']:g}, the gradient's norm "
                    f"{result['gradient_norm']:g}"
                )
            tokens, seconds = tokens + result["tokens"], seconds + elapsed
            machines[ranks(), accelerator()] += elapsed
            if log is not None:
                speed = result["tokens"] / elapsed
                log.add(
                    step=number + 1,
                    epoch=(number + 1) * recipe.batch_size / rows.rows,
                    tokens=tokens,
                    **{name: result[name] for name in ("loss", *LOSSES, "learning_rate")},
                    tokens_per_second=round(speed, 1),
                    seconds=round(seconds, 3),
                )
                progress.at(number + 1, f"loss {result['loss']:.4f}, {speed:.0f} tokens/s")
            due, stop = clock.ask(engine.device)
            if due or (number + 1) % recipe.checkpoint_every == 0 or number + 1 == total:
                spent = [[*machine, time_spent] for machine, time_spent in machines.items()]
                state.save(engine, number + 1, {"tokens": tokens, "seconds": seconds, "machines": spent})
                clock.saved()
            if stop and number + 1 < total:
                raise UserError(
                    f"stopped {stop}, its state saved after step {number + 1} of {total}; run it again to go on"
                )
    if log is not None:
        log.close()
    tensors = gather_weights(step.student, added_only=bool(shared))
    if first:
        step.student.set_attn_implementation("sdpa")
        if not shared:
            step.student.to(dtype)
            tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        save_model(step.student, checkpoint, tokenizer=tokenizer, state_dict=tensors, base=shared)
        with atomic_path(loss_log) as scratch:
            shutil.copyfile(state.log, scratch)
    outcome = Training(rows, ranks(), spent, step.attention) if first else None
    torch.distributed.barrier()
    engine.destroy()
    del engine, loop
    gc.collect()  # threads of a process group that is still referenced would abort the interpreter's exit
    torch.distributed.destroy_process_group()
    return outcome


@dataclass
class Loop:
    """The optimizer steps. Step n depends on n alone, so a resumed training is exact."""

    engine: Any
    recipe: Recipe
    rows: PackedRows
    stored: TeacherStates | None
    total: int
    _order: tuple[int, list[int]] = (-1, [])  # epoch, order of its rows

    def row_numbers(self, number: int) -> list[int]:
        """Rows of optimizer step `number`; every epoch is shuffled anew."""
        numbers = []
        for place in range(number * self.recipe.batch_size, (number + 1) * self.recipe.batch_size):
            epoch, index = divmod(place, self.rows.rows)
            if self._order[0] != epoch:
                generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + epoch)
                self._order = (epoch, torch.randperm(self.rows.rows, generator=generator).tolist())
            numbers.append(self._order[1][index])
        return numbers

    def run(self, number: int) -> dict[str, float]:
        """Run optimizer step `number`.

        Returns:
            Mean losses, learning rate, tokens that counted, and the gradient's norm before clipping, equal on all ranks.
            If the norm is not finite, it is infinite and DeepSpeed skips the update.
        """
        recipe, device, together = self.recipe, self.engine.device, ranks()
        accumulation = recipe.accumulation(together)
        numbers = self.row_numbers(number)
        tokens = self.rows.counted(numbers)
        positions = tokens
        if recipe.loss == "lm":  # those with a next token
            batch = self.rows[numbers]
            positions = int(before(batch["loss_mask"], batch["position_ids"]).sum())
        rate = recipe.learning_rate_at(number, self.total)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        sums = torch.zeros(len(LOSSES), dtype=torch.float64, device=device)
        for micro in range(accumulation):
            first = (micro * together + rank()) * recipe.micro_batch_size
            mine = numbers[first : first + recipe.micro_batch_size]
            batch = self.rows[mine] | (self.stored[mine] if self.stored else {})
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            # DeepSpeed averages over ranks and micro-batches; the loss is a mean over all positions of the batch.
            weights = batch.pop("loss_mask") * (together * accumulation / max(1, positions))
            loss, parts = self.engine(weights=weights, **batch)
            self.engine.backward(loss)
            self.engine.step()
            sums += parts.double() / (together * accumulation)
        if together > 1:
            torch.distributed.all_reduce(sums)
        logits, hidden, early_exit = sums.tolist()
        return {
            "loss": recipe.logits_weight * (logits + early_exit) + recipe.hidden_state_weight * hidden,
            **dict(zip(LOSSES, (logits, hidden, early_exit), strict=True)),
            "learning_rate": rate,
            "tokens": tokens,
            "gradient_norm": float(self.engine.get_global_grad_norm()),
        }


def make_engine(step: Step, recipe: Recipe) -> Any:
    """Make the DeepSpeed engine of a step: ZeRO, AdamW on float32 master weights, gradient clipping."""
    import deepspeed

    device = compute_device()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": recipe.micro_batch_size,
        "gradient_accumulation_steps": recipe.accumulation(ranks()),
        "gradient_clipping": recipe.gradient_clipping,
        "zero_optimization": {"stage": recipe.zero_stage, "overlap_comm": device == "cuda"},
        "zero_allow_untested_optimizer": True,  # torch's AdamW; DeepSpeed's own needs compilation
        "steps_per_print": 10**9,
    }
    if recipe.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    if recipe.zero_stage == 3:
        # Divides the memory-mapped parameters one by one: no GPU ever holds the whole model.
        deepspeed.zero.Init(module=step, config_dict_or_path=config)
        for buffer in step.buffers():
            buffer.data = buffer.data.to(device)
    else:
        step.to(device)
    trained = [parameter for parameter in step.parameters() if parameter.requires_grad]
    betas = (0.9, recipe.adam_beta2)
    optimizer = torch.optim.AdamW(
        trained, lr=recipe.learning_rate, betas=betas, eps=1e-8, weight_decay=recipe.weight_decay, fused=True
    )
    engine, *_ = deepspeed.initialize(model=step, optimizer=optimizer, config=config, dist_init_required=False)
    return engine


def start_distributed() -> None:
    """Join the ranks of a launcher (torchrun, deepspeed, SLURM with RANK set), or start as the only rank."""
    launched = "RANK" in os.environ
    if not torch.distributed.is_initialized():
        join_ranks(**({} if launched else {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}))
    if not launched:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import deepspeed

    if not torch.cuda.is_available():
        # Use gloo's collectives; DeepSpeed's shared-memory ones take half a minute to compile. On a GPU to look at this
        # would probe all of DeepSpeed's operators, which warn of a CUDA toolkit that is not needed.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo", auto_mpi_discovery=False, verbose=False)


def gather_weights(student: PreTrainedModel, added_only: bool) -> dict[str, torch.Tensor | None]:
    """Gather all weights by name, or those that SwiftKV adds, on rank 0; all ranks have to call this (ZeRO-3)."""
    tensors = {}
    kept = student.swiftkv_parameters() if added_only else student.state_dict(keep_vars=True)
    for name, tensor in kept.items():
        if hasattr(tensor, "ds_id"):
            from deepspeed.runtime.zero import GatheredParameters

            with GatheredParameters([tensor]):
                tensors[name] = tensor.detach().cpu().clone() if rank() == 0 else None
        else:
            tensors[name] = tensor.detach()
    if student.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: on a CPU the page faults cost more than the work."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD, its maximum
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
