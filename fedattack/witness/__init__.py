"""Note for the auditor what clients train on: the truth by which an audit judges attacks.

No attack reads it. Nothing here imports torch or scikit-learn: it watches only frameworks that the app imports.
"""

from fedattack.witness.flower import WITNESS_FOLDER, WitnessedClientApp, WitnessMod, watching_server
from fedattack.witness.hold_out import HoldOut
from fedattack.witness.seen import SERVER, UNKNOWN, SeenExamples, Witness, WitnessedModel, WitnessedTraining
from fedattack.witness.sources import watch_imports
from fedattack.witness.stating import evaluated_on, trained_on
from fedattack.witness.store import read_witnesses, write_witness

__all__ = [
    "SERVER",
    "UNKNOWN",
    "WITNESS_FOLDER",
    "HoldOut",
    "SeenExamples",
    "Witness",
    "WitnessMod",
    "WitnessedClientApp",
    "WitnessedModel",
    "WitnessedTraining",
    "evaluated_on",
    "read_witnesses",
    "trained_on",
    "watch_imports",
    "watching_server",
    "write_witness",
]
