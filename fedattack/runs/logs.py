"""What Flower's log says of a run: its id, the exceptions of clients and server, and why it was refused."""

import re

from fedattack.base.errors import short

_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# Ray writes the actor's name and process before each line of a worker.
_RAY_PREFIX = re.compile(r"^\(\w+ pid=\d+[^)]*\) ", re.MULTILINE)

_FRAME = re.compile(r'\s+File ".*", line \d+')

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(\([\w.]+\))?(:|$)")

RUN_ID = re.compile(r"Successfully started run (\d+)")

# As a strategy's `start` says it, and as ServerApps of before it do.
_PLANNED = re.compile(r"Number of rounds: (\d{1,6})\b|config: num_rounds=(\d{1,6})\b")

_REFUSED = re.compile(r"Could not start run: (?!for )(.+)")

_CLIENT_FAILURE = re.compile(
    "An exception was raised when processing a message by RayBackend|ClientApp raised an exception"
)

_SERVER_FAILURE = re.compile(r"(?:Simulation|ServerApp) failed with exception: *(.*)", re.DOTALL)

# What Ray says of a process that is gone; of one that took too much memory, with a list of all that took much.
_KILLED = re.compile("ActorDied|ActorUnavailable|WorkerCrashed|OutOfMemory")

# Characters of what is told of a log: a message has room for what was done, and for where the whole log is, too.
_LONGEST = 150

_WRAPPERS = {
    "RuntimeError: Simulation Runtime crashed.",
    "RuntimeError: An error was encountered. Ending simulation.",
}


def exceptions_in(log: str) -> list[str]:
    """Return the exception line (``Type: message``) of every traceback in a log, in order.

    Terminal colours and Ray's process prefixes are dropped, and so are the exceptions that Flower wraps around the
    one that matters.
    """
    exceptions = []
    in_traceback = False
    # A traceback's frames come first, and then its exception at the start of a line.
    for line in _RAY_PREFIX.sub("", _ANSI.sub("", log)).splitlines():
        if _FRAME.match(line):
            in_traceback = True
        elif in_traceback and _EXCEPTION.match(line):
            in_traceback = False
            exceptions.append(line.strip())
    return [line for line in exceptions if line not in _WRAPPERS]


def find_planned_rounds(log: str) -> int | None:
    """Return how many rounds a run is to take, as its server says where it begins; ``None`` before that."""
    found = _PLANNED.search(log)
    return int(found[1] or found[2]) if found else None


def client_error(log: str) -> str | None:
    """Return the exception that a ClientApp raised last in a log, in one short line, or None when none did."""
    parts = _CLIENT_FAILURE.split(log)
    if len(parts) == 1:
        return None
    # The first exception after the last failure is the client's; later ones are Flower's own about it.
    raised = exceptions_in(parts[-1])
    return explain(raised[0]) if raised else None


def explain(exception: str) -> str:
    """Put an exception of Ray's into one line of at most 150 characters, and say it where a process was killed."""
    if not _KILLED.search(exception):
        return short(exception, _LONGEST)
    killed = "; it was killed, often for lack of memory"
    return short(exception, _LONGEST - len(killed)) + killed


def failure_reason(log: str, details: str) -> str:
    """Say in one line of at most 150 characters why a run failed.

    Parameters
    ----------
    log : str
        The log of the run.
    details : str
        Flower's details of the run's status. They lack the exception's type, and are the only source when a process
        died without a message.

    Returns
    -------
    str
    """
    reason = " ".join(details.split())
    failure = _SERVER_FAILURE.match(details)
    if failure:
        raised = exceptions_in(log)
        # In a deployment the processes write at once, and the last exception need not be the server's.
        of_server = [line for line in raised if failure[1] and failure[1] in line]
        reason = (of_server or raised or [reason])[-1]
    of_client = client_error(log)
    if of_client is not None and of_client != reason:
        reason += f" (a client had failed before with {of_client})"
    return short(reason, _LONGEST)


def refusal_reason(log: str) -> str:
    """Say in one short line why ``flwr run`` did not start a run, by the log of that command and its SuperLink."""
    plain = _ANSI.sub("", log)
    # Flower draws a box around errors: its lines begin and end with a bar.
    lines = [line.strip("│ ") for line in plain.splitlines() if line.startswith("│")]
    cause = _REFUSED.search(plain)
    if cause:
        lines.append(cause[1])
    last = (plain.strip().splitlines() or ["no output"])[-1]
    return short(" ".join(lines) or last, _LONGEST)
