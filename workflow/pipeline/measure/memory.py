"""The GPUs of a job and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

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
