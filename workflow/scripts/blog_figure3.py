"""The blog's Figure 3: combined throughput of a node by input length."""

from swiftkv.artifacts.figures import write_figure
from swiftkv.artifacts.serving import CLAIM_KEYS, parser, serving_of
from swiftkv.artifacts.serving_figures import blog_figure3
from swiftkv.errors import command_line


@command_line
def main() -> None:
    command = parser(__doc__, ("pdf", "png", "csv"))
    command.add_argument("--node-gpus", type=int, required=True, help="GPUs that serve replicas of the measured server")
    arguments = command.parse_args()
    serving = serving_of(arguments, "throughput", CLAIM_KEYS)
    figure, data = blog_figure3(serving, arguments.node_gpus)
    write_figure(figure, data, arguments.output_pdf, arguments.output_png, arguments.output_csv)


if __name__ == "__main__":
    main()
