"""The blog's Figure 7: latency without and with n-gram speculation."""

from swiftkv.artifacts.figures import write_figure
from swiftkv.artifacts.latency_figures import speculation_figure
from swiftkv.artifacts.serving import CLAIM_KEYS, parser, serving_of
from swiftkv.errors import command_line


@command_line
def main() -> None:
    arguments = parser(__doc__, ("pdf", "png", "csv")).parse_args()
    serving = serving_of(arguments, "latency", CLAIM_KEYS)
    figure, data = speculation_figure(serving)
    write_figure(figure, data, arguments.output_pdf, arguments.output_png, arguments.output_csv)


if __name__ == "__main__":
    main()
