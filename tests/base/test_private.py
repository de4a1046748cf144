"""What is written is for its owner alone, whatever the umask, and whole or not there."""

import os
import resource
import stat

import pytest

from fedattack.base.errors import ConfigError
from fedattack.base.files import make_private, open_private
from fedattack.record import Record, check_record
from fedattack.record.folder import copy_zoos, write_resumption
from fedattack.record.project import copy_record
from fedattack.record.signature import make_key, public_file, read_private_key, read_signer
from tests.simulations.test_study import study
from tests.worlds.federation import write_run


@pytest.fixture(autouse=True)
def lax():
    """Under a umask that takes no right away."""
    before = os.umask(0)
    yield
    os.umask(before)


def loose(folder, kind):
    """The files, or the folders, that others than the owner have rights on."""
    found = []
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if kind(mode) and stat.S_IMODE(mode) & 0o077:
            found.append(path.relative_to(folder))
    return found


def test_no_file_of_a_run_is_anybody_elses(tmp_path, call):
    make_key(tmp_path / "key.pem")
    run = write_run(tmp_path / "run", key=tmp_path / "key.pem")
    assert call("attack", "sia", run, "--device", "cpu")[0] == 0
    assert call("report", run, "--device", "cpu")[0] == 0
    assert call("project", run, tmp_path / "run" / "sums")[0] == 0
    copy_record(Record(run / "record"), run / "copy")
    assert loose(run, stat.S_ISREG) == []
    for part in ("record", "knowledge", "scores", "sums", "copy"):
        assert stat.S_IMODE((run / part).stat().st_mode) == 0o700
        assert loose(run / part, stat.S_ISDIR) == []
    assert check_record(run / "record").whole


def test_folders_that_are_made_on_the_way_are_private_and_those_that_are_there_stay(tmp_path):
    (tmp_path / "there").mkdir()
    make_private(tmp_path / "there" / "a" / "b")
    make_private(tmp_path / "there")
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "there" / "a").stat().st_mode) == 0o700
    write_resumption(tmp_path / "there" / "resumption" / "run.json", {}, "")
    assert stat.S_IMODE((tmp_path / "there" / "resumption").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


def test_zoos_are_copied_for_their_owner_alone_and_nothing_else_of_their_folder(tmp_path):
    (tmp_path / "from" / "label").mkdir(parents=True)
    for name in ("zoo.json", "zoo.safetensors", "junk"):
        (tmp_path / "from" / "label" / name).write_text(name)
    (tmp_path / "from" / "junk").mkdir()
    copy_zoos(tmp_path / "from", tmp_path / "to")
    copied = {str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert copied == {"label/zoo.json", "label/zoo.safetensors"}
    assert loose(tmp_path / "to", stat.S_ISREG) == loose(tmp_path / "to", stat.S_ISDIR) == []


def test_a_file_that_is_there_keeps_its_rights(tmp_path):
    with open_private(tmp_path / "new", "ab") as file:
        file.write(b"x")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    (tmp_path / "new").chmod(0o640)
    open_private(tmp_path / "new", "ab").close()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_key_is_private_and_its_public_half_is_not(tmp_path):
    name = make_key(tmp_path / "key.pem")
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(public_file(tmp_path / "key.pem").stat().st_mode) == 0o644
    assert read_signer(str(public_file(tmp_path / "key.pem"))) == name


@pytest.mark.parametrize("room", [0, 50, 115])
def test_on_a_full_disk_no_half_of_a_key_is_left(tmp_path, room):
    """The public half has 113 bytes, and the private one 119."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            make_key(tmp_path / "key.pem")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*tmp_path.iterdir()] == []
    make_key(tmp_path / "key.pem")
    read_private_key(tmp_path / "key.pem")


def test_shards_are_private(tmp_path):
    study(clients=3, dealt=str(tmp_path / "dealt" / "run.safetensors")).deal()
    assert stat.S_IMODE((tmp_path / "dealt" / "run.safetensors").stat().st_mode) == 0o600
