"""Write rounds behind the run's back, so that recording neither stops nor noticeably slows the training."""

import atexit
import contextlib
import importlib.metadata
import logging
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedattack.base.errors import RecordError, short
from fedattack.record import Exchange, Keep, RecordWriter, Reply
from fedattack.record.format import RUN, Arrays, Server, View
from fedattack.record.others import MAX_ARRAYS, MAX_OTHERS, Others, are_kept
from fedattack.record.project import PROJECTED, project_exchange, without_misfits
from fedattack.record.schema import Protocol
from fedattack.record.signature import SIGNING_KEY
from fedattack.record.size import Size

log = logging.getLogger("fedattack")

# The newest minor version of Flower that `make test-flower` has measured.
NEWEST = (1, 42)

SECAGG: Mapping[str, str] = {"kind": "mean", "weight": "num-examples", "by": "secagg+"}
"""What an aggregate is under Flower's SecAgg+."""

# How long a round waits for the disk before the recording, not the run, is given up.
_PATIENCE = 60.0


def _yield_to_training() -> None:
    """Let clients that train on the same machine go first: on Linux a thread has a niceness of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _warn_of_a_newer(version: str) -> None:
    # The first two numbers of 1.42.0.dev3: patches change no messages.
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if release > NEWEST:
        newest = ".".join(map(str, NEWEST))
        log.warning(
            "Flower %s is newer than %s, the newest version that fedattack was tested with; run `fedattack check` "
            "on the record",
            version,
            newest,
        )


class Recorder:
    """Takes rounds from an observer and writes them in a thread of its own.

    A round is written while the next one is in flight, and that one waits for it: so memory does not grow with the
    rounds, and a kill costs two at most. Whatever goes wrong while writing ends the recording with an error in the log
    and in the manifest; the run goes on.

    In the aggregate view a round that comes with single clients' replies is projected before it is written, in the
    thread too, so that nothing of a single client reaches the disk.

    Parameters
    ----------
    out
        Folder of the record; ``strftime`` directives such as ``%Y%m%d-%H%M%S`` are filled in when recording starts,
        so that a project that is run again and again gets a new record each time.
    view, protocol, server, seed, facts, aggregation
        See :class:`fedattack.record.RecordWriter`. In the aggregate view ``aggregation`` is a projection unless stated
        otherwise.
    key
        File of the private key that the record is signed by; by default the one that the environment variable
        ``FEDATTACK_SIGNING_KEY`` names, if any.
    resumed
        Go on with an existing record: the name in the record by the id of a node now, where they differ. Flower may
        have given the nodes other ids since.
    every, clients
        What is recorded of a run that is too large to be recorded whole; see :class:`fedattack.record.Keep`. ``seed``
        decides which clients a share is.
    record_id
        The id of the first record, where knowledge and truth were written before the run and name it; drawn without.

    Attributes
    ----------
    final
        The latest common model that is known; kept in the record as the one after the last round.
    before_close
        Called once before the record ends, while rounds can still be handed over.
    run_error
        Why the run ended early, if an observer noticed that it did.
    resumes
        Whether the recording goes on with an existing record.
    rounds
        How many rounds the run will have, where that is known.

    Raises
    ------
    ConfigError
        If what is to be kept is out of range.
    """

    def __init__(
        self,
        out: Path | str,
        *,
        view: View = "individual",
        protocol: Protocol = "fedavg",
        server: Server = "passive",
        seed: int | None = None,
        facts: Mapping[str, Any] | None = None,
        aggregation: Mapping[str, Any] | None = None,
        resumed: Mapping[str, str] | None = None,
        key: Path | str | None = None,
        every: int = 1,
        clients: float | Sequence[str] = 1.0,
        record_id: str = "",
    ) -> None:
        self.view = view
        self._protocol = protocol
        self._keep = Keep.chosen(every, clients, seed)
        if view == "aggregate" and aggregation is None:
            aggregation = PROJECTED
        self._out = str(out)
        self._options: dict[str, Any] = {
            "view": view,
            "protocol": protocol,
            "server": server,
            "seed": seed,
            "facts": facts,
            "aggregation": aggregation,
            "resume": resumed is not None,
            "key": key or os.environ.get(SIGNING_KEY) or None,
            "keep": self._keep,
            "record_id": record_id,
        }
        self.rounds: int | None = None
        self._foretold = self._began = False
        self._run: int | None = None
        self.resumes = resumed is not None
        self._names_in_record = resumed or {}
        # One round waits at most. What is unbounded here would fill the server's memory where a disk is slow.
        self._queue: queue.Queue[Exchange | None] = queue.Queue(maxsize=1)
        # Taken by a round from when it is handed over until it is on the disk.
        self._place = threading.Semaphore(1)
        self._writer: RecordWriter | None = None
        self._thread: threading.Thread | None = None
        self._error: str | None = None
        self._lost: str | None = None
        self.run_error: str | None = None
        self.final: Arrays | None = None
        self.before_close: Callable[[], None] | None = None
        self._others: list[Others] = []
        self._others_size = 0
        # Counted over the whole run: what a server asks again and again fills no disk.
        self._arrays_size = 0
        self._others_lock = threading.Lock()

    def open(self) -> None:
        """Create the record; once, until it is closed. A strategy that is started again gets another record.

        Raises
        ------
        RecordError
            If the folder holds a record already or cannot be written: before the training starts, this is the user's
            to mend and no reason to train unrecorded.
        """
        if self._thread is not None:
            return
        versions = {"flwr": importlib.metadata.version("flwr")}
        _warn_of_a_newer(versions["flwr"])
        path = Path(time.strftime(self._out)).expanduser()
        self._writer = RecordWriter(path, versions=versions, **self._options)
        # A strategy that is started again gets another record.
        # Knowledge and truth name the first.
        self._options["record_id"] = ""
        self._queue = queue.Queue(maxsize=1)
        self._place = threading.Semaphore(1)
        self._error = self._lost = self.run_error = self.final = None
        self._foretold = self._began = False
        self._run = None
        self._take_others()
        self._thread = threading.Thread(target=self._work, name="fedattack-recorder", daemon=True)
        self._thread.start()
        # A legacy strategy is never told that its run ends.
        atexit.register(self.close)
        log.info("recording to %s", path)

    def foretell(self, model: Arrays | None, sampled: int) -> None:
        """Say, once a record, how much the run will write; ``model`` was sent to so many clients."""
        if self._foretold or self._writer is None or model is None:
            return
        self._foretold = True
        size = Size.of(model, sampled, self._keep, view=self.view, protocol=self._protocol)
        try:
            free = shutil.disk_usage(self._writer.path).free
        except OSError:
            return
        line, fits = size.describe(self.rounds, free)
        level = logging.WARNING
        if fits:
            level = logging.INFO
        log.log(level, "%s", line)

    def of_run(self, run: object) -> None:
        """Note Flower's id of the run before its first round, once; never raises."""
        if not isinstance(run, int) or self._began or self._writer is None or self.resumes or self._run == run:
            return
        self._run = run
        try:
            self._writer.amend(facts={RUN: str(run)})
        except Exception as cause:
            self.fail(f"the manifest could not be written: {cause}")

    def see_sums(self) -> None:
        """Record what SecAgg+ lets a server see: the first round is about to begin.

        Raises
        ------
        RecordError
            If rounds of single replies were handed over, or single replies are to be left out.
        """
        if self._began or self._writer is None:
            raise RecordError("SecAgg+ began after rounds without it, whose single replies are already recorded")
        self._writer.amend(view="aggregate", aggregation=SECAGG)
        self.view = "aggregate"

    def note(self, others: Others) -> None:
        """Take what a message beside the training of a round holds; what is too much is named alone."""
        others = replace(others, nodes=tuple(self._names_in_record.get(node, node) for node in others.nodes))
        without = replace(others, arrays={})
        size = without.size
        with self._others_lock:
            if others.arrays:
                fits = are_kept(others.arrays)
                size_of_arrays = others.size - size if fits else 0
                if not fits or self._arrays_size + size_of_arrays > MAX_ARRAYS:
                    self.leave_out(others.type, others.way, arrays=others.arrays)
                    others = without
                else:
                    self._arrays_size += size_of_arrays
            if not others.metrics and not others.arrays and not others.reason:
                return
            if self._others_size + size > MAX_OTHERS:
                self.leave_out(others.type, others.way, arrays=others.arrays, metrics=others.metrics)
                return
            self._others_size += size
            # Queries to a thousand nodes hold the same: one entry names all of these.
            for last in self._others[-1:]:
                is_alike = last == replace(others, nodes=last.nodes) and not (last.arrays or others.arrays)
                if is_alike and {*last.nodes}.isdisjoint(others.nodes):
                    others = replace(last, nodes=last.nodes + others.nodes)
                    self._others.pop()
            self._others.append(others)

    def leave_out(self, *kind: Any, **names: Any) -> None:
        """Count messages that are not recorded; see :meth:`fedattack.record.others.Unrecorded.count`."""
        if self._writer is not None:
            self._writer.unrecorded.count(*kind, **names)

    def _take_others(self) -> tuple[Others, ...]:
        with self._others_lock:
            taken, self._others, self._others_size = self._others, [], 0
        return tuple(taken)

    def put(self, exchange: Exchange) -> None:
        """Hand over a finished round; never raises."""
        if self._thread is None and self._error is None:
            self._open_late()
        if self._error is not None:
            return
        self._began = True
        if not self._place.acquire(timeout=_PATIENCE):
            self.fail(f"round {exchange.number} could not be written within {_PATIENCE:.0f} s; the disk is too slow")
            return
        self._queue.put(replace(exchange, others=self._take_others()))

    def _open_late(self) -> None:
        """Open the record with its first round, for a strategy that is not started itself but wrapped by another."""
        try:
            if self._writer is not None:
                raise RecordError("the record is closed; start the strategy again to open another")
            self.open()
        except RecordError as cause:
            self.fail(str(cause))

    @contextlib.contextmanager
    def containing(self, where: str = "") -> Iterator[None]:
        """Let an error end the recording, and not the run."""
        try:
            yield
        except Exception as cause:
            self.fail(f"{where}{type(cause).__name__}: {cause}")

    def fail(self, error: str) -> None:
        """End the recording; the run goes on."""
        if self._error is None:
            self._error = error
            log.error("fedattack stopped recording; the run continues: %s", error)

    def close(self, error: str | None = None) -> None:
        """Write what is pending and end the record, once; ``error`` says why the run ended early, if it did."""
        if self._thread is None or self._writer is None:
            return
        self.run_error = error or self.run_error
        # It may hand over a last round, for which the thread must still run.
        if self.before_close is not None:
            self.before_close()
        try:
            # Behind the last round: the thread ends when it takes this.
            self._queue.put(None, timeout=_PATIENCE)
            self._thread.join(_PATIENCE)
        except queue.Full:
            log.error("fedattack could not end the record at %s; its whole rounds are readable", self._writer.path)
        self._thread = None
        atexit.unregister(self.close)

    def _work(self) -> None:
        writer = self._writer
        if writer is None:
            return
        _yield_to_training()
        place = self._place
        while (exchange := self._queue.get()) is not None:
            try:
                # After an error the record is closed. Rounds are still taken, or the run would wait for a place.
                if writer.is_open:
                    self._write(writer, exchange)
            except Exception as cause:
                # No error of the recording may reach the run.
                self.fail(f"round {exchange.number}: {cause}")
                self._end(writer)
            finally:
                place.release()
        if writer.is_open:
            self._end(writer)

    def _write(self, writer: RecordWriter, exchange: Exchange) -> None:
        """Write a round; of one that cannot be written, that it was there, so that it costs no other round."""
        try:
            writer.write(self._as_recorded(exchange))
        except OSError:
            # A disk takes the next round no better.
            raise
        except Exception as cause:
            line = f"round {exchange.number} could not be recorded: {cause}"
            log.error("fedattack, %s", short(line))
            self._lost = self._lost or line
            failed = []
            for reply in exchange.replies:
                if reply.status != "late":
                    node = self._names_in_record.get(reply.node, reply.node)
                    failed.append(Reply(node, "failed", reason=line))
            writer.write(replace(exchange, common=None, replies=failed, aggregate=None, config={}, mean=None))

    def _as_recorded(self, exchange: Exchange) -> Exchange:
        """Reduce a round to the view of the record, with its nodes as the record knows them."""
        replies = []
        for reply in exchange.replies:
            replies.append(replace(reply, node=self._names_in_record.get(reply.node, reply.node)))
        whole = self.view == "individual" or all(reply.arrays is None for reply in replies)
        # The writer keeps no reply of a round that is not recorded.
        # Here, before anything is written: a projection that is made of a file would have left single replies on the
        # disk.
        if whole or not self._keep.round(exchange.number):
            return replace(exchange, replies=replies)
        fitting = without_misfits(replies)
        if "ok" not in [reply.status for reply in fitting]:
            reason = next((reply.reason for reply in fitting if reply.reason), "nobody answered")
            log.warning("fedattack, round %d: there is no mean: %s", exchange.number, short(reason, 200))
        return project_exchange(replace(exchange, replies=fitting), "the aggregate view")

    def _end(self, writer: RecordWriter) -> None:
        try:
            # What ended the recording comes before what ended the run: without it the record would pass for whole.
            error = self._error or self.run_error or self._lost
            writer.close(final=self.final, error=error, others=self._take_others())
        except Exception as cause:
            self.fail(f"the model after the last round could not be written: {cause}")
            try:
                writer.close(error=self._error)
            except Exception as again:
                log.error("fedattack could not end the record at %s: %s", writer.path, again)
