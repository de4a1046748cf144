"""Code that is imported without asking is that of an app which this machine audited, while nothing changed."""

import shutil
import sys

import pytest

from fedattack.record.folder import RunFolder
from fedattack.runs.bundle import hash_code
from fedattack.runs.code import list_own_code, note_app, note_code, note_folder
from tests.worlds.federation import write_run
from tests.worlds.sealed import edit

SPEC = "audited_client:Net"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run folder whose knowledge names a model of an app's own."""
    folder = write_run(tmp_path_factory.mktemp("template") / "run", epochs=2)
    edit(folder / "knowledge" / "knowledge.json", lambda value: value["model"].update(spec=SPEC))
    return folder


class World:
    """An app, the run folder of its audit, and the note of it."""

    def __init__(self, folder, template):
        self.app, self.run, self.state = folder / "app", folder / "run", folder / "state"
        self.app.mkdir()
        self.module = self.app / "audited_client.py"
        self.module.write_text("def Net(): ...\n")
        shutil.copytree(template, self.run)
        self.audit()

    def audit(self):
        note_code(self.run, [SPEC])
        note_app(self.run, self.app, hash_code(self.app))
        note_folder(RunFolder(self.run))

    @property
    def note(self):
        (file,) = (self.state / "fedattack" / "audits").iterdir()
        return file

    def own(self, run=None):
        return [each.value for each in list_own_code(RunFolder(run or self.run))]


@pytest.fixture
def world(tmp_path, template, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return World(tmp_path, template)


def test_the_code_of_an_app_that_was_audited_here_is_known(world):
    assert world.own() == [SPEC]
    (each,) = list_own_code(RunFolder(world.run))
    assert each.origin == str(world.module)
    assert world.note.stat().st_mode & 0o777 == 0o600
    assert world.note.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_without_a_finished_audit_is_a_strangers(world):
    world.note.unlink()
    note_code(world.run, [SPEC])
    note_app(world.run, world.app, hash_code(world.app))
    assert world.own() == []


def test_a_copy_of_the_folder_is_a_strangers(world, tmp_path):
    copy = shutil.copytree(world.run, tmp_path / "copy")
    assert world.own(copy) == []
    assert world.own() == [SPEC]


@pytest.mark.parametrize("file", ["record/manifest.json", "record/rounds.jsonl", "knowledge/knowledge.json"])
def test_another_folder_in_the_place_of_ours_is_a_strangers(world, file):
    with (world.run / file).open("ab") as opened:
        opened.write(b" ")
    assert world.own() == []


def test_a_folder_that_lacks_a_file_is_a_strangers(world):
    (world.run / "knowledge" / "knowledge.json").unlink()
    assert world.own() == []


def test_a_link_that_now_leads_to_a_strangers_folder_is_a_strangers(world, tmp_path):
    shutil.move(world.run, tmp_path / "moved")
    stranger = shutil.copytree(tmp_path / "moved", tmp_path / "stranger")
    assert world.own(tmp_path / "moved") == []
    world.run.symlink_to(stranger)
    assert world.own(world.run.resolve()) == []


def test_an_app_that_changed_by_one_byte_is_asked_about(world):
    world.module.write_text("def Net(): ...\n\n")
    assert world.own() == []
    world.module.write_text("def Net(): ...\n")
    assert world.own() == [SPEC]
    (world.app / "more.py").write_text("")
    assert world.own() == []


def test_a_note_that_the_folder_brings_along_grants_nothing(world, tmp_path, monkeypatch):
    forged = world.note.read_bytes()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    places = (".", "fedattack/audits", "state/fedattack/audits", ".local/state/fedattack/audits", "private")
    for place in places:
        folder = world.run / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / world.note.name).write_bytes(forged)
    assert world.own() == []


def test_a_note_that_is_a_link_or_open_to_others_does_not_count(world, tmp_path):
    world.note.chmod(0o640)
    assert world.own() == []
    world.note.chmod(0o600)
    world.note.parent.chmod(0o770)
    assert world.own() == []
    world.note.parent.chmod(0o700)
    assert world.own() == [SPEC]
    content, note = world.note.read_bytes(), world.note
    note.unlink()
    (tmp_path / "forged.json").write_bytes(content)
    note.symlink_to(tmp_path / "forged.json")
    assert world.own() == []


def test_a_module_of_that_name_in_the_working_directory_is_asked_about(world, tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / world.module.name).write_text("def Net(): ...\n")
    monkeypatch.chdir(tmp_path / "cwd")
    assert world.own() == []


def test_a_module_that_the_hash_does_not_cover_is_asked_about(world, tmp_path):
    """Links lie outside of the app's code, and so what they lead to may change."""
    shutil.move(world.module, tmp_path / "linked.py")
    world.module.symlink_to(tmp_path / "linked.py")
    world.audit()
    assert world.own() == []


def test_what_is_installed_is_known_too_and_what_was_never_noted_is_not(world):
    note_code(world.run, ["torch.nn:Linear"])
    assert world.own() == [SPEC, "torch.nn:Linear"]
    note_code(world.run, ["os:system"])
    assert "os:system" not in world.own()


def test_check_says_that_the_app_is_known_and_report_imports_it_without_trust(world, call):
    code, out, _ = call("check", world.run)
    assert code == 0
    assert f"it imports {SPEC} (model) from {world.module}, as in the audit that made it" in out
    assert "with --trust" not in out
    told = call("attack", "sia", world.run, "--device", "cpu")[2]
    assert f"note: imports {SPEC} (code) from {world.module}, as in the audit that made this folder" in told
    assert "trust the folder by --trust" not in told
    world.module.write_text("def Net(): return None\n")
    assert "with --trust, it imports" in call("check", world.run)[1]
    code, _, err = call("attack", "sia", world.run, "--device", "cpu")
    assert code == 2
    assert "trust the folder by --trust" in err
