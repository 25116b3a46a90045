"""Snakemake's `--logger swiftkv`, which prints the lines of `pipeline.run.progress`.

The run hands its `RunProgress` over in a record (`onstart` in the Snakefile). Until then, and in a dry run, Snakemake's own
messages are printed, without its preparations.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text
from snakemake.logging import ColorizingTextHandler
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

if TYPE_CHECKING:
    from pipeline.run.progress import RunProgress

# Messages of every run: preparations, and what the summary repeats.
UNSAID = re.compile(
    r"Config file .* is extended|Assuming unrestricted|Building DAG|Using shell|Provided |Rules claiming|Singularity containers|"
    r"Conda environments|Group jobs|Select jobs|Execute |Job stats|Shell command|Complete log|Elapsed time|Shutting down|"
    r"Removing output files of failed|Exiting because a job|None$|$"
)
# Snakemake's second message on a failed step.
REPEATED = re.compile(r"CalledProcessError|At least one job did not complete")
# Events that the lines of steps replace.
OF_STEPS = (
    LogEvent.JOB_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
    LogEvent.SHELLCMD,
    LogEvent.PROGRESS,
    LogEvent.RUN_INFO,
    LogEvent.RESOURCES_INFO,
    LogEvent.WORKFLOW_STARTED,
)


class LogHandler(LogHandlerBase, ColorizingTextHandler):
    """A line for each long step that begins and each step that ends; on a terminal, a last line with the running steps."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        settings = self.common_settings
        ColorizingTextHandler.__init__(self, settings.nocolor, sys.stdout if settings.stdout else sys.stderr)
        self.console = Console(stderr=not settings.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.progress: RunProgress | None = None
        self.live: Live | None = None
        self.ended = False  # by its user, so steps that end now have not failed

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line of a record, if it has one."""
        if self.common_settings.dryrun:
            ColorizingTextHandler.emit(self, record)
            return
        try:
            self._tell(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Print the summary; Snakemake closes more than once."""
        progress, self.progress = self.progress, None
        if self.live is not None:
            self.live.stop()
        if progress is not None:
            self.console.print("", *progress.summary(), sep="\n")
        super().close()

    def _tell(self, record: logging.LogRecord) -> None:
        event, progress = getattr(record, "event", None), self.progress
        if begun := getattr(record, "progress", None):
            self.progress = begun
            self.console.print(record.getMessage())
            if self.console.is_terminal:

                def now() -> Text:
                    return Text(begun.running(), no_wrap=True, overflow="ellipsis")

                self.live = Live(get_renderable=now, console=self.console, refresh_per_second=1, transient=True)
                self.live.start()
        elif event == LogEvent.JOB_INFO and progress:
            if line := progress.start(record.jobid):
                self.console.print(line)
        elif event == LogEvent.JOB_FINISHED and progress:
            if line := progress.finish(record.job_id):
                self.console.print(line)
        elif event == LogEvent.JOB_ERROR and progress:
            if not self.ended:
                self.console.print(*progress.fail(record.jobid, record.log), sep="\n")
        elif event not in OF_STEPS:
            said = self.format(record) or ""
            self.ended |= said.startswith("Terminating processes on user request")
            repeated = event == LogEvent.ERROR and progress and REPEATED.search(said)
            if not (repeated or UNSAID.match(said)):
                self.console.print(said)
