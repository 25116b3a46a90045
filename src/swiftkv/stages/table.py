"""Makes a table."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="table",
    output="tables/{artifact}.csv",
    run="swiftkv.artifacts.make:make_artifact",
    more=("tables/{artifact}.tex", "tables/{artifact}.md", "tables/{artifact}.html", "tables/{artifact}.json"),
    local=True,
    seconds=lambda work: work.host("artifact"),
)
