"""Figure 2: similarity of each layer's input to the later layers' inputs, and the time of a forward pass."""

from pathlib import Path

from swiftkv.artifacts.figures import write_figure
from swiftkv.artifacts.inputs import read_similarities
from swiftkv.artifacts.serving import parser, serving_of
from swiftkv.artifacts.serving_figures import figure2
from swiftkv.errors import command_line


@command_line
def main() -> None:
    command = parser(__doc__, ("pdf", "png", "csv"))
    command.add_argument("--similarity", type=Path, nargs="+", required=True, help="similarity records, one a model")
    arguments = command.parse_args()
    figure, data = figure2(read_similarities(arguments.similarity), serving_of(arguments, "forward_time"))
    write_figure(figure, data, arguments.output_pdf, arguments.output_png, arguments.output_csv)


if __name__ == "__main__":
    main()
