"""The memory of GPUs, and whether others hold some of it; GiB are 2^30 bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.measure.engine import EngineFailure
from swiftkv.cost import GIBI
from swiftkv.errors import UserError


class Device(NamedTuple):
    """A GPU and the bytes of its memory."""

    name: str
    free: int
    total: int


def devices() -> list[Device]:
    """The GPUs; asked in another process, so that this one holds no memory there while vLLM runs."""
    question = (
        "import json; from torch.cuda import device_count, get_device_name, mem_get_info; "
        "print(json.dumps([[get_device_name(gpu), *mem_get_info(gpu)] for gpu in range(device_count())]))"
    )
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    found = [Device(*device) for device in json.loads(answer.stdout or "[]")]
    if not found:
        raise UserError("this point is served on GPUs, and torch finds none")
    return found


def refuse_neighbors(share: float, found: Sequence[Device]) -> None:
    """Tell a neighbor's memory from the model's, where vLLM has run out of it and has ended.

    Args:
        share: of each GPU's memory, what vLLM was given.
        found: the GPUs, on which this job now holds nothing.

    Raises:
        EngineFailure: one of them has less than that free, so others hold some of what vLLM needed.
    """
    for device in found:
        if device.free < share * device.total:
            raise EngineFailure(
                f"vLLM ran out of memory that others hold, which is no result: with vLLM gone, {device.free / GIBI:.1f} of the "
                f"{device.total / GIBI:.1f} GiB of a {device.name} are free, but vLLM was given {share:g} of them; end what else "
                "runs there (nvidia-smi lists it) and run again"
            )
