"""The second half of an app's audit, in a process of its own, which notes what it opens.

``python -m tests.apps.second_half RUN LOG`` goes on with a run that was witnessed: it poses, then attacks and judges.
The log takes the paths of the files that are opened from there on.
"""

import sys
from pathlib import Path

from fedattack.apps.auditing import audit_gathered
from fedattack.apps.order import Order
from fedattack.apps.questions import NOTHING_BESIDES
from fedattack.record.folder import Part
from fedattack.runs.pipeline import choose_attacks
from fedattack.runs.watch import Watch
from tests.apps.worlds import pose_all
from tests.opens import note_opens

folder, log = map(Path, sys.argv[1:])
posed = pose_all([Part(folder, "")])
note_opens(log)
order = Order(folder, NOTHING_BESIDES, {}, lambda names: choose_attacks(names, {}), "cpu")
audit_gathered(order, posed, Watch())
