"""Imports point down: each package and module of src/ and workflow/pipeline/ builds on those of lower floors only.

Imports inside functions count. Those for annotations alone do not: what is annotated is given, not fetched.
"""

import ast

from tests.programs import ROOT

# From the ground up, what lies directly below src/swiftkv, the method, and workflow/pipeline, which builds on it.
FLOORS = [
    "device errors spec swiftkv pipeline text",
    "architectures chats io quantize section",
    "cost models tensor_file",
    "attach distill engines gpus prompts serve sources statistics",
    "card config records",
    "measure quality stages training",
    "artifacts",
    "run",
]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__"): path
    for files in ("src/swiftkv/**/*.py", "workflow/pipeline/**/*.py")
    for path in ROOT.glob(files)
    if path != ROOT / "workflow/pipeline/__main__.py"  # the command line, above all floors
}


def imported(file):
    """What a file imports anywhere in its code, but for annotations alone; a name of a module as `module.name`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    annotations = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in set(ast.walk(tree)) - annotations:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package(module):
    return module.removeprefix("swiftkv.").removeprefix("pipeline.").partition(".")[0]


def test_packages_import_from_lower_floors_only():
    floors = {package: floor for floor, packages in enumerate(FLOORS) for package in packages.split()}
    assert {package(module) for module in FILES} == floors.keys(), "each package has its place"
    for above, file in FILES.items():
        for name in imported(file):  # `from package import name` is of the module `name`, if it is one
            below = name if name in FILES else name.rpartition(".")[0]
            if below in FILES and package(below) != package(above):
                assert floors[package(below)] < floors[package(above)], (above, below)
