"""How much quality each l leaves before any training: what choosing l for a model rests on.

For every l the model is rewired with copied and with fitted start values (SingleInputKV, no groups) and compared to the
teacher on held-out chats, as `swiftkv.score.fidelity` does.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from swiftkv.data.read import draw_documents
from swiftkv.errors import UserError
from swiftkv.models import load_tokenizer, rewire, spread
from swiftkv.records import measurement, write_json
from swiftkv.score.fidelity import compare, hidden_states, load_teacher, summarize
from swiftkv.sources import read_source
from swiftkv.spec import SwiftKVSpec
from swiftkv.start.fit import fitted_values
from swiftkv.start.moments import Moments, known_layers


def measure_starts(
    model_source: Path,
    moments: Path,
    ridge: float,
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
        moments: of this model, for every l of interest.
        ridge: penalty of the fits.
        heldout: held-out chats, one a line.
        documents: how many of them are drawn.
        max_length: tokens of a chat that count.
        seed: of the draw of chats.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged, or the moments allow no fit.
    """
    started = time.monotonic()
    source = read_source(model_source)
    tokenizer = load_tokenizer(source["path"])
    drawn, data = draw_documents(tokenizer, source["config"], heldout, documents, max_length, seed)
    layers = known_layers(moments)
    teacher = load_teacher(Path(source["path"]))
    texts = [text for text in drawn if len(text) > 1]
    if not texts:
        raise UserError(f"no chat of {heldout} has two tokens; make it again")
    expected = [hidden_states(teacher, text, "auto") for text in texts]
    head, counts = teacher.get_output_embeddings(), [len(text) - 1 for text in texts]
    depth, found = teacher.config.num_hidden_layers, []
    for number, layer in enumerate(layers, 1):
        spec = SwiftKVSpec(depth, layer)
        fitted = fitted_values(teacher, spec, Moments.read(moments, layer), ridge)
        close = {}
        for name, values in (("copied", None), ("fitted", fitted)):
            student = spread(rewire(teacher, spec, values).eval(), teacher)
            own = student.get_output_embeddings()
            rows = [
                compare(reference, [(hidden_states(student, text, "auto"), own)], head, text)[0]
                for reference, text in zip(expected, texts, strict=True)
            ]
            close[name] = summarize(rows, counts)
        found.append({"num_key_value_layers": layer, "prefill_reduction": spec.prefill_reduction, **close})
        print(f"l = {layer} ({number} of {len(layers)}): KL {close['fitted']['kl']['value']:.4f}", flush=True)
    record = measurement(
        "starts",
        model=source,
        variant="baseline",
        settings={"documents": documents, "max_length": max_length, "seed": seed, "ridge": ridge},
        result={
            "layers": found,
            "num_hidden_layers": depth,
            "fit_tokens": Moments.read(moments, layers[0]).tokens,
            "tokens": sum(counts),
            "documents": len(counts),
        },
        seconds=time.monotonic() - started,
        data=data,
    )
    write_json(output, record)
    return record
