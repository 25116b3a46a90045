"""Measures the similarity of layer inputs."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="similarity",
    output="similarity/{model}.json",
    run="swiftkv.similarity:measure_similarity",
    gpus="score",
)
