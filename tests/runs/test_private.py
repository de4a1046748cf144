"""Private copies lie in the run folder, and go with the command that made them, however it ends."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from fedattack.base.errors import RecordError
from fedattack.base.files import FolderLock, array_on_disk, signals_raise
from fedattack.base.untrusted import PRIVATE, check_folder
from fedattack.runs.private import guarded_folder, private_folder, sweep, sweep_named, working_in
from tests.runs.test_simulator import alive, wait_until


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_copies_lie_in_the_run_folder_for_its_owner_alone_and_go(run, temporary):
    with private_folder(run) as link:
        (link / "targets.npz").write_text("examples")
        (folder,) = (run / PRIVATE).iterdir()
        assert (folder / "targets.npz").read_text() == "examples"
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        assert link.parent == temporary
        with pytest.raises(FileNotFoundError), private_folder(run) as other:
            (other / "examples" / "that" / "fail").touch()
        assert [*(run / PRIVATE).iterdir()] == [folder]
        assert [*temporary.iterdir()] == [link]
    assert not [*run.iterdir()]
    assert not [*temporary.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_neither_copies_nor_processes_outlive_the_command(run, temporary, number):
    """Also where a process of the app's has children, and ignores that it is asked to end."""
    script = dedent("""
        import subprocess, sys
        from pathlib import Path
        from fedattack.runs.private import private_folder, working_in
        sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
        with private_folder(Path(sys.argv[1])) as folder:
            (folder / "targets.npz").touch()
            child = subprocess.Popen([sys.executable, "-c", parent], env=working_in(folder), start_new_session=True)
            print(child.pid, flush=True)
            child.wait()
    """)
    command = subprocess.Popen(
        [sys.executable, "-c", script, str(run)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    child = psutil.Process(int(command.stdout.readline()))
    assert wait_until(lambda: bool(child.children()), 20)
    family = [child, *child.children()]
    assert [*temporary.glob("*/targets.npz")]
    command.send_signal(number)
    command.wait(30)
    assert wait_until(lambda: not any(map(alive, family)), 20)
    assert wait_until(lambda: not [*run.rglob("targets.npz"), *temporary.iterdir()], 20)
    if number != signal.SIGKILL:
        assert command.returncode == 128 + number
        assert not [*run.iterdir()]


def test_the_next_command_removes_what_was_left_and_nothing_else(run, tmp_path):
    """Where the guard was killed, too, as by a power cut."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    left, at_work = run / PRIVATE / "left", run / PRIVATE / "at-work"
    for folder in (left, at_work):
        folder.mkdir(parents=True)
    (left / "data").symlink_to(outside)
    (run / PRIVATE / "link").symlink_to(outside)
    with FolderLock(at_work):
        sweep(run)
        assert not left.exists()
        assert at_work.exists()
    sweep(run)
    assert [path.name for path in (run / PRIVATE).iterdir()] == ["link"]
    assert (outside / "kept").exists()
    (run / PRIVATE / "link").unlink()
    sweep(run)
    assert not (run / PRIVATE).exists()
    (run / PRIVATE).symlink_to(outside)
    (outside / "folder").mkdir()
    sweep(run)
    assert (outside / "folder").exists()


def test_the_next_command_ends_processes_that_work_in_what_was_left(run, monkeypatch):
    """Also where the run folder is named from where the command is given."""
    left = run / PRIVATE / "left"
    left.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"], env=working_in(left), start_new_session=True
    )
    monkeypatch.chdir(run.parent)
    sweep(Path(run.name))
    assert process.wait(10) == -signal.SIGTERM
    assert not left.exists()


def test_a_run_folder_is_read_while_a_command_keeps_copies_with_links_in_it(run, tmp_path):
    (run / PRIVATE / "copy").mkdir(parents=True)
    (run / PRIVATE / "copy" / "data").symlink_to(tmp_path)
    check_folder(run, RecordError)
    (run / "record" / PRIVATE).mkdir(parents=True)
    (run / "record" / PRIVATE / "data").symlink_to(tmp_path)
    with pytest.raises(RecordError, match="is a link that leaves"):
        check_folder(run, RecordError)


def test_folders_of_another_name_and_those_at_work_stay(tmp_path):
    (tmp_path / ".out.backup").mkdir()
    (tmp_path / ".out.gathering-left").mkdir()
    with guarded_folder(tmp_path, ".out.gathering-") as folder:
        sweep_named(tmp_path, ".out.gathering-")
        assert {*tmp_path.iterdir()} == {tmp_path / ".out.backup", folder}
    assert [*tmp_path.iterdir()] == [tmp_path / ".out.backup"]


def test_a_signal_that_is_ignored_stays_so():
    """As under ``nohup``, whose command goes on when the terminal closes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        # Whoever runs the tests may ignore it.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(SystemExit) as stop, signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.value.code == 128 + signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_array_on_disk_has_no_name_that_could_be_left(tmp_path):
    array = array_on_disk((3, 2), "float32", tmp_path)
    array[1] = 5
    assert not [*tmp_path.iterdir()]
    assert array.tolist() == [[0, 0], [5, 5], [0, 0]]
