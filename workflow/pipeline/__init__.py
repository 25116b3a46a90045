"""The pipeline that regenerates every table and figure of the SwiftKV paper and blog."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def shipped(path: str) -> str:
    """Return a path, one in `resources` that the working directory does not have as that of the project's file."""
    return f"{PROJECT}/{path}" if path.startswith("resources/") and not Path(path).exists() else path
