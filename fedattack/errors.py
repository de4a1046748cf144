"""Errors that a user can act on.

Every message is one line that says what is wrong, where, what was expected, what was found, and what to do next. The
command line prints it without a traceback and exits with code 2.
"""


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


class ReportError(FedAttackError):
    """Findings or facts of a run that are missing, or that do not fit the schema of the report."""
