"""Progress of a run as lines for the terminal: finished steps, the time left, failures, and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import psutil

from pipeline.measure.turns import MAX_BUSY_CORES
from pipeline.run.jobs import PlannedJob, Profile, parents
from pipeline.run.plan import count, duration, wall_seconds
from pipeline.run.retries import own_error
from pipeline.text import some
from swiftkv.io import text_of

PAGE = "report_page"  # the rule that ends a whole run
ARTIFACT = "artifact"  # the wildcard of rules that make one
FIRST = ("claims", "panel", "contents")  # artifacts to look at first
LATE = 0.1  # share of a step's estimate that it has left once it takes longer than that
LONG = 60  # estimated seconds from which on a step has a line when it begins
LONGEST = 160  # characters of a step's last line of output


class RunProgress:
    """The steps of a run, by Snakemake's numbers of jobs, which its events name; jobs without output are no steps.

    Args:
        jobs: the steps of the run.
        seconds: the estimate of each.
        logs: the log files of each.
        profile: where it runs.
        results: the folder of all results.
        clock: returns seconds.
    """

    def __init__(
        self,
        jobs: Mapping[int, PlannedJob],
        seconds: Mapping[int, float],
        logs: Mapping[int, list[str]],
        profile: Profile,
        results: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs, self.seconds, self.logs = jobs, seconds, dict(logs)
        self.profile, self.results, self.clock, self.graph = profile, results, clock, parents(jobs)
        self.began, self.starts = clock(), dict[int, float]()
        self.took: dict[int, float] = {}
        self.failures: dict[int, str] = {}

    def beginning(self) -> str:
        """Return the first line: how many steps there are, how long they take, and whether speeds will be disturbed."""
        line = f"{count(len(self.jobs), 'step')}, about {duration(self._wall((), {}))} (estimated)"
        if self.profile.cores and any(job.rule == "measure" and not job.gpus for job in self.jobs.values()):
            busy = psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1)
            if busy > MAX_BUSY_CORES:
                line += f"; other programs keep {busy:.1f} cores busy: end them, or serving is measured beside them"
        return line

    def start(self, number: int) -> str | None:
        """Note that a step begins; return a line with its log if it is long, else None."""
        if number not in self.jobs:
            return None
        self.starts[number] = self.clock()
        self.failures.pop(number, None)  # it is tried again
        if self.seconds[number] < LONG:
            return None
        about = f"{self._name(number)}, about {duration(self.seconds[number])}"
        return f"{self._head()}  begins: {about}; its log: {self._logs(number)}"

    def finish(self, number: int) -> str | None:
        """Note that a step has ended well; return its line, None for a job that is no step."""
        if number not in self.jobs:
            return None
        self.took[number] = self.clock() - self.starts.pop(number, self.clock())
        job = self.jobs[number]
        text = f"ready: {_shown(job)}" if ARTIFACT in job.wildcards else self._step(number, self.took[number])
        return f"{self._head()}  {text}"

    def fail(self, number: int, logs: Iterable[str] = ()) -> list[str]:
        """Note that a step has failed; return lines with its error, its log, and the steps that are left out with it."""
        self.starts.pop(number, None)
        self.logs[number] = list(logs) or self.logs.get(number, [])
        self.failures[number] = self._error(number)
        lost = self._lost() - self.failures.keys()
        without = count(len(lost), "step")
        if artifacts := [job.wildcards[ARTIFACT] for job in self._artifacts(lost)]:
            without += f", and so {some(artifacts)}"
        others = len(self.jobs) - len(self.took) - len(self.failures) - len(lost)
        return [
            f"{self._head()}  FAILED: {self._name(number)}: {self.failures[number]}",
            f"{'':9}its log: {self._logs(number)}",
            f"{'':9}left out with it: {without}; still to do: {count(others, 'step')}",
        ]

    def running(self) -> str:
        """Return a line with the running steps and the time left."""
        now = self.clock()
        steps = [self._step(number, now - since) for number, since in list(self.starts.items())]
        return f"{self._head()}  now: {'; '.join(steps) or 'waiting'}"

    def left(self) -> float:
        """Return the plan's seconds until all is done."""
        return self._wall(self._lost() | self.took.keys(), dict(self.starts))  # a copy: steps begin and end meanwhile

    def summary(self) -> list[str]:
        """Return lines with what was made, failures, times by rule, and files to look at first."""
        made, wanted = self._artifacts(self.took), self._artifacts(self.jobs)
        done = len(self.took) == len(self.jobs)
        lines = [
            f"{'Done' if done else 'Not finished'} after {duration(self.clock() - self.began)}: {len(self.took)} of "
            f"{count(len(self.jobs), 'step')}, {len(made)} of {len(wanted)} tables and figures made, in {self.results}"
        ]
        lines += [f"  failed      {self._name(number)}: {why}" for number, why in self.failures.items()]
        lines += [] if done else ["  go on       the same command goes on from here"]
        spent = Counter[str]()
        for number, took in self.took.items():
            spent[self.jobs[number].rule] += took
        if spent:
            lines.append(f"  time        {'; '.join(f'{rule} {duration(took)}' for rule, took in spent.most_common())}")
        pages = [self.jobs[number] for number in self.took if self.jobs[number].rule == PAGE]
        if first := pages + ([job for job in made if job.wildcards[ARTIFACT] in FIRST] or made * (len(made) == 1)):
            lines.append(f"  look first  {', '.join(map(_shown, first))}")
        return lines

    def _wall(self, gone: Collection[int], starts: Mapping[int, float]) -> float:
        """The plan's seconds without the steps that are gone; of running steps, without those since their start."""
        now = self.clock()
        seconds = {number: estimate for number, estimate in self.seconds.items() if number not in gone}
        for number in starts.keys() & seconds.keys():
            seconds[number] = max(seconds[number] - (now - starts[number]), LATE * seconds[number])
        graph = {number: [parent for parent in self.graph[number] if parent in seconds] for number in seconds}
        return wall_seconds(self.jobs, seconds, graph, self.profile)

    def _artifacts(self, numbers: Collection[int]) -> list[PlannedJob]:
        """The steps among some that make a table or figure, in the order in which they were planned."""
        return [job for number, job in self.jobs.items() if number in numbers and ARTIFACT in job.wildcards]

    def _lost(self) -> set[int]:
        """The failed steps and all that need one of them."""
        lost = set(self.failures)
        while more := {number for number in self.graph.keys() - lost if lost & set(self.graph[number])}:
            lost |= more
        return lost

    def _head(self) -> str:
        clock = f"{duration(self.left())} left" if len(self.took) < len(self.jobs) else "done"
        return f"[{len(self.took):{len(str(len(self.jobs)))}}/{len(self.jobs)}] {clock:>11}"

    def _name(self, number: int) -> str:
        job = self.jobs[number]
        named = [value for name, value in job.wildcards.items() if name != "point"]
        return " ".join([job.rule.replace("_", " "), *([some(job.points)] if job.points else []), *map(str, named)])

    def _logs(self, number: int) -> str:
        return ", ".join(self.logs.get(number) or ["none"])

    def _step(self, number: int, seconds: float) -> str:
        """A step, its time and the last line of its output."""
        lines = self._lines(number)
        return f"{self._name(number)}, {duration(seconds)}" + (f": {lines[-1][:LONGEST]}" if lines else "")

    def _lines(self, number: int) -> list[str]:
        """The output of a step so far, without empty lines."""
        file = Path((self.logs.get(number) or ["nowhere"])[0])
        return [line.strip() for line in text_of(file).splitlines() if line.strip()]

    def _error(self, number: int) -> str:
        """Return why a step failed: its program's own sentence, else the last line of its output."""
        lines = self._lines(number)
        return own_error(lines) or (lines or ["it said nothing; it may have been killed"])[-1]


def _shown(job: PlannedJob) -> str:
    """The file of a step that is easiest to look at."""
    return next((path for path in job.outputs if path.endswith((".md", ".png")) and job.rule != PAGE), job.outputs[0])
