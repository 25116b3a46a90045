"""A prompt whose caches come back from a KV connector is answered as Hugging Face does."""

import pytest

pytestmark = pytest.mark.thorough

BLOCK = 32
ENGINE = {"block_size": BLOCK, "max_num_batched_tokens": 2048}


def test_restored_prompts_are_answered_as_computed_ones(engines, checkpoint, compare, eight, tmp_path):
    folder, run = checkpoint("llama", 4, 4), {"prompts": eight}
    example = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    cases = [
        {"model": folder, "engine": ENGINE | {"kv_transfer_config": example | {"kv_role": role}}, "runs": [run]}
        for role in ("kv_producer", "kv_consumer")
    ]
    saved, loaded = (answer["runs"][0] for answer in engines(cases))
    compare(folder, eight, saved)
    compare(folder, eight, loaded)
    assert not any(saved["cached"])
    assert loaded["cached"] == [(len(prompt) - 1) // BLOCK * BLOCK for prompt in eight]
