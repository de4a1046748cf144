"""One of several things fails alone: why, in one line, while the others go on."""

import re
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedattack.base.errors import FaultError, FedAttackError, RunError, TrustError, short

FAULT = "this is a fault of the program, please report it"
"""How the reason of a failure ends that nobody foresaw."""

_NO_MEMORY = "there is not enough memory for it"

_LONGEST = 200

# What the system's loader, torch and Python say where there is too little of it.
_OF_MEMORY = re.compile(
    "failed to map segment|cannot allocate|can't allocate|out of memory|can't start new thread", re.I
)


def is_of_memory(problem: BaseException) -> bool:
    """Say whether there was too little memory, which is no fault of the program."""
    return isinstance(problem, MemoryError) or bool(_OF_MEMORY.search(str(problem)))


def is_unforeseen(why: str) -> bool:
    """Say whether the reason of a failure is none that the program gives by itself, such as a need that is not met."""
    return why.endswith((FAULT, _NO_MEMORY))


@dataclass(frozen=True)
class Failure:
    """Why one of several things could not be done.

    Attributes
    ----------
    why
        In one line. It says so where nobody foresaw what went wrong: that is a fault of the program.
    cause
        What went wrong.
    """

    why: str
    cause: Exception

    @classmethod
    def of(cls, cause: Exception) -> "Failure":
        """Say in one line what went wrong, and where, if nobody foresaw it."""
        if isinstance(cause, FedAttackError):
            return cls(short(str(cause)), cause)
        if is_of_memory(cause):
            return cls(_NO_MEMORY, cause)
        said = short(f"{type(cause).__name__}: {cause}", _LONGEST)
        # The innermost frame is where it went wrong.
        *_, last = traceback.extract_tb(cause.__traceback__) or [None]
        where = ""
        if last is not None:
            where = f" ({Path(last.filename).name}, line {last.lineno})"
        return cls(f"{said}{where}; {FAULT}", cause)

    def end(self, what: str) -> NoReturn:
        """Raise what went wrong, since nothing is left that could go on; `what` names what failed."""
        if isinstance(self.cause, FedAttackError):
            raise self.cause
        kind = FaultError if self.why.endswith(FAULT) else RunError
        raise kind(f"{what}: {self.why}") from self.cause


@contextmanager
def failing_alone(failed: MutableMapping[str, Failure] | None, what: str) -> Iterator[None]:
    """Note in `failed` what goes wrong within, by `what` it is, so that the rest goes on; raise it where that is None.

    What asks for the caller's trust is always raised: nobody else can give it.
    """
    try:
        yield
    except Exception as cause:
        # TrustError ends a command whole: a part that asks for trust must not be passed over.
        if failed is None or isinstance(cause, TrustError):
            raise
        failed[what] = Failure.of(cause)
