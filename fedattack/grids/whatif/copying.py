"""Copy the known files of a run's truth and knowledge: whoever hands a run over may have put anything beside."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.attacks import knowledge_files as knowledge
from fedattack.audit import truth
from fedattack.base.errors import DataError
from fedattack.base.untrusted import PLAIN, copy_files, read_sealed
from fedattack.record.folder import Part
from fedattack.record.nodes import NODES

# What a folder may hold from which somebody has deleted the list of files, as one may who changes it by hand.
_TRUTH = [truth.OWNERS, truth.EVALUATION, truth.POSITIVES, truth.PRIVACY]
_TRUTH += [truth.ATTRIBUTES, truth.RECORDS, truth.PRIVATE]
_KNOWLEDGE = [knowledge.TARGETS, knowledge.AUXILIARY, knowledge.PUBLIC, knowledge.PARTIAL]
_KNOWLEDGE += [knowledge.ATTRIBUTES, knowledge.FROZEN]


@with_config(ConfigDict(extra="ignore", strict=True))
class _SealedFiles(TypedDict, total=False):
    files: dict[Annotated[str, StringConstraints(pattern=f"^{PLAIN.pattern}$")], str]


_LISTING: TypeAdapter[_SealedFiles] = TypeAdapter(_SealedFiles)


def copy_truth(part: Part, to: Part) -> None:
    """Copy the truth of one seed."""
    names = _list_sealed(part.truth, truth.HOLDINGS, _TRUTH)
    names += _list_matching(part.truth, f"{NODES}/*.json", f"{truth.ACCURACY}/*.jsonl")
    copy_files(names, part.truth, to.truth, DataError)


def copy_knowledge(part: Part, to: Part) -> None:
    """Copy what the attacker of one seed knows."""
    names = _list_sealed(part.knowledge, knowledge.KNOWLEDGE, _KNOWLEDGE)
    names += _list_matching(part.knowledge, f"{NODES}/*.json")
    copy_files(names, part.knowledge, to.knowledge, DataError)


def _list_sealed(folder: Path, sealed: str, usual: Sequence[str]) -> list[str]:
    """List the file that is sealed, those that it lists, and the usual ones that are there."""
    if not (folder / sealed).exists():
        return []
    listed = read_sealed(folder / sealed, _LISTING, DataError, "ask for the folder again").get("files", {})
    there = [name for name in usual if (folder / name).exists()]
    # Listed files first; what only lies there is known by its name.
    return [sealed, *dict.fromkeys([*listed, *there])]


def _list_matching(folder: Path, *patterns: str) -> list[str]:
    names = []
    for pattern in patterns:
        names += sorted(str(path.relative_to(folder)) for path in folder.glob(pattern))
    return names
