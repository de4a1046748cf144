import sys

import pytest

from fedattack.report import write_report
from tests.report import gallery

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_pictures_of_a_run_are_taken(folder, tmp_path, monkeypatch):
    write_report(folder)
    monkeypatch.setattr(sys, "argv", ["gallery", str(tmp_path / "new"), str(folder)])
    gallery.main()
    looks = {f"{folder.name}-{scheme}-{width}.png" for scheme in ("light", "dark") for width in (1400, 1000, 390)}
    assert {path.name for path in (tmp_path / "new").iterdir()} == looks | {"pages"}
