"""The run folder: where a run's record, knowledge, truth, scores and report lie.

One run of one seed::

    DIR/record/  DIR/knowledge/  DIR/truth/  DIR/scores/ATTACK.npz  DIR/findings.json  DIR/run.json  DIR/report.html

Several seeds have one subfolder each in the first four: ``record/seed-0`` and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedattack.errors import RecordError
from fedattack.files import write_json
from fedattack.record.format import MANIFEST
from fedattack.untrusted import read_json

STUDY = "study.json"
DEALT = "dealt"


@dataclass(frozen=True)
class Part:
    """One seed's share of a run folder; ``name`` is empty when the folder holds a single run."""

    folder: Path
    name: str

    @property
    def record(self) -> Path:
        """Folder of the record."""
        return self.folder / "record" / self.name

    @property
    def knowledge(self) -> Path:
        """Folder of what the attacker knows."""
        return self.folder / "knowledge" / self.name

    @property
    def truth(self) -> Path:
        """Folder of the truth."""
        return self.folder / "truth" / self.name

    @property
    def zoo(self) -> Path:
        """Folder of the model zoos by which clients defend themselves."""
        return self.folder / "zoo" / self.name

    @property
    def dealt(self) -> Path:
        """File of what clients train on, for as long as they do."""
        return self.folder / DEALT / f"{self.name or 'run'}.safetensors"

    @property
    def resumption(self) -> Path:
        """File that tells a resumed run's server what it goes on with."""
        return self.folder / "resumption" / f"{self.name or 'run'}.json"

    def scores(self, attack: str) -> Path:
        """File of an attack's scores."""
        return self.folder / "scores" / self.name / f"{attack}.npz"

    @property
    def label(self) -> str:
        """The part's name for people."""
        return self.name or "the run"


def new_parts(folder: Path, seeds: Sequence[int]) -> list[Part]:
    """Name the parts of a new run folder."""
    return [Part(folder, "" if len(seeds) == 1 else f"seed-{seed}") for seed in seeds]


def find_parts(folder: Path) -> list[Part]:
    """Find the parts of a run folder by their records.

    Raises
    ------
    RecordError
        If there is no record at all.
    """
    records = folder / "record"
    if (records / MANIFEST).exists():
        return [Part(folder, "")]
    found = sorted(path.parent.name for path in records.glob(f"*/{MANIFEST}"))
    if not found:
        raise RecordError(
            f"{folder} holds no record: expected {folder / 'record' / MANIFEST} or one folder per seed in "
            f"{folder / 'record'}; let `fedattack simulate` or an observer write there"
        )
    return [Part(folder, name) for name in sorted(found, key=lambda name: (len(name), name))]


def write_study(folder: Path, study: dict[str, Any]) -> None:
    """Keep what was run: preset, settings, seeds, commands, times."""
    write_json(folder / STUDY, study)


def read_study(folder: Path) -> dict[str, Any]:
    """Read :func:`write_study`'s file; empty for a record that came from elsewhere."""
    if not (folder / STUDY).exists():
        return {}
    hint = "delete it to go on without the facts of the run"
    study = read_json(folder / STUDY, RecordError, hint)
    if not isinstance(study, dict) or not isinstance(study.get("settings", {}), dict):
        raise RecordError(f"{folder / STUDY} is not what `fedattack simulate` writes; {hint}")
    return study


def write_resumption(file: Path, nodes: Mapping[str, str], data: str) -> None:
    """Tell the server of a resumed run by which names the record knows the clients' nodes, and the data's fingerprint.

    It is told so for the record's sake alone: Flower gives nodes new ids, and the record is to keep the first ones.
    """
    file.parent.mkdir(exist_ok=True)
    write_json(file, {"names": {client: node for node, client in nodes.items()}, "data": data})


def read_resumption(file: Path) -> tuple[dict[str, str], str]:
    """Read :func:`write_resumption`'s file: the nodes' names by client, and the data's fingerprint."""
    told = read_json(file, RecordError, "resume the run again")
    return dict(told["names"]), str(told["data"])
