"""Figure A.1: similarity of layer inputs for smaller and larger models, with the matrix of all pairs of layers."""

import argparse
from pathlib import Path

from swiftkv.artifacts.figures import figureA1, write_figure
from swiftkv.artifacts.inputs import read_similarities
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--similarity", type=Path, nargs="+", required=True, help="similarity records, one a model")
    parser.add_argument("--large", type=Path, nargs="*", default=[], help="records of the larger models, drawn apart")
    parser.add_argument("--output-pdf", type=Path, required=True)
    parser.add_argument("--output-png", type=Path, required=True)
    parser.add_argument("--output-csv", type=Path, required=True)
    arguments = parser.parse_args()
    figure, data = figureA1(read_similarities(arguments.similarity), read_similarities(arguments.large))
    write_figure(figure, data, arguments.output_pdf, arguments.output_png, arguments.output_csv)


if __name__ == "__main__":
    main()
