"""Figure B.1: latency of the small model by request rate."""

from swiftkv.artifacts.figures import write_figure
from swiftkv.artifacts.latency_figures import latency_figure
from swiftkv.artifacts.serving import CLAIM_KEYS, parser, serving_of
from swiftkv.errors import command_line


@command_line
def main() -> None:
    arguments = parser(__doc__, ("pdf", "png", "csv")).parse_args()
    serving = serving_of(arguments, "latency", CLAIM_KEYS)
    figure, data = latency_figure(serving, "figureB1", "paper's Figure B.1")
    write_figure(figure, data, arguments.output_pdf, arguments.output_png, arguments.output_csv)


if __name__ == "__main__":
    main()
