"""A run as its terminal tells it: a line for each finished step, the time left in all, and at the end what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from pipeline.artifacts.text import some
from pipeline.config import Config
from pipeline.run.estimate import Work, estimates, speed_of
from pipeline.run.jobs import PlannedJob, Profile, ancestors, parents
from pipeline.run.plan import duration, wall_seconds
from swiftkv.cost import GIGA

PAGE = "report_page"  # the rule that ends a whole run
ARTIFACT = "artifact"  # the wildcard of rules that make one
UNFINISHED = ("training-state", "serving-state", "score-state")  # folders that only unfinished work goes on from
FIRST = ("claims", "panel", "contents", "demo")  # artifacts to look at first
OWN_SHARE = 0.1  # of the plan's time, before which a run's own pace says little; of a step, that a late one has left
FIRST_LINE, NEXT_LINE = 60, 300  # seconds after which a running step has a line, and between further ones
LONGEST = 160  # characters of what a step says of itself


class Progress:
    """The steps of a run.

    Args:
        jobs: those that it has to do, by Snakemake's numbers, which its events name.
        seconds: what each is estimated to take.
        profile: where it runs.
        results: the folder of all results.
        logs: the log files of each.
        clock: seconds.
    """

    def __init__(
        self,
        jobs: Mapping[int, PlannedJob],
        seconds: Iterable[float],
        profile: Profile,
        results: str,
        logs: Mapping[int, list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs, self.profile, self.results, self.clock = list(jobs.values()), profile, results, clock
        self.place = {number: place for place, number in enumerate(jobs)}
        self.logs = [logs.get(number, []) for number in jobs]
        self.seconds, self.graph = list(seconds), parents(self.jobs)
        self.began, self.starts, self.due = clock(), dict[int, float](), dict[int, float]()
        self.took: dict[int, float] = {}
        self.failures: dict[int, str] = {}

    @classmethod
    def of_run(
        cls,
        root: Path,
        profile: Profile,
        config: Config,
        jobs: Mapping[int, PlannedJob],
        finished: Iterable[PlannedJob],
        logs: Mapping[int, list[str]],
    ) -> Progress:
        """The progress of a run that begins, with the estimates of its plan.

        Args:
            root: folder of the project.
            profile, config, jobs, logs: of the run.
            finished: other jobs of the same configuration; how long they took tells how long their like takes.
        """
        made = {number: job for number, job in jobs.items() if job.outputs}
        speed = speed_of(profile, config, made.values())
        works = [Work(job, config, root, speed) for job in made.values()]
        others = [Work(job, config, root, speed) for job in finished if job.outputs]
        taken = estimates(works, others)
        return cls(made, [estimate.seconds for estimate in taken], profile, config.pathvars.results, logs)

    def beginning(self) -> str:
        """What the run has to do, and how long that takes."""
        return (
            f"{len(self.jobs)} steps, about {duration(self._wall((), {}))} (estimated); each says below what came of it"
        )

    def start(self, number: int) -> None:
        """A step begins."""
        if number in self.place:
            self.starts[self.place[number]] = self.clock()
            self.due[self.place[number]] = self.clock() + FIRST_LINE
            self.failures.pop(self.place[number], None)  # it is tried again

    def finish(self, number: int) -> str | None:
        """A step has ended well; its line, None for one that makes nothing."""
        if number not in self.place:
            return None
        place = self.place[number]
        self.took[place] = self.clock() - self.starts.pop(place, self.clock())
        job, said = self.jobs[place], self._last_line(place)
        if ARTIFACT in job.wildcards:
            text = f"ready: {_shown(job)}"
        else:
            text = f"{self._name(place)}, {duration(self.took[place])}" + (f": {said}" if said else "")
        return f"{self._head()}  {text}"

    def fail(self, number: int, logs: Iterable[str] = ()) -> list[str]:
        """A step has failed; its sentence, its log's place, and what becomes of the others."""
        place = self.place[number]
        self.starts.pop(place, None)
        self.logs[place] = list(logs) or self.logs[place]
        self.failures[place] = self._sentence(place)
        lost = self._lost() - set(self.failures)
        artifacts = [job.wildcards[ARTIFACT] for job in self._artifacts(lost)]
        without = f"{_count(len(lost), 'step')} that need{'s' * (len(lost) == 1)} it" if lost else "no other step"
        if artifacts:
            without += f", and so {some(artifacts)}"
        going = len(self.jobs) - len(self.took) - len(self.failures) - len(lost)
        return [
            f"{self._head()}  FAILED: {self._name(place)}: {self.failures[place]}",
            f"{'':9}its log: {', '.join(self.logs[place]) or 'none'}",
            f"{'':9}left out with it: {without}; "
            + (f"not touched by it: {_count(going, 'step')}" if going else "nothing else is left"),
        ]

    def running(self) -> str:
        """What runs now, and the time left in all."""
        now = self.clock()
        steps = [
            f"{self._name(place)} ({duration(now - since)}{self._said_so_far(place)})"
            for place, since in list(self.starts.items())
        ]
        return f"{self._head()}  now: {'; '.join(steps) or 'waiting'}"

    def long_running(self) -> list[str]:
        """Return a line for each step that has run for a minute, and again every five minutes, for output to a file."""
        lines, now = [], self.clock()
        for place, since in list(self.starts.items()):  # a copy: steps begin and end meanwhile
            if now >= self.due[place]:
                self.due[place] += NEXT_LINE
                step = f"{self._name(place)}, {duration(now - since)}{self._said_so_far(place)}"
                lines.append(f"{self._head()}  still running: {step}")
        return lines

    def left(self) -> float:
        """Return the seconds until all is done: the plan's, at the run's own pace once a tenth of it is done."""
        lost, spent = self._lost(), self.clock() - self.began
        whole = self._wall(lost, {})
        left = self._wall(
            lost | self.took.keys(), dict(self.starts)
        )  # a copy: the terminal asks while steps begin and end
        done = whole - left
        return left * spent / done if done > 0 and done >= OWN_SHARE * whole else left

    def summary(self) -> list[str]:
        """What was made and what was not, how long each stage took, where to look first, and how to free disk."""
        spent, total = self.clock() - self.began, len(self.jobs)
        made, wanted = self._artifacts(self.took), len(self._artifacts(self.graph))
        came = (
            f"{len(made)} of {wanted} tables and figures" if wanted else f"{len(self.took)} of {_count(total, 'step')}"
        )
        done = len(self.took) == total
        lines = [f"{'Done' if done else 'Not finished'} after {duration(spent)}: {came} made, in {self.results}"]
        lines += [f"  failed      {self._name(place)}: {why}" for place, why in self.failures.items()]
        if not done:
            lines.append(
                "  go on       the same command goes on from here" + (" once that is mended" if self.failures else "")
            )
        by_rule: dict[str, list[float]] = {}
        for place, seconds in self.took.items():
            by_rule.setdefault(self.jobs[place].rule, []).append(seconds)
        order = sorted(by_rule, key=lambda rule: -sum(by_rule[rule]))
        stages = [f"{rule} {duration(sum(by_rule[rule]))} ({len(by_rule[rule])})" for rule in order]
        lines += [f"  time        {'; '.join(stages)}"] if stages else []
        named = {job.wildcards[ARTIFACT]: job for job in made}
        first = [*map(_shown, [named[name] for name in FIRST if name in named] or made[-1:])]
        if first := [self.jobs[place].outputs[0] for place in self.took if self.jobs[place].rule == PAGE] + first:
            lines.append(f"  look first  {', '.join(first)}")
        if done and (free := {name: size for name in UNFINISHED if (size := _bytes(Path(self.results, name)))}):
            folders, size = " ".join(f"{self.results}/{name}" for name in free), _bytes(Path(self.results))
            lines.append(
                f"  disk        {size / GIGA:.1f} GB; {sum(free.values()) / GIGA:.1f} GB of it only let work "
                f"that was ended go on: rm -r {folders}"
            )
        return lines

    def _wall(self, gone: Collection[int], starts: Mapping[int, float]) -> float:
        """The plan's seconds without the steps that are gone; of what runs, less those since its start."""
        now = self.clock()
        seconds = {place: self.seconds[place] for place in self.graph if place not in gone}
        for place in starts.keys() & seconds.keys():
            seconds[place] = max(seconds[place] - (now - starts[place]), OWN_SHARE * seconds[place])
        graph = {place: [parent for parent in self.graph[place] if parent in seconds] for place in seconds}
        return wall_seconds(self.jobs, seconds, graph, self.profile)

    def _artifacts(self, places: Iterable[int]) -> list[PlannedJob]:
        """The steps among some that make a table or figure, in the order in which they were planned."""
        return [self.jobs[place] for place in sorted(places) if ARTIFACT in self.jobs[place].wildcards]

    def _lost(self) -> set[int]:
        """The failed steps and all that need one of them."""
        if not self.failures:
            return set()
        return {place for place in self.graph if ancestors(place, self.graph) & self.failures.keys()}

    def _head(self) -> str:
        width = len(str(len(self.jobs)))
        left = self.left()
        clock = f"{duration(left)} left" if len(self.took) < len(self.jobs) else "done"
        return f"[{len(self.took):{width}}/{len(self.jobs)}] {clock:>11}"

    def _name(self, place: int) -> str:
        job = self.jobs[place]
        named = [value for name, value in job.wildcards.items() if name != "point"]
        return " ".join([job.rule.replace("_", " "), *([some(job.points)] if job.points else []), *map(str, named)])

    def _lines(self, place: int) -> list[str]:
        """What a step has printed, without empty lines."""
        if not self.logs[place] or not Path(self.logs[place][0]).is_file():
            return []
        text = Path(self.logs[place][0]).read_text(encoding="utf-8", errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def _last_line(self, place: int) -> str:
        said = (self._lines(place) or [""])[-1]
        return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."

    def _said_so_far(self, place: int) -> str:
        said = self._last_line(place)
        return f": {said}" if said else ""

    def _sentence(self, place: int) -> str:
        """Why a step failed: its program's own sentence, else the last that it said."""
        lines = self._lines(place)
        own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (own or lines or ["it said nothing; it may have been killed"])[-1]


def _shown(job: PlannedJob) -> str:
    """The file of a table or figure that is easiest to look at."""
    return next((path for path in job.outputs if path.endswith((".md", ".png"))), job.outputs[0])


def _bytes(folder: Path) -> int:
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if file.exists())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
