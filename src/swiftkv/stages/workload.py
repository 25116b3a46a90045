"""Writes the requests of a workload."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="workload",
    output="workloads/{workload}",
    run="swiftkv.data.workload:write_workload",
    online=True,
)
