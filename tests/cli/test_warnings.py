"""What libraries warn of stands in a file of the run folder, and not in the terminal."""

import warnings

from fedattack.attacks._fan_out import fan_out
from fedattack.cli.console import WARNINGS, log_warnings
from fedattack.threats.source.sia import SourceInference
from tests.worlds.federation import write_run


def test_warnings_wait_until_the_folder_is_there(tmp_path, capsys):
    folder = tmp_path / "run"
    with log_warnings(folder):
        warnings.warn("before", UserWarning, stacklevel=1)
        folder.mkdir()
        assert not (folder / WARNINGS).exists()
        warnings.warn("after", UserWarning, stacklevel=1)
        assert "UserWarning: before" in (folder / WARNINGS).read_text()
    assert "UserWarning: after" in (folder / WARNINGS).read_text()
    assert (folder / WARNINGS).stat().st_mode & 0o777 == 0o600
    assert "".join(capsys.readouterr()) == ""


def test_a_link_is_not_followed_and_what_cannot_be_written_is_shown(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / WARNINGS).symlink_to(tmp_path / "elsewhere")
    with log_warnings(tmp_path / "run"):
        warnings.warn("of [bold]something[/bold]", UserWarning, stacklevel=1)
    assert not (tmp_path / "elsewhere").exists()
    assert "UserWarning: of [bold]something[/bold]" in capsys.readouterr().err
    with log_warnings(tmp_path / "nothing"):
        warnings.warn("that has no place", UserWarning, stacklevel=1)
    assert "that has no place" in capsys.readouterr().err


def test_without_a_warning_there_is_no_file(tmp_path):
    with log_warnings(tmp_path):
        pass
    assert not [*tmp_path.iterdir()]


def test_an_attack_that_warns_says_nothing_of_it_in_the_terminal(call, tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    real = SourceInference.run

    def run(self, *words, **named):
        warnings.warn("lr_scheduler.step() was called", UserWarning, stacklevel=1)
        return real(self, *words, **named)

    monkeypatch.setattr(SourceInference, "run", run)
    code, out, err = call("attack", "sia", folder, "--device", "cpu")
    assert code == 0
    assert "lr_scheduler" not in out + err
    assert "UserWarning: lr_scheduler.step() was called" in (folder / WARNINGS).read_text()


def warn(number: int) -> int:
    warnings.warn("of a worker", FutureWarning, stacklevel=1)
    return number


def test_what_workers_warn_of_is_said_once_by_who_asked():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert [*fan_out(warn, range(4), workers=2, memory=1.0)] == [0, 1, 2, 3]
    assert [str(each.message) for each in caught] == ["FutureWarning: of a worker"]
