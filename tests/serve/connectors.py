"""Connectors of the tests: a layer-wise one, and a worker for vLLM's OffloadingConnector, whose own needs a GPU.

They are imported by the process of `generate.py`, whose folder is on its path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

SAVED = {}  # prompt: {layer: its blocks}; outlives an engine


@dataclass
class Work(KVConnectorMetadata):
    """One step's requests: (prompt without its last, unfinished block, its blocks so far, whether to load them)."""

    requests: list[tuple[tuple[int, ...], list[int], bool]] = field(default_factory=list)


class LayerwiseConnector(KVConnectorBase_V1):
    """Saves and loads a layer's cache only when that layer is announced, and only layers that vLLM gave a cache.

    Layers that share a cache are announced too, by vLLM; a connector that took those for layers of their own would
    also restore the cache, under another name, and hide an owner that is not announced. `deaf_to` in its settings, a
    part of layers' names, leaves such announcements out.
    """

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.block_size = vllm_config.cache_config.block_size
        deaf_to = self._kv_transfer_config.get_from_extra_config("deaf_to", "nothing")
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        self.layers = {name for name in names if deaf_to not in name}
        self.caches, self.prompts, self.blocks = {}, {}, {}
        self.to_load, self.loaded = set(), set()

    # In the scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        prompt = self.whole_blocks(request.prompt_token_ids)
        return (len(prompt) - num_computed_tokens if prompt in SAVED else 0), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            self.to_load.add(request.request_id)

    def build_connector_meta(self, scheduler_output):
        for new in scheduler_output.scheduled_new_reqs:
            self.prompts[new.req_id] = self.whole_blocks(new.prompt_token_ids)
            self.blocks[new.req_id] = list(new.block_ids[0])
        old = scheduler_output.scheduled_cached_reqs
        for name, blocks in zip(old.req_ids, old.new_block_ids, strict=True):
            self.blocks[name] += blocks[0] if blocks else []
        work = Work()
        for name in scheduler_output.num_scheduled_tokens:
            if (
                name in self.to_load or name not in self.loaded
            ):  # a prompt that comes in parts is saved in all its steps
                prompt = self.prompts[name]
                blocks = self.blocks[name][: len(prompt) // self.block_size]
                work.requests.append((prompt, blocks, name in self.to_load))
        self.loaded |= self.to_load
        self.to_load = set()
        return work

    def whole_blocks(self, prompt):
        return tuple(prompt[: (len(prompt) - 1) // self.block_size * self.block_size])

    # In the worker

    def register_kv_caches(self, kv_caches):
        self.caches = kv_caches

    def wait_for_layer_load(self, layer_name):
        for prompt, blocks, load in self._get_connector_metadata().requests:
            if load and layer_name in self.layers:
                self.caches[layer_name][blocks] = SAVED[prompt][layer_name]

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        for prompt, blocks, load in self._get_connector_metadata().requests:
            if not load and layer_name in self.layers:
                SAVED.setdefault(prompt, {})[layer_name] = kv_layer[blocks].clone()

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_save(self):
        pass


class CopyingSpec(CPUOffloadingSpec):
    """vLLM's offloading to processor memory, with a worker that copies at once."""

    def get_worker(self, kv_caches):
        return CopyingWorker(kv_caches, self.num_chunks)


class CopyingWorker(OffloadingWorker):
    """Copies whole blocks between the tensors that vLLM's connector registered and memory of its own."""

    def __init__(self, kv_caches, blocks):
        self.pairs = [  # by KV cache group: (cache, copy), each [blocks, bytes]
            [(cache, np.zeros((blocks, cache.shape[1]), np.int8)) for cache in caches]
            for caches in (
                [kv_caches.tensors[reference.tensor_idx].tensor.numpy() for reference in references]
                for references in kv_caches.group_data_refs
            )
        ]
        self.finished = []

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, dst_spec, src_spec, store=False)

    def copy(self, job_id, near, far, store):
        ends = np.cumsum(near.group_sizes)
        for pairs, start, end in zip(self.pairs, ends - near.group_sizes, ends, strict=True):
            for cache, copy in pairs:
                if store:
                    copy[far.block_ids[start:end]] = cache[near.block_ids[start:end]]
                else:
                    cache[near.block_ids[start:end]] = copy[far.block_ids[start:end]]
        self.finished.append(TransferResult(job_id=job_id, success=True))
        return True

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        pass
