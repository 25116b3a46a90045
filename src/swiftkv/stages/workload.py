"""Writes the requests of a workload."""

from __future__ import annotations

from swiftkv.pricing.work import Download, Work, download
from swiftkv.stages.stage import Stage

BYTES = 10**7  # of the requests of a trace of an hour


def downloads(work: Work) -> list[Download]:
    """The trace; nothing where a stand-in is drawn from its statistics."""
    workload = work.config.workloads[work["workload"]]
    file = getattr(workload.source, "file", None)
    return [] if workload.stand_in else download("data set", workload.source, [file] if file else None, BYTES)


STAGE = Stage(
    name="workload",
    output="workloads/{workload}",
    run="swiftkv.data.workload:write_workload",
    online=True,
    downloads=downloads,
    written=lambda work: {"data": BYTES},
)
