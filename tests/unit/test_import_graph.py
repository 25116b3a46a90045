"""Imports point down: each package and module of src/ and workflow/pipeline/ builds on those of lower floors only.

Imports inside functions count. Those for annotations alone do not: what is annotated is given, not fetched.
"""

import ast

from tests.programs import ROOT

# From the ground up, what lies directly below src/swiftkv, the method, and workflow/pipeline, which builds on it.
FLOORS = [
    "device errors spec swiftkv pipeline",
    "architectures chats io quantize section",
    "cost models tensor_file",
    "distill gpus serve sources statistics",
    "card config records",
    "measure stages training",
    "artifacts score",
    "run",
]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__"): path
    for files in ("src/swiftkv/**/*.py", "workflow/pipeline/**/*.py")
    for path in ROOT.glob(files)
    if path != ROOT / "workflow/pipeline/__main__.py"  # the command line, above all floors
}


def imported(module, source):
    """The modules of this project that a module imports: `from package import name` is of the module `name`, if it is one."""
    tree = ast.parse(source)
    annotations = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    names = set()
    for node in set(ast.walk(tree)) - annotations:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            places = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {place if place in FILES else node.module for place in places}
    return (names & FILES.keys()) - {module}


def package(module):
    return module.removeprefix("swiftkv.").removeprefix("pipeline.").partition(".")[0]


def test_packages_import_from_lower_floors_only():
    graph = {module: imported(module, path.read_text(encoding="utf-8")) for module, path in FILES.items()}
    floors = {package: floor for floor, packages in enumerate(FLOORS) for package in packages.split()}
    assert {package(module) for module in FILES} == floors.keys(), "each package has its place"
    arrows = [
        (above, below) for above, modules in graph.items() for below in modules if package(above) != package(below)
    ]
    assert [arrow for arrow in arrows if floors[package(arrow[0])] <= floors[package(arrow[1])]] == []
