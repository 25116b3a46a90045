"""Drafters that guess three times that the token just chosen comes again; the module also stands for `arctic_inference`."""

from types import SimpleNamespace
from typing import Any

import numpy as np


class RepeatLast:
    """What vLLM asks of a `custom_class`."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, *arguments: Any) -> None:
        pass

    def propose(self, sampled: list[list[int]], *arguments: Any, **settings: Any) -> list[list[int]]:
        return [3 * tokens[-1:] for tokens in sampled]


class SuffixDecodingCache:
    """What vLLM's suffix decoding asks of arctic-inference, which processors would have to compile."""

    def __init__(self, max_tree_depth: int, max_cached_requests: int) -> None:
        self.active_requests: set[str] = set()
        self.cached_requests: set[str] = set()

    def start_request(self, request: str, prompt: np.ndarray) -> None:
        self.active_requests.add(request)

    def stop_request(self, request: str) -> None:
        self.active_requests.remove(request)

    def add_active_response(self, request: str, tokens: list[int]) -> None:
        assert request in self.active_requests

    def speculate(self, request: str, pattern: np.ndarray, **limits: Any) -> SimpleNamespace:
        return SimpleNamespace(token_ids=[int(pattern[-1])] * 3)
