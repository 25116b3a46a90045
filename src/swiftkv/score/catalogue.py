"""The lm-eval tasks in use: where their files lie and what they ask, without importing lm-eval."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_OWN = str(Path(__file__).parent / "bits_per_byte")


class Known(NamedTuple):
    """What lm-eval's files say of a task.

    Attributes:
        folder: below lm-eval's tasks, or an absolute path; reading it alone saves 10 s a start.
        hub: the data set it asks unless the config names another.
        split: the split whose questions are scored.
        nltk: a package of NLTK's data that its metric needs.
    """

    folder: str
    hub: str
    split: str
    nltk: str | None = None


KNOWN = {
    # Table B.1
    "arc_challenge_llama": Known("llama3/instruct/arc_challenge", "allenai/ai2_arc", "test"),
    "mmlu_llama": Known("llama3/instruct/mmlu", "hails/mmlu_no_train", "test"),
    "mmlu_cot_llama": Known("llama3/instruct/mmlu_cot", "hails/mmlu_no_train", "test"),
    "gsm8k_llama": Known("llama3/instruct/gsm8k", "openai/gsm8k", "test"),
    "winogrande": Known("winogrande", "allenai/winogrande", "validation"),
    "hellaswag": Known("hellaswag", "Rowan/hellaswag", "validation"),
    "truthfulqa_mc2": Known("truthfulqa", "truthfulqa/truthful_qa", "validation"),
    # For models without Llama-3.1's prompt format
    "arc_challenge": Known("arc", "allenai/ai2_arc", "test"),
    "mmlu": Known("mmlu/default", "cais/mmlu", "test"),
    "mmlu_flan_cot_zeroshot": Known("mmlu/flan_cot_zeroshot", "cais/mmlu", "validation"),
    "gsm8k_cot": Known("gsm8k", "openai/gsm8k", "test"),
    # For small models
    "arc_easy": Known("arc", "allenai/ai2_arc", "test"),
    "lambada_openai": Known("lambada", "EleutherAI/lambada_openai", "test"),
    "mmlu_continuation": Known("mmlu/continuation", "cais/mmlu", "test"),
    "ifeval": Known("ifeval", "google/IFEval", "train", "punkt_tab"),
    "gsm8k_bits_per_byte": Known(_OWN, "openai/gsm8k", "test"),
    "mbpp_bits_per_byte": Known(_OWN, "google-research-datasets/mbpp", "test"),
}
