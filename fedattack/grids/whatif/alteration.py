"""Change the messages of a recorded run: as if its clients had defended themselves, or had only told their sum."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, DataError, FedAttackError, RecordError, short
from fedattack.base.files import array_on_disk, make_private
from fedattack.base.machine import let_go
from fedattack.defences import Defence, defence_of
from fedattack.defences.applying import Sends, defended_arrays
from fedattack.defences.hook import Handed
from fedattack.record import Exchange, Record, Reply, Round, project_record, rewrite_record
from fedattack.record.format import PROTOCOLS, Arrays
from fedattack.record.project import ALTERED

Kind = Literal["nothing", "secagg", "noise", "keep"]

MOST_NOISE = 1e6
"""The largest σ. Beyond it single precision would overflow in some models."""

# It keeps the noise apart from other draws with the same seed.
_STREAM = 0x1F
# Smaller arrays stay in memory.
_SMALL = 1 << 16


@dataclass(frozen=True)
class Alteration:
    """One change to all messages of a run.

    Attributes
    ----------
    kind
        ``nothing``; ``secagg``: the server sees the mean of a round's replies alone; ``noise``: Gaussian noise in every
        entry of each update; ``keep``: the small entries of each update are set to 0.
    amount
        Of noise its standard deviation σ, in units of what clients send; of ``keep`` the share of entries that stay.
    """

    kind: Kind
    amount: float = 0.0

    @property
    def name(self) -> str:
        """Its name as a folder."""
        names = {"nothing": "as-it-was", "secagg": "secagg"}
        # repr: two amounts that differ in any digit have folders of their own.
        return names.get(self.kind, f"{self.kind}-{self.amount!r}")

    @property
    def label(self) -> str:
        """Its name for people."""
        labels = {
            "nothing": "as it was",
            "secagg": "secure aggregation",
            "noise": f"noise, σ = {self.amount:.12g}",
            "keep": f"{100 * self.amount:.12g}% of entries kept",
        }
        return labels[self.kind]

    @property
    def settings(self) -> dict[str, str | float] | None:
        """The settings of the defence that does the same; ``None`` where no update is changed."""
        if self.kind == "noise" and self.amount:
            return {"defence": "dp-gaussian", "defence-strength": self.amount, "defence-clip": 0.0}
        if self.kind == "keep" and self.amount < 1:
            # Rounded, as 1 − 0.1 is 0.9 but for the last digit.
            return {"defence": "sparsify", "defence-strength": round(1 - self.amount, 12)}
        return None

    def defence(self) -> Defence | None:
        """Make the defence that changes each update, if one does."""
        if self.settings is None:
            return None
        # No clip is set: noise alone, since the record's updates were not clipped.
        return defence_of(self.settings)


NOTHING = Alteration("nothing")
"""The run as it was."""


def read_alterations(secagg: bool, noise: Sequence[str], keep: Sequence[str]) -> list[Alteration]:
    """Read what the caller asks for; of what is asked twice one is left."""
    asked = []
    if secagg:
        asked.append(Alteration("secagg"))
    for text in noise:
        sigma = _read_number(text)
        if not 0 <= sigma <= MOST_NOISE:
            raise ConfigError(
                f"--noise {text}: expected a standard deviation from 0 to {MOST_NOISE:g}, such as 0.01, in units of "
                "what clients send"
            )
        asked.append(Alteration("noise", sigma))
    for text in keep:
        share = _read_number(text)
        if not 0 < share <= 1:
            raise ConfigError(f"--keep {text}: expected a share above 0 and up to 1, such as 0.1 for a tenth")
        asked.append(Alteration("keep", share))
    if not asked:
        raise ConfigError(
            "no change is given: use --secagg, --noise SIGMA or --keep SHARE; the last two are repeatable"
        )
    # A dict keeps the order, and each once.
    return list(dict.fromkeys(asked))


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_alterable(record: Record, alterations: Sequence[Alteration]) -> None:
    """Check that a record can be altered."""
    if record.view != "individual":
        raise RecordError(
            f"{record.path} holds sums alone, in which no client's message can be altered; take a run whose server saw "
            "each client's reply"
        )
    if record.status == "open":
        raise RecordError(
            f"{record.path}: the run has not ended; finish it by `fedattack resume`, then run this command again"
        )
    kinds = {alteration.kind for alteration in alterations}
    if "secagg" in kinds and record.keep.some_clients:
        raise RecordError(f"--secagg: {record.path} keeps {record.kept}, and a sum takes the replies of all")


def alter_record(
    record: Record, out: Path, alteration: Alteration, *, seed: Sequence[int] = (0,), memory: int = 2**31
) -> Record:
    """Write an altered copy of a record.

    The common models stay those of the run as it was. A reply whose update a defence refuses, such as one that is not
    finite, is ``failed`` in the copy, as the client's mod would have it; late replies lose their arrays. As behind that
    mod, metrics beside a changed update are gone.

    Parameters
    ----------
    record
        A record in the individual view that :func:`check_alterable` lets pass.
    out
        Folder of the copy.
    alteration
        What is changed.
    seed
        Decides the noise, beside the round and the node.
    memory
        Bytes that a round's altered replies may take; those of a larger one wait on disk.

    Raises
    ------
    RecordError
        If the record is damaged.
    """
    labels = [alteration.label]
    # A record that was altered before keeps what was done to it.
    if ALTERED in record.facts:
        labels.insert(0, str(record.facts[ALTERED]))
    facts = {ALTERED: ", then ".join(labels)}
    if alteration.kind == "secagg":
        return project_record(record, out, facts=facts)
    defence = alteration.defence()
    if defence is None:
        return rewrite_record(record, out, lambda round_, exchange: exchange, facts=facts)
    largest = max((round_.file.size for round_ in record.lines), default=0)
    make_private(out.parent)

    def alter(round_: Round, exchange: Exchange) -> Exchange:
        replies = []
        for reply in exchange.replies:
            rng = generator(seed, round_.seq, reply.node)
            changed = _alter_reply(reply, exchange.common, defence, rng, record)
            # All replies of a round are in memory at once, unless they would not fit.
            if largest > memory:
                changed = _shelve_reply(changed, out.parent)
            replies.append(changed)
        return replace(exchange, replies=replies)

    return rewrite_record(record, out, alter, facts=facts)


def generator(seed: Sequence[int], seq: int, node: str) -> np.random.Generator:
    """Return what draws the noise of a node's update."""
    digest = hashlib.sha256(node.encode("utf-8", "replace")).digest()
    # Noise depends on seed, round and node alone: any order of replies gives the same.
    return np.random.default_rng((*seed, _STREAM, seq, int.from_bytes(digest[:8], "big")))


def _alter_reply(
    reply: Reply, common: Arrays | None, defence: Defence, rng: np.random.Generator, record: Record
) -> Reply:
    # Metrics tell of the clean update, and are left out.
    bare = replace(reply, arrays=None, metrics={})
    # What a late reply answers is an earlier round's model; no attack reads it.
    if reply.arrays is None or reply.status != "ok":
        return bare
    sends: Sends = "update"
    sent, received = dict(reply.arrays), []
    try:
        if PROTOCOLS[record.protocol].sends_back:
            sends, received = "model", _match_received(reply, common)
        arrays = defended_arrays(
            defence,
            received=received,
            sent=[*sent.values()],
            names=[*sent],
            handed=Handed(wanted=False),
            rng=rng,
            sends=sends,
        )
    except FedAttackError as cause:
        return replace(bare, status="failed", reason=short(str(cause), 300))
    return replace(bare, arrays=dict(zip(sent, arrays, strict=True)))


def _match_received(reply: Reply, common: Arrays | None) -> list[NDArray[Any]]:
    """Return the arrays that a client received, in the order in which it sent its own."""
    received, sent = reply.received, reply.arrays or {}
    if received is None:
        received = common
    if received is None or {*received} != {*sent}:
        raise DataError("the client did not send the arrays that it received, so there is no update to change")
    # In the order of what was sent, whatever the names' order in the received model.
    return list(map(received.__getitem__, sent))


def _shelve_reply(reply: Reply, shelf: Path) -> Reply:
    """Put the large arrays of a reply on disk, in files of a folder that go with the arrays."""
    if reply.arrays is None:
        return reply
    arrays: dict[str, NDArray[Any]] = {}
    for name, array in reply.arrays.items():
        arrays[name] = array
        if array.nbytes >= _SMALL:
            arrays[name] = array_on_disk(array.shape, array.dtype, shelf)
            arrays[name][...] = array
            let_go(arrays[name])
    return replace(reply, arrays=arrays)
