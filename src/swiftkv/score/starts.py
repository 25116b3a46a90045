"""How much quality each l leaves before any training: what choosing l for a model rests on.

For every l the model is rewired with copied and with fitted start values (SingleInputKV, no groups) and compared to the
teacher on held-out chats, as `swiftkv.score.fidelity` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swiftkv.device import device_map
from swiftkv.models import load_base, rewire, spread
from swiftkv.score.chats import ChatMeasurement
from swiftkv.score.fidelity import compare, hidden_states, summarize
from swiftkv.spec import SwiftKVSpec
from swiftkv.start.fit import fitted_values
from swiftkv.start.moments import Moments, known_layers


def measure_starts(
    model_source: Path,
    moments: Path,
    heldout: Path,
    documents: int,
    max_length: int,
    seed: int,
    output: Path,
) -> dict[str, Any]:
    """Compare the starts for every l to the teacher and write the measurement "starts".

    The result has `layers`: for each l of the moments, in order, num_key_value_layers, prefill_reduction, and under
    `copied` and `fitted` kl, top1_agreement and perplexity with value, stderr and n; and tokens and documents.

    Args:
        model_source: the model's source.json.
        moments: this model's moments, for every l of interest.
        heldout: held-out chats, one a line.
        documents: how many of them are drawn.
        max_length: tokens of a chat that count.
        seed: decides which chats are drawn.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged.
    """
    measured = ChatMeasurement(model_source, heldout, documents, max_length, seed)
    layers = known_layers(moments)
    teacher = load_base(measured.model["path"], device_map=device_map())
    expected = [hidden_states(teacher, document, "auto") for document in measured.documents]
    head, counts = teacher.get_output_embeddings(), [len(document) - 1 for document in measured.documents]
    depth, layers_measured = teacher.config.num_hidden_layers, []
    for number, layer in enumerate(layers, 1):
        spec = SwiftKVSpec(depth, layer)
        fitted = fitted_values(teacher, spec, Moments.read(moments, layer))
        fidelity = {}
        for name, values in (("copied", None), ("fitted", fitted)):
            student = spread(rewire(teacher, spec, values).eval(), teacher)
            student_head = student.get_output_embeddings()
            rows = [
                compare(reference, [(hidden_states(student, document, "auto"), student_head)], head, document)[0]
                for reference, document in zip(expected, measured.documents, strict=True)
            ]
            fidelity[name] = summarize(rows, counts)
        layers_measured.append({"num_key_value_layers": layer, "prefill_reduction": spec.prefill_reduction, **fidelity})
        print(f"l = {layer} ({number} of {len(layers)}): KL {fidelity['fitted']['kl']['value']:.4f}", flush=True)
    result = {
        "layers": layers_measured,
        "num_hidden_layers": depth,
        "fit_tokens": Moments.read(moments, layers[0]).tokens,
        "tokens": sum(counts),
        "documents": len(counts),
    }
    return measured.write("starts", result, output)
