"""A worker for vLLM's OffloadingConnector, whose own needs a GPU; imported by the process of `generate.py`."""

from __future__ import annotations

import numpy as np
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


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
