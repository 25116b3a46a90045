"""The stages of the pipeline: every module of this folder is one, by the name of its rule; importing them imports no torch."""

import importlib
import pkgutil

from swiftkv.stages.stage import Stage

MODULES = [name for _, name, _ in pkgutil.iter_modules(__path__) if name not in ("__main__", "command", "stage")]
STAGES: dict[str, Stage] = {name: importlib.import_module(f"{__name__}.{name}").STAGE for name in MODULES}


def stage_of(rule: str) -> Stage:
    """The stage of a rule; those that score a set of tasks, `score_<set>`, are `score`.

    Raises:
        KeyError: no stage is called so.
    """
    return STAGES[rule] if rule in STAGES or not rule.startswith("score_") else STAGES["score"]
