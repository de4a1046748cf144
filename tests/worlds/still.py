"""A record of any size in which nothing moves, to time reading."""

from pathlib import Path

import numpy as np

from fedattack.record import Exchange, RecordWriter, Reply

ARRAYS, ENTRIES = 4, 8


def write_still_record(folder: Path, clients: int, rounds: int, entries: int = ENTRIES) -> Path:
    """Write a record, whose arrays have so many entries each."""
    writer = RecordWriter(folder)
    model = {f"layer{place}": np.zeros(entries, dtype=np.float32) for place in range(ARRAYS)}
    replies = [Reply(str(client), "ok", model, 3, {"loss": 0.1}) for client in range(clients)]
    for number in range(1, rounds + 1):
        writer.write(Exchange(number, model, replies, mean="message"))
    writer.close(final=model)
    return folder
