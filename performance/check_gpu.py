"""Check within minutes that one GPU trains and serves SwiftKV models as this project says, before days are spent on it.

    python performance/check_gpu.py --only 1,3 --minutes 10

Nothing is downloaded: weights are random, of shapes from 1B to 8B. Each check (`gpu_checks.py`) runs in a process of its
own, prints a line and writes a JSON record; one that fails costs the others nothing. `--sizes tiny` runs the same code
with tiny shapes on a processor, `--sizes processor --only 2` measures speed there. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_checks import CHECKS, PATIENCE, Check
from gpu_models import SIZES

from pipeline.measure.point import engine_environment
from pipeline.measure.process import running
from pipeline.records import provenance
from swiftkv.errors import UserError, command_line
from swiftkv.io import read_json, write_json

PROGRAM = Path(__file__).with_name("gpu_checks.py")


def run_check(check: Check, folder: Path, seconds: float, *, sizes: str, eager: bool = False) -> dict[str, Any]:
    """Run one check in a process of its own for at most `seconds`; return its record."""
    begin, answer = time.monotonic(), folder / f"{check.number}.answer.json"
    answer.unlink(missing_ok=True)
    log = folder / f"{check.number}.log"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        command = [sys.executable, str(PROGRAM), str(check.number), str(answer), scratch, sizes, *["--eager"] * eager]
        with running(command, log, engine_environment(int(sizes == "gpu"), threads=1), check.name) as program:
            while program.process.poll() is None and time.monotonic() - begin < seconds:
                time.sleep(0.1)
            ended = program.process.poll()
        for pattern in ("vllm*.log", "trained*"):
            for file in Path(scratch).glob(pattern):
                shutil.copy(file, folder / f"{check.number}.{file.name}")
    if ended is None:
        time.sleep(11)  # the guard of its engines gives them 10 seconds
    record: dict[str, Any] = {"check": check.number, "name": check.name, "sizes": sizes, "eager": eager}
    if answer.exists():
        record |= read_json(answer)
        answer.unlink()
    elif ended is None:
        record |= {"status": "stopped", "summary": f"not finished after {seconds:.0f} s; it printed {log}"}
    else:
        last = next((line for line in reversed(program.text.splitlines()) if line.strip()), "nothing")
        record |= {"status": "error", "summary": f"{last.strip()} ({log})"}
    record |= {"seconds": round(time.monotonic() - begin, 1), "provenance": provenance(time.monotonic() - begin)}
    write_json(folder / f"{check.number}.json", record)
    return record


def without_graphs(
    check: Check, folder: Path, deadline: float, failed: dict[str, Any], *, sizes: str
) -> dict[str, Any]:
    """Run a check eagerly after it `failed` to compile or capture; its record says so."""
    record = run_check(check, folder, deadline - time.monotonic(), sizes=sizes, eager=True)
    record |= {"summary": f"eager, as graphs failed ({failed['summary']}): {record['summary']}", "with_graphs": failed}
    write_json(folder / f"{check.number}.json", record)
    return record


def selected(words: str | None) -> list[Check]:
    """Return the checks of a list such as "1,3"; None means the usual ones.

    Raises:
        UserError: there is no such check.
    """
    usual = [str(check.number) for check in CHECKS.values() if check.usual]
    numbers = [word.strip() for word in words.split(",")] if words else usual
    for word in numbers:
        if not word.isdigit() or int(word) not in CHECKS:
            raise UserError(f"there is no check {word!r}, only {', '.join(map(str, CHECKS))}")
    return [CHECKS[int(word)] for word in numbers]


@command_line
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="numbers of checks, such as 1,3")
    parser.add_argument("--minutes", type=float, default=15, help="time for all; those that do not begin are named")
    parser.add_argument("--output", type=Path, default=Path("results/check-gpu"), help="folder of the records")
    parser.add_argument("--eager", action="store_true", help="neither compile nor capture CUDA graphs")
    parser.add_argument("--sizes", choices=SIZES, default="gpu", help="shapes, and the machine they are for")
    options = parser.parse_args(arguments)
    checks = selected(options.only)
    if options.sizes == "gpu":
        import torch

        if not torch.cuda.is_available():
            raise UserError("torch finds no GPU; --sizes tiny runs the same checks with tiny shapes on the processor")
    options.output.mkdir(parents=True, exist_ok=True)
    deadline, records = time.monotonic() + 60 * options.minutes, []
    for check in checks:
        left = deadline - time.monotonic()
        if left < check.seconds:
            print(f"[{check.number}] not run   {check.name}: takes {check.seconds} s, {left:.0f} are left", flush=True)
            continue
        limit = min(left, PATIENCE * check.seconds) if options.sizes == "gpu" else left
        record = run_check(check, options.output, limit, sizes=options.sizes, eager=options.eager)
        if record["status"] == "error" and check.graphs and not options.eager:
            record = without_graphs(check, options.output, deadline, record, sizes=options.sizes)
        records.append(record)
        status, seconds = record["status"], record["seconds"]
        print(f"[{check.number}] {status:8}  {check.name}: {record['summary']}  ({seconds:.0f} s)", flush=True)
    good = [record for record in records if record["status"] == "pass"]
    print(f"{len(good)} of {len(checks)} checks passed; records in {options.output}")
    if len(good) < len(checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
