"""``--require``: requirements that the result of a command must meet, for scheduled jobs and gates.

Typer reads the types of fields from classes that may stand in another module, so there are no names of types here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from typer import BadParameter, Exit, Option

from hcal.cli import console
from hcal.cli.options import Files
from hcal.text import JsonObject

if TYPE_CHECKING:
    from hcal.operation.gates import Gated

#: The exit code of a command whose result does not meet a requirement, or that ends in an alarm.
FAILED: Final = 3


def _check_form(texts: list[str] | None) -> list[str] | None:
    """Refuse text that is no requirement, before anything is read: a wrong command."""
    if not texts:
        return texts

    from hcal.operation.gates import Requirement

    for text in texts:
        try:
            Requirement.parse(text)
        except ValueError as error:
            raise BadParameter(str(error)) from None
    return texts


@dataclass(frozen=True, kw_only=True)
class Requiring(Files):
    """What the result must be like; otherwise the command ends with the exit code 3."""

    require: Annotated[
        list[str] | None,
        Option(
            help="such as 'ece_ew<0.02', 'change(nll)<0' or, of a report, 'grade>=good'; "
            "repeatable; exit code 3 if it is not met",
            callback=_check_form,
        ),
    ] = None

    def expect(self, *, grade: bool = False, model: bool = True) -> None:
        """Refuse requirements that this command cannot check, before the work begins."""
        if not self.require:
            return

        from hcal.operation.gates import Requirement, missing_words

        for text in self.require:
            name = Requirement.parse(text).name
            if (name == "grade" and not grade) or (name.startswith("change(") and not model):
                raise ValueError(missing_words(name, [name[7:-1]]))

    def checks(self, result: "Gated") -> JsonObject:
        """Return the checks for the command's JSON; nothing without a requirement."""
        if not self.require:
            return {}

        from hcal.operation.gates import require

        return {"requirements": require(result, self.require).checks}

    def check(self, result: "Gated") -> None:
        """End the command with the exit code 3, and a line for each requirement, where one is not met."""
        if not self.require:
            return

        from hcal.operation.gates import require

        failures = require(result, self.require).failures
        for failure in failures:
            console.say("failed", "red", failure)
        if failures:
            raise Exit(FAILED)
