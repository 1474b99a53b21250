"""What to make of a posterior: one of four outcomes, each with its reasons."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Verdict:
    """An outcome.

    Attributes:
        reasons: what it rests on, in words.
        advice: what to do.
        trusted: whether means and standard deviations are to be relied on.
    """

    advice: ClassVar[str] = ""
    trusted: ClassVar[bool] = False

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.advice}: {'; '.join(self.reasons)}."


class UseIt(Verdict):
    """Means and standard deviations are right."""

    advice = "Use it"
    trusted = True


class Corrected(Verdict):
    """The guide's own were not, those of the draws are."""

    advice = "Use these draws and not the guide's"
    trusted = True


class SeveralModes(Verdict):
    """There are several optima, and how much each counts is less certain than each by itself."""

    advice = "Several modes, look at them before use"


class UseNUTS(Verdict):
    """The posterior is too far from what was fitted."""

    advice = "Do not use it, sample with posterior.nuts()"
