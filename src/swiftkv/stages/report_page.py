"""Makes the report and the gallery of figures."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="report_page",
    output="report.html",
    run="swiftkv.artifacts.report:write_report",
    more=("gallery.md",),
    local=True,
    seconds=lambda work: work.host("artifact"),
)
