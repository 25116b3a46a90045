"""The pipeline that regenerates every table and figure of the SwiftKV paper and blog."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def shipped(path: str, directory: Path = Path()) -> str:
    """Return a path relative to `directory`; one in `resources` that is not there as that of the project's file."""
    return f"{PROJECT}/{path}" if path.startswith("resources/") and not (directory / path).exists() else path
