"""Make another record of one: what a secure-aggregation server would have seen, or a smaller copy."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, RecordError, short
from fedattack.base.untrusted import check_folder, copy_files
from fedattack.record.check import check_record
from fedattack.record.exchange import Exchange, Reply
from fedattack.record.folder import explain_lack
from fedattack.record.format import FINAL, INDEX, MANIFEST, SIGNATURE, View
from fedattack.record.index import file_of, without_manifest
from fedattack.record.keep import Keep
from fedattack.record.others import Others
from fedattack.record.reader import Observation, Record, Round
from fedattack.record.writer import RecordWriter, cannot_be_kept

PROJECTED: Mapping[str, Any] = {"kind": "mean", "weight": "num-examples", "by": "projection"}
"""What the manifest of a projected record says of its aggregates."""

ALTERED = "what-if"
"""The fact by which a manifest says that replies were altered after the run, and how."""


def project_record(record: Record, out: Path, *, facts: Mapping[str, Any] | None = None) -> Record:
    """Write the aggregate view of ``record`` to ``out``.

    Each round is projected by :func:`project_exchange`. Who was sampled, who failed and the common models stay as they
    are; what single clients sent is gone, and nothing in the new record leads back to it. It names its origin alone.

    Parameters
    ----------
    record
        A record in the individual view.
    out
        Folder of the new record.
    facts
        What its manifest is to say besides.

    Raises
    ------
    RecordError
        If the record is in the aggregate view already, lacks replies of clients, or replies of a round do not fit
        together.
    """
    if record.view != "individual":
        raise RecordError(f"{record.path} is in the {record.view} view; only an individual record can be projected")
    # Sums of some replies would be another run's.
    if record.keep.some_clients:
        raise RecordError(f"{record.path} keeps {record.kept}, and a sum takes the replies of all")

    def project_round(round_: Round, exchange: Exchange) -> Exchange:
        return project_exchange(exchange, round_.where)

    return rewrite_record(record, out, project_round, facts=facts, view="aggregate", aggregation=PROJECTED)


def copy_record(record: Record, out: Path) -> None:
    """Copy the files of a record, and nothing else that lies in its folder.

    Raises
    ------
    RecordError
        If one cannot be read, or they do not fit on the disk.
    """
    names = [MANIFEST, INDEX, *(file_of(line.seq) for line in record.lines)]
    if (record.manifest["final"] or {}).get("source") == "stored":
        names.append(FINAL)
    if record.manifest["signer"] is not None and (record.path / SIGNATURE).exists():
        names.append(SIGNATURE)
    copy_files(names, record.path, out, RecordError)


def rewrite_record(
    record: Record,
    out: Path,
    change: Callable[[Round, Exchange], Exchange],
    *,
    facts: Mapping[str, Any] | None = None,
    view: View = "individual",
    aggregation: Mapping[str, Any] | None = None,
    after: Sequence[Others] | None = None,
) -> Record:
    """Write a record to ``out`` in which every round is another one; the common models stay as they are.

    Parameters
    ----------
    record
        The record; it stays as it is.
    out
        Folder of the new record, which keeps as much as the old one.
    change
        Makes a round of each kept one. It is given the round, and the same as it is to be written.
    facts
        What the manifest is to say besides.
    view, aggregation
        Of the new record.
    after
        Messages after its last round that are no training; ``None`` for those of the old record.

    Raises
    ------
    RecordError
        If the record is damaged, or ``out`` holds a record already.
    """
    writer = _writer_of(record, out, record.keep, facts=facts, view=view, aggregation=aggregation)
    for round_ in record.lines:
        exchange = _exchange(round_)
        # A line that is no kept round holds the model after one, and nothing to change.
        if record.keep.round(round_.number):
            exchange = change(round_, exchange)
        writer.write(exchange)
    if after is None:
        after = record.others_after
    writer.close(final=record.final, error=record.manifest["error"], others=after)
    return Record(out, thinned=True)


def shrink_record(record: Record, out: Path, keep: Keep, *, key: Path | str | None = None) -> Record:
    """Write a smaller copy of ``record`` to ``out``; the record stays as it is.

    Parameters
    ----------
    record
        A whole record, or one that was thinned before: the copy keeps what both keep.
    out
        Folder of the copy.
    keep
        What the copy keeps.
    key
        File of the private key that the copy is signed by.

    Raises
    ------
    RecordError
        If the record is damaged or its run goes on, or ``out`` holds a record already.
    ConfigError
        If nothing is to be left out, or clients were chosen before.
    """
    if not keep.kinds:
        raise ConfigError("nothing is to be left out: give --every or --clients")
    report = check_record(record.path)
    if report.problems or record.status == "open":
        raise RecordError(
            f"{record.path}: {[*report.problems, *report.notes][0]}; only a closed, whole record is shrunk"
        )
    together = keep.within(record.keep)
    # Arrays and aggregates are read lazily, so that the copy holds one round in memory.
    writer = _writer_of(record, out, together, view=record.view, aggregation=record.manifest["aggregation"], key=key)
    # The server's way of averaging: the writer finds again which models are means, and stores these once.
    recipe = _recipe(record)
    for round_ in record.lines:
        writer.write(replace(_exchange(round_), aggregate=round_.aggregate, mean=recipe))
    writer.close(final=record.final, error=record.manifest["error"], others=record.others_after)
    return Record(out, thinned=True)


def _writer_of(
    record: Record, out: Path, keep: Keep, *, facts: Mapping[str, Any] | None = None, **options: Any
) -> RecordWriter:
    return RecordWriter(
        out,
        protocol=record.protocol,
        server=record.server,
        seed=record.seed,
        facts={**record.facts, **(facts or {})},
        versions=record.manifest["versions"],
        keep=keep,
        unrecorded=record.unrecorded,
        origin=record.origin,
        **options,
    )


def _recipe(record: Record) -> str | None:
    """Return how this server averages, if the record has a model that is the mean of replies."""
    # The first model that is a mean tells; a record of sums has none.
    for source in (record.manifest["final"], *(line.source for line in record.lines)):
        if source is not None and source["source"] == "mean":
            return str(source["recipe"])
    return None


def _exchange(round_: Round) -> Exchange:
    replies = list(map(_reply, round_.observations))
    return Exchange(
        number=round_.number, common=round_.common, config=round_.config, replies=replies, others=round_.others
    )


def records_in(folder: Path) -> dict[str, Path]:
    """Find the records of a run folder, of its folder of records, or of a record itself, by where a copy would lie.

    Returns
    -------
    dict
        By the path inside another folder of the same kind, ``""`` for a record itself, the record.

    Raises
    ------
    RecordError
        If there is none, or a link leaves the folder.
    """
    check_folder(folder, RecordError)
    if (folder / MANIFEST).exists():
        return {"": folder}
    for path in [*without_manifest(folder), *without_manifest(folder / "record")]:
        raise RecordError(f"{path} is a record without its {MANIFEST}; put it back, or move the rest away")
    manifests = sorted([*folder.glob(f"*/{MANIFEST}"), *folder.glob(f"record/*/{MANIFEST}")])
    if not manifests:
        raise RecordError(explain_lack(folder))
    return {str(path.parent.relative_to(folder)): path.parent for path in manifests}


def _reply(observation: Observation) -> Reply:
    return Reply(
        node=observation.node,
        status=observation.status,
        arrays=observation.arrays,
        num_examples=observation.num_examples,
        count_key=observation.count_key,
        metrics=observation.metrics,
        reason=observation.reason,
        of_round=observation.of_round,
        received=observation.received if observation.singled_out else None,
    )


def project_exchange(exchange: Exchange, where: str) -> Exchange:
    """Put the mean of a round's replies in the place of their arrays.

    The aggregate is the example-weighted mean of the replies that arrived in time, in float64, as Flower's SecAgg+
    hands it to its strategy; there is none where none arrived. Example counts and metrics stay with the nodes: SecAgg+
    lets both through in plaintext.

    Parameters
    ----------
    exchange
        A round in the individual view; it is left as it is.
    where
        The round's place, for messages.

    Raises
    ------
    RecordError
        If replies do not fit together, or one comes without arrays or example count.
    """
    usable = [reply for reply in exchange.replies if reply.status == "ok"]
    replies = [replace(reply, arrays=None, received=None) for reply in exchange.replies]
    return replace(exchange, replies=replies, aggregate=_mean(usable, where), mean=None)


def without_misfits(replies: Sequence[Reply]) -> list[Reply]:
    """Fail the replies that can have no part in a mean, each with its own reason.

    These are replies without arrays of numbers, without an example count above 0, or with arrays of other names or
    shapes than most clients' have.
    """
    # The layout that most replies have is taken for the model's; which one is right nobody can know.
    layouts = Counter(_layout(reply) for reply in replies if reply.status == "ok" and not _fault(reply))
    usual = max(layouts, key=lambda layout: layouts[layout], default=None)
    judged = list(replies)
    for index, reply in enumerate(replies):
        if reply.status != "ok":
            continue
        fault = _fault(reply, usual)
        if fault:
            judged[index] = replace(reply, status="failed", reason=fault)
    return judged


_Layout = frozenset[tuple[str, tuple[int, ...]]]


def _layout(reply: Reply) -> _Layout:
    return frozenset((name, array.shape) for name, array in (reply.arrays or {}).items())


def _fault(reply: Reply, usual: _Layout | None = None) -> str:
    """Say why a reply has no part in the mean; ``usual`` are the names and shapes that it should have."""
    count = reply.num_examples
    if not reply.arrays:
        return "it has no arrays, and no part in the mean"
    if not isinstance(count, int | float) or not 0 < count < math.inf:
        return short(f"its example count is {count!r}, and it has no part in the mean", 200)
    fault = cannot_be_kept(reply.arrays)
    if fault:
        return short(f"{fault}; it has no part in the mean")
    if usual is not None and _layout(reply) != usual:
        return "its arrays have other names or shapes than most clients', and it has no part in the mean"
    return ""


def _mean(replies: Sequence[Reply], where: str) -> dict[str, NDArray[Any]] | None:
    counts: list[float] = []
    for reply in replies:
        count = reply.num_examples
        if reply.arrays is None or not isinstance(count, int | float) or not count > 0:
            raise RecordError(
                f"{where}, node {reply.node}: no arrays or no example count, so there is no weighted mean"
            )
        counts.append(count)
    total = sum(counts)
    mean: dict[str, NDArray[Any]] = {}
    for reply, count in zip(replies, counts, strict=True):
        for name, array in (reply.arrays or {}).items():
            # In double precision, whatever the model's: this is the sum that secure aggregation would give.
            part = array.astype(np.float64) * (count / total)
            if name in mean and mean[name].shape != part.shape:
                raise RecordError(
                    f"{where}, node {reply.node}, {name}: expected shape {mean[name].shape} as from the other clients, "
                    f"got {part.shape}"
                )
            if name in mean:
                part = mean[name] + part
            mean[name] = part
    return mean or None
