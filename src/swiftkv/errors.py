"""Errors meant for the person at the terminal: one clear sentence, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


class UserError(Exception):
    """Something the user can mend; the message says what is wrong and what to do."""


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split())


def command_line(main: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function end its program with one sentence on stderr and exit status 1 on a user's error or a full disk."""

    @wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except UserError as error:
            sys.exit(f"error: {error}")
        except Exception as error:
            # Libraries written in other languages report a full disk in these words only.
            if any(words in str(error) for words in ("No space left on device", "Disk quota exceeded")):
                where = getattr(error, "filename", None) or "an output"
                sys.exit(f"error: the disk is full while writing {where}; free some space and run again")
            raise

    return wrapped
