"""Errors meant for the person at the terminal: one clear sentence, no traceback."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from functools import wraps


class UserError(Exception):
    """Something the user can mend; the message says what is wrong and what to do."""


def command_line(main: Callable[..., None]) -> Callable[..., None]:
    """Make `main` end with one sentence on stderr and exit status 1 on a user's error or a full disk."""

    @wraps(main)
    def wrapped(*args, **kwargs) -> None:
        try:
            main(*args, **kwargs)
        except UserError as error:
            sys.exit(f"error: {error}")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            sys.exit(
                f"error: the disk is full while writing {error.filename or 'an output'}; free some space and run again"
            )

    return wrapped
