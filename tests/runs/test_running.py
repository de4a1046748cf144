"""What runs of presets and of apps have in common."""

from fedattack.record.folder import Part
from fedattack.runs.running import _LogFollower
from fedattack.runs.watch import Watch


def test_the_log_is_named_once_when_no_round_comes_and_says_how_many_there_are_to_be(tmp_path):
    now, said = 0.0, []
    log, part = tmp_path / "flower.log", Part(tmp_path, "")
    log.write_text("Number of rounds: 7\n")
    follower = _LogFollower(log, None, Watch(say=lambda kind, text: said.append(text)), lambda: now)
    # What stands there is of a run before.
    assert follower.find_rounds() is None
    for second in range(400):
        now = float(second)
        follower.notice({part: second // 50})
    assert said == []
    log.write_text(log.read_text() + "Starting Flower ServerApp, config: num_rounds=3, no round_timeout\n")
    assert follower.find_rounds() == 3
    for second in range(400, 800):
        now = float(second)
        follower.notice({part: 9})
    assert said == [f"no round was recorded in the last minute; Flower's own log is {log}"]
