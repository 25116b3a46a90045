"""Figure 3: combined throughput and normalized TFLOP/s by input length."""

from swiftkv.artifacts.figures import write_figure
from swiftkv.artifacts.serving import CLAIM_KEYS, parser, serving_of
from swiftkv.artifacts.serving_figures import figure3
from swiftkv.errors import command_line


@command_line
def main() -> None:
    arguments = parser(__doc__, ("pdf", "png", "csv")).parse_args()
    serving = serving_of(arguments, "throughput", CLAIM_KEYS)
    figure, data = figure3(serving)
    write_figure(figure, data, arguments.output_pdf, arguments.output_png, arguments.output_csv)


if __name__ == "__main__":
    main()
