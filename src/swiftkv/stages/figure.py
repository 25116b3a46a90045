"""Makes a figure."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="figure",
    output="figures/{artifact}.csv",
    run="swiftkv.artifacts.make:make_artifact",
    more=("figures/{artifact}.pdf", "figures/{artifact}.png", "figures/{artifact}.json"),
    local=True,
    seconds=lambda work: work.host("artifact"),
)
