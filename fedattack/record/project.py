"""Project a record in the individual view to what a secure-aggregation server would have seen."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import RecordError
from fedattack.record.reader import Observation, Record
from fedattack.record.writer import Exchange, RecordWriter, Reply


def project_record(record: Record, out: Path) -> Record:
    """Write the aggregate view of ``record`` to ``out``.

    Each round's aggregate is the example-weighted mean of the replies that arrived in time, in float64, as Flower's
    SecAgg+ hands it to its strategy. Example counts and metrics stay with the nodes: SecAgg+ lets both through in
    plaintext. Who was sampled, who failed and the common models stay as they are; what single clients sent is gone,
    and nothing in the new record leads back to it.

    Raises
    ------
    RecordError
        If the record is in the aggregate view already, or replies of a round do not fit together.
    """
    if record.view != "individual":
        raise RecordError(f"{record.path} is in the {record.view} view; only an individual record can be projected")
    writer = RecordWriter(
        out,
        view="aggregate",
        protocol=record.protocol,
        server=record.server,
        seed=record.seed,
        facts=record.facts,
        versions=record.manifest["versions"],
        aggregation={"kind": "mean", "weight": "num-examples"},
    )
    for item in record:
        replies = [
            Reply(
                node=seen.node,
                status=seen.status,
                num_examples=seen.num_examples,
                metrics=seen.metrics,
                reason=seen.reason,
                of_round=seen.of_round,
            )
            for seen in item.observations
        ]
        aggregate = _mean([seen for seen in item.observations if seen.status == "ok"], item.where)
        writer.write(
            Exchange(number=item.number, common=item.common, config=item.config, replies=replies, aggregate=aggregate)
        )
    writer.close(final=record.final)
    return Record(out)


def _mean(observations: list[Observation], where: str) -> dict[str, NDArray[Any]] | None:
    total = sum(seen.num_examples or 0 for seen in observations)
    mean: dict[str, NDArray[Any]] = {}
    for seen in observations:
        if seen.arrays is None or not seen.num_examples:
            raise RecordError(f"{where}, node {seen.node}: no arrays or no example count, so there is no weighted mean")
        weight = seen.num_examples / total
        for name, array in seen.arrays.items():
            part = array.astype(np.float64) * weight
            if name in mean and mean[name].shape != part.shape:
                raise RecordError(
                    f"{where}, node {seen.node}, {name}: expected shape {mean[name].shape} as from the other clients, "
                    f"got {part.shape}"
                )
            mean[name] = mean[name] + part if name in mean else part
    return mean or None
