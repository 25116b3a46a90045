"""One line a check, whatever the others found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from swiftkv.errors import UserError

Result = TypeVar("Result")


class Report:
    """Runs checks and prints what each found.

    Attributes:
        failures: what those that failed so far say.

    Args:
        show: takes each line.
    """

    def __init__(self, show: Callable[[str], None] = print) -> None:
        self.show, self.failures = show, list[str]()

    def check(
        self,
        name: str,
        function: Callable[[], Result],
        describe: Callable[[Result], str] = str,
        passing: tuple[type[UserError], ...] = (),
    ) -> Result | None:
        """Run one check and print its line.

        Args:
            name: what is looked at, the line's first word.
            function: raises a `UserError` where something is wrong.
            describe: the line's text where nothing is, from what `function` returned.
            passing: failures that the caller itself reports.

        Returns:
            What `function` returned; None where it failed.
        """
        try:
            found = function()
        except passing:
            raise
        except UserError as error:
            self.fail(name, str(error))
            return None
        self.show(f"ok    {name}: {describe(found)}")
        return found

    def fail(self, name: str, sentence: str) -> None:
        """Print the line of a check that failed."""
        self.failures.append(sentence)
        self.show(f"FAIL  {name}: {sentence}")

    def end(self) -> None:
        """Raise a `UserError` that counts the failures, if there are any."""
        if self.failures:
            raise UserError(f"{len(self.failures)} of the checks failed; mend what they name and check again")
