"""vLLM's releases and their sources, read from the wheels of the package index; nothing is installed or run."""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.version import Version

# vLLM has wheels for several platforms with the same Python sources; this one is always there.
PLATFORM = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 31, 35)] + ["--platform=manylinux1_x86_64"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def releases(lowest):
    """The last patch of every minor release from `lowest` on, oldest first."""
    listed = subprocess.run([*PIP, "index", "versions", "vllm"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Available versions: (.+)", listed)
    assert found, listed
    minors = {}
    for version in sorted(map(Version, found[1].split(", "))):
        if version >= Version(lowest) and not version.is_prerelease:
            minors[version.release[:2]] = version
    return [str(version) for version in minors.values()]


def fetch(version, folder):
    """The folder that holds `vllm/**/*.py` of a release; downloads a wheel of some 300 MB where it is not there yet."""
    place = folder / version
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            wheel = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", *PLATFORM, f"--dest={scratch}"]
            subprocess.run([*PIP, "download", "--quiet", *wheel, f"vllm=={version}"], check=True)
            (archive,) = Path(scratch).glob("vllm-*.whl")
            with zipfile.ZipFile(archive) as content:
                content.extractall(f"{scratch}/new", [name for name in content.namelist() if name.endswith(".py")])
            Path(scratch, "new").rename(place)
    return place
