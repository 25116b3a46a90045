"""A folder of its own for each file of tests that runs Snakemake."""

import contextlib

import pytest
from tests.programs import ROOT


@pytest.fixture(scope="module", autouse=True)
def checkout(tmp_path_factory):
    """Run the tests of a file in a folder of links to the project: Snakemake leaves its records in the folder it runs in."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".snakemake", "results"):
            (folder / path.name).symlink_to(path)
    with contextlib.chdir(folder):
        yield folder
