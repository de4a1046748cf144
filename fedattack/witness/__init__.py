"""Note, on the auditor's side, what clients train on: what an audit holds the attacks against.

No attack reads it. Nothing here imports torch or scikit-learn: what is not there is not watched.
"""

from fedattack.witness.seen import SERVER, UNKNOWN, SeenExamples, Witness, WitnessedModel, WitnessedTraining
from fedattack.witness.store import read_witnesses, write_witness

__all__ = [
    "SERVER",
    "UNKNOWN",
    "SeenExamples",
    "Witness",
    "WitnessedModel",
    "WitnessedTraining",
    "read_witnesses",
    "write_witness",
]
