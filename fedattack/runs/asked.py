"""What a run folder asks for that lies outside of it: code and files."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from fedattack.record.folder import KNOWLEDGE, STUDY, Part, RunFolder
from fedattack.runs.code import find_app

if TYPE_CHECKING:
    from fedattack.attacks import Knowledge
    from fedattack.learning.importing import Asked


def asked_of_study(folder: RunFolder) -> list["Asked"]:
    """List what the run folder's settings name outside of it: code and files.

    The runtime is not among it: a SuperLink of another machine is named by the caller's environment alone.
    """
    study, where = folder.study, str(folder.path / STUDY)
    # The settings of a preset; an app has none, and takes no time to read what they may be.
    if "settings" not in study:
        return []
    from fedattack.learning.importing import Asked
    from fedattack.runs.settings import leads_out

    return [Asked(what, value, where) for value, what in leads_out(study["settings"]).items()]


def asked_of_knowledge(folder: RunFolder) -> list["Asked"]:
    """List what the run folder's knowledge asks to import, and the paths in it that leave the folder.

    Where this machine made the folder by an audit of an app that is as it was, code is looked for in the app, too.
    """
    asked: list[Asked] = []
    for part in folder.parts_there:
        # A server's own folder has none, and its environment no torch to read it with.
        if part.knowledge.exists():
            asked += known_to(part).asks()
    app = find_app(folder.path)
    # A dict keeps the order: several seeds ask for the same.
    return [replace(each, app=app) for each in dict.fromkeys(asked)]


def known_to(part: Part, trusted: Collection[str] = ()) -> "Knowledge":
    """Read what a run folder says of the attacker's knowledge; nothing for a record from elsewhere."""
    # A server's own environment may lack what reads it.
    from fedattack.attacks.knowledge import Knowledge
    from fedattack.attacks.knowledge_files import read_knowledge

    there = (part.knowledge / KNOWLEDGE).exists()
    return read_knowledge(part.knowledge, trusted=trusted) if there else Knowledge()
