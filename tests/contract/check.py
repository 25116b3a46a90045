"""Does the code that uses vLLM fit a release that is not installed? Read from that release's sources; nothing of it runs.

    python -m tests.contract.check [--sources FOLDER] [RELEASE ...]

A type checker looks at every module of this project that imports vLLM, once against the installed vLLM, which the tests
run with, and once against the sources of each release: what it finds only there, a name, parameter or attribute that is
absent or another one, breaks the contract. `facts.py` lists what names and signatures do not say.
"""

import argparse
import importlib.metadata
import json
import re
import site
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.contract.facts import FACTS
from tests.contract.sources import fetch, releases
from tests.programs import ROOT

LOWEST = "0.26.0"
_IMPORTS = re.compile(r"^\s*(?:from|import) vllm\b", re.MULTILINE)


def users():
    files = sorted(file for folder in ("src/swiftkv", "workflow/pipeline") for file in (ROOT / folder).rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in files if _IMPORTS.search(file.read_text())]


def site_packages():
    """Where packages are installed; Debian's Python names folders, too, that a virtual environment does not have."""
    return [folder for folder in map(Path, site.getsitepackages()) if folder.is_dir()]


def findings(sources):
    """All that the type checker says where vLLM's sources are those below `sources`, a sentence by place and kind.

    Sentences name types, which releases may write differently.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Every other package as installed: a module that a release does not have must not be found in the installed one.
        for installed in site_packages():
            for entry in installed.iterdir():
                if not entry.name.startswith(("vllm", "__editable__")) and entry.suffix != ".pth":
                    Path(folder, entry.name).symlink_to(entry)
        command = [sys.executable, "-m", "pyrefly", "check", "--preset=default", "--output-format=json"]
        command += [f"--search-path={sources}", f"--search-path={ROOT / 'src'}", f"--site-package-path={folder}"]
        command += ["--skip-interpreter-query", f"--python-version={sys.version_info[0]}.{sys.version_info[1]}"]
        ended = subprocess.run([*command, *users()], cwd=ROOT, capture_output=True, text=True)
    if not ended.stdout.startswith("{"):
        raise RuntimeError(f"the type checker failed: {ended.stderr[-2000:]}")
    return {
        tuple(error[key] for key in ("path", "line", "column", "name")): "{path}:{line}: {concise_description}".format(
            **error
        )
        for error in json.loads(ended.stdout)["errors"]
    }


def breaches(sources, version, tested):
    """What a release breaks, a sentence each; `tested` is what `findings` are of the installed vLLM."""
    found = [sentence for place, sentence in findings(sources).items() if place not in tested]
    return found + [
        f"{fact.file}: {fact.function} no longer says `{fact.text}`"
        for fact in FACTS
        if fact.applies(version) and not fact.holds(sources)
    ]


def installed():
    for folder in site_packages():
        if (folder / "vllm").is_dir():
            return folder, importlib.metadata.version("vllm").partition("+")[0]
    raise SystemExit("error: vLLM is not installed, and releases are compared with the one that is")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=f"such as 0.33.0; all from {LOWEST} on without")
    parser.add_argument(
        "--sources", type=Path, default=ROOT / "results/vllm-sources", help="where sources are kept: 60 MB a release"
    )
    options = parser.parse_args()
    folder, version = installed()
    tested = findings(folder)
    print(f"compared with the installed vLLM {version}, {len(users())} modules, {len(FACTS)} facts\n")
    broken = False
    for release in options.releases or releases(LOWEST):
        found = breaches(fetch(release, options.sources), release, tested)
        broken |= bool(found)
        print(f"{release}: {'fits' if not found else f'does not fit ({len(found)})'}", *found, sep="\n    ", flush=True)
    sys.exit(broken)


if __name__ == "__main__":
    main()
