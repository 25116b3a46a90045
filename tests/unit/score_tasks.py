"""Tasks of the configuration with the local scale's packaged questions, four of each."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAPER, LOCAL = (
    yaml.safe_load((ROOT / file).read_text())["tasks"] for file in ("config.yaml", "profiles/local/override.yaml")
)


def entry(name: str, **changes: Any) -> dict[str, Any]:
    return PAPER[name] | LOCAL.get(name, {}) | {"limit": 4, "batch_size": 4} | changes


def entries(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name.replace("_", "-"): entry(name.replace("_", "-"), **more) for name, more in changes.items()}


SHORT = {"max_gen_toks": 3}
TASKS = entries(
    arc_challenge=SHORT,
    winogrande={},
    hellaswag={"shots": 2},
    mmlu=SHORT | {"shots": 1},
    mmlu_cot=SHORT,
    gsm8k=SHORT | {"shots": 1},
)
MMLU = TASKS["mmlu"]["source"]
COMPLETIONS = entries(
    arc_challenge_completion={"source": TASKS["arc-challenge"]["source"]},
    mmlu_completion={"source": MMLU},
    mmlu_cot_completion={"source": MMLU | {"splits": {"validation": MMLU["splits"]["dev"]}}},
    gsm8k_completion={"source": TASKS["gsm8k"]["source"]},
)
PANEL = entries(
    arc_easy={}, hellaswag_completion={}, lambada={}, mmlu_continuation={}, gsm8k_bits={}, mbpp_bits={},
    arc_easy_bits={}, arc_challenge_bits={}, hellaswag_bits={}, mmlu_bits={}, humaneval_bits={},
)  # fmt: skip
TRUTHFULQA = entry("truthfulqa")
# Questions of the published splits; ARC without those that have not four answers.
TOTALS = {
    "arc-challenge": 295,
    "winogrande": 1267,
    "hellaswag": 10042,
    "mmlu": 14042,
    "mmlu-cot": 14042,
    "gsm8k": 1319,
}
