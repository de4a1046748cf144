"""Errors that a user can act on.

Every message is one line that says what is wrong, where, what was expected, what was found, and what to do next. The
command line prints it without a traceback and exits with code 2.
"""

import shlex
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path


class FedAttackError(Exception):
    """Base of all errors that come from bad input rather than from a fault in fedattack."""


class ConfigError(FedAttackError):
    """An unknown preset, key or option, or a value outside its range."""


class DataError(FedAttackError):
    """A dataset, partition or target file that is missing or does not fit."""


class ModelError(FedAttackError):
    """A model that cannot be built, or whose parameters do not match the record."""


class RecordError(FedAttackError):
    """A record that is missing, damaged, incomplete or of another format."""


class RunError(FedAttackError):
    """A Flower run that did not finish."""


class NeedsError(FedAttackError):
    """An attack was given a record or knowledge that lacks something that it needs."""


class TrustError(FedAttackError):
    """A folder that somebody hands over asks for code to import, or for a file outside of it."""


class DepartureError(FedAttackError):
    """A server sent what no server that follows the protocol would have sent."""


class ReportError(FedAttackError):
    """Findings or facts of a run that are missing, or that do not fit the schema of the report."""


class FaultError(FedAttackError):
    """Something failed in a way that nobody foresaw: a fault of the program, and the one error that is no bad input."""


MESSAGE = 300
"""Characters of the longest message."""


_LONGEST_PATH = 120

_FEW = 8


def in_command(path: Path | str) -> str:
    """Write a path for a command that people copy into a shell: quoted, since whoever named it may have meant harm.

    ``DIR`` stands for one that is too long for a message, which would lose its middle and with it quotes, and for one
    that a terminal cannot show.
    """
    text = str(path)
    if len(text) > _LONGEST_PATH or not text.isprintable():
        return "DIR"
    return shlex.quote(text)


def instead(word: str, known: Collection[str], *, listed: str = "") -> str:
    """Say what may stand in the place of ``word``: the known one that is spelt much like it, or those that there are.

    ``listed``: under which word ``fedattack list`` shows them, which then takes the place of a long list; empty if it
    does not.
    """
    near = get_close_matches(word.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else ""
    if listed and (near or len(known) > _FEW):
        return f"{hint} `fedattack list {listed}` shows all".lstrip()
    if near and len(known) > _FEW:
        return hint
    return f"{hint} expected one of {', '.join(known)}".lstrip()


def short(text: str, limit: int = MESSAGE) -> str:
    """Put ``text`` on one line of at most ``limit`` characters; what is too long loses its middle.

    The beginning says what is wrong and where, the end what to do next. Control characters are made visible: a text
    that came from elsewhere could drive a terminal with them.
    """
    # Before any scan: a message must be cheap, whatever somebody sent.
    if len(text) > 8 * limit:
        # Only what is shown of a text of megabytes is looked at.
        text = f"{text[: 4 * limit]} … {text[-4 * limit :]}"
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    if len(line) <= limit:
        return line
    # 3 for the dots and their blanks.
    half = (limit - 3) // 2
    return f"{line[: limit - 3 - half]} … {line[-half:]}"
