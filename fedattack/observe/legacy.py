"""Observe a legacy strategy, with or without SecAgg+."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedattack.base.errors import short
from fedattack.observe._arrays import view_tensors
from fedattack.observe._recorder import SECAGG, Recorder
from fedattack.record import Exchange, Reply
from fedattack.record.format import UNFINISHED, Arrays, Status
from fedattack.record.means import identical
from fedattack.record.others import Others

Results = list[tuple[ClientProxy, FitRes]]
Failures = list[tuple[ClientProxy, FitRes] | BaseException]


class ObservedLegacyStrategy(Strategy):
    """A legacy strategy that records what it sees, and otherwise behaves like the strategy that it wraps.

    One line in the server file::

        strategy = ObservedLegacyStrategy(FedAvg(), "records/%Y%m%d-%H%M%S")

    Under SecAgg+ use ``view="aggregate"``. Flower then hands the same unmasked aggregate to the strategy once per
    surviving client, and the record keeps it once. A round that SecAgg+ halts never reaches ``aggregate_fit``. It is
    recorded, with the sampled nodes as missing, when the next round or the end of the run shows that nothing came.

    Parameters
    ----------
    inner
        The project's own strategy.
    out
        Folder of the record; ``strftime`` directives are filled in when the run starts.
    names
        Names of the model's arrays, in order: legacy arrays have none.
    options
        ``view``, ``protocol``, ``server``, ``seed``, ``facts``, ``aggregation`` and ``key`` of
        :class:`fedattack.record.RecordWriter`. ``every`` and ``clients`` of :class:`fedattack.record.Keep`, to record
        less.

    Raises
    ------
    ConfigError
        If what is to be kept is out of range.

    Notes
    -----
    A legacy strategy does not learn when its run ends. The record is closed when the process ends, or by :meth:`close`.
    It does not note an error that does not pass through the strategy.
    """

    def __init__(self, inner: Strategy, out: Path | str, *, names: Sequence[str] | None = None, **options: Any) -> None:
        if options.get("view") == "aggregate":
            options.setdefault("aggregation", SECAGG)
        self._record_by(inner, Recorder(out, **options), names)

    @classmethod
    def sharing(cls, inner: Strategy, recorder: Recorder, names: Sequence[str] | None) -> "ObservedLegacyStrategy":
        """Observe a strategy for an existing recorder, which its maker closes."""
        observed = cls.__new__(cls)
        observed._record_by(inner, recorder, names)
        # Whoever watches the messages sees evaluations, too.
        observed._notes_evaluations = False
        return observed

    def _record_by(self, inner: Strategy, recorder: Recorder, names: Sequence[str] | None) -> None:
        self._inner = inner
        self._recorder = recorder
        self._recorder.before_close = self._note_halted
        self._names = names
        self._sent: list[tuple[str, Parameters]] = []
        self._waiting: int | None = None
        self._config: dict[str, Scalar] = {}
        self._started = 0.0
        self._notes_evaluations = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def records_by(self, recorder: Recorder) -> bool:
        """Say whether ``recorder`` records this strategy."""
        return self._recorder is recorder

    def close(self, error: str | None = None) -> None:
        """End the record now instead of at the end of the process; ``error`` says why the run failed, if it did."""
        self._recorder.close(error)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Open the record and delegate.

        Raises
        ------
        RecordError
            If the folder already holds a record or cannot be written.
        """
        self._recorder.open()
        with self._noting():
            parameters = self._inner.initialize_parameters(client_manager)
        if self._recorder.resumes and parameters is not None:
            self._recorder.final = view_tensors(parameters.tensors, self._names)
        return parameters

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Delegate, and note who is sent which model."""
        self._recorder.open()
        # If the last round never came to be aggregated, this is when it shows.
        self._note_halted()
        with self._noting():
            instructions = self._inner.configure_fit(server_round, parameters, client_manager)
        self._started = time.time()
        self._sent = [(_node(proxy), ins.parameters) for proxy, ins in instructions]
        self._config = {}
        self._waiting = None
        if instructions:
            self._recorder.of_run(getattr(instructions[0][0], "run_id", None))
            self._config = dict(instructions[0][1].config)
            for proxy, ins in instructions:
                if dict(ins.config) != self._config:
                    # The round has what its first message held.
                    self._recorder.note(Others("train", "sent", (_node(proxy),), dict(ins.config)))
            self._waiting = server_round
            self._foretell(instructions[0][1].parameters, len(instructions))
        return instructions

    def _foretell(self, parameters: Parameters, sampled: int) -> None:
        # What cannot be read is no reason to stop the run. The recording says so when the round is over.
        with suppress(Exception):
            self._recorder.foretell(view_tensors(parameters.tensors, self._names), sampled)

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Note the results before the inner strategy may change them, and delegate."""
        self._waiting = None
        self._note(server_round, results, failures)
        with self._noting():
            parameters, metrics = self._inner.aggregate_fit(server_round, results, failures)
        if parameters is not None:
            with self._recorder.containing(f"the model after round {server_round}: "):
                self._recorder.final = view_tensors(parameters.tensors, self._names)
        return parameters, metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Delegate, and note what is sent."""
        with self._noting():
            instructions = self._inner.configure_evaluate(server_round, parameters, client_manager)
        if self._notes_evaluations:
            with self._recorder.containing():
                self._note_evaluations(instructions)
        return instructions

    def _note_evaluations(self, instructions: Sequence[tuple[ClientProxy, EvaluateIns]]) -> None:
        recorded: dict[int, bool] = {}
        for proxy, ins in instructions:
            if ins.config:
                self._recorder.note(Others("evaluate", "sent", (_node(proxy),), dict(ins.config)))
            sent = id(ins.parameters)
            model = view_tensors(ins.parameters.tensors, self._names)
            if sent not in recorded:
                final = self._recorder.final
                recorded[sent] = not model or (final is not None and identical(model, final))
            if not recorded[sent]:
                self._recorder.leave_out("evaluate", "sent", arrays=model)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Note the results before the inner strategy may change them, and delegate."""
        if self._notes_evaluations:
            with self._recorder.containing():
                for proxy, result in results:
                    values: dict[str, Scalar] = {"loss": result.loss, "num_examples": result.num_examples}
                    for name, value in result.metrics.items():
                        values[f"metrics.{name}" if name in values else name] = value
                    self._recorder.note(Others("evaluate", "reply", (_node(proxy),), values))
                for failure in failures:
                    if isinstance(failure, tuple):
                        node, reason = _node(failure[0]), f"status {failure[1].status.code.value}"
                    else:
                        node, reason = "unknown", str(failure)
                    self._recorder.note(Others("evaluate", "reply", (node,), reason=short(reason)))
        with self._noting():
            return self._inner.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Delegate."""
        with self._noting():
            return self._inner.evaluate(server_round, parameters)

    def _note_halted(self) -> None:
        """Note a round that was configured and never came to be aggregated: it left the model as it was."""
        if self._waiting is not None:
            number = self._waiting
            self._waiting = None
            reason = "the round ended without an aggregate"
            if self._recorder.run_error:
                reason = UNFINISHED
            self._note(number, [], [], reason)

    def _note(
        self,
        server_round: int,
        results: Results,
        failures: Failures,
        reason: str = "no reply before the round was closed",
    ) -> None:
        """Hand the round over; ``reason`` is why a node without a reply has none."""
        with self._recorder.containing(f"round {server_round}: "):
            exchange = self._exchange(server_round, results, failures, reason)
            if not results:
                self._recorder.final = exchange.common
            self._recorder.put(exchange)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note an error of the inner strategy, which will most likely end the run, and let it pass."""
        try:
            yield
        except BaseException as cause:
            self._recorder.run_error = f"the strategy raised {type(cause).__name__}: {cause}"
            raise

    def _exchange(self, server_round: int, results: Results, failures: Failures, reason: str) -> Exchange:
        """Assemble the round.

        Raises
        ------
        ValueError
            If the sent model cannot be read, or the results do not fit the view.
        """
        sent = self._find_sent_models()
        common = next(iter(sent.values()), None)
        replies = self._replies(sent, results, failures, reason)
        arrays = [reply.arrays for reply in replies if reply.status == "ok" and reply.arrays is not None]
        aggregate = None
        if self._recorder.view == "aggregate":
            aggregate = _only_aggregate(arrays)
            replies = [replace(reply, arrays=None) for reply in replies]
        elif _is_secagg(results):
            raise ValueError("the replies of all clients are one and the same sum: use view='aggregate' under SecAgg+")
        for index, reply in enumerate(replies):
            received = sent.get(reply.node, common)
            if received is not common:
                replies[index] = replace(reply, received=received)
        # Flower counts from one again in a run that goes on with another; the number that clients are sent counts on.
        number = self._config.get("server-round")
        if not isinstance(number, int):
            number = server_round
        return Exchange(
            number=number,
            common=common,
            replies=replies,
            aggregate=aggregate,
            config=self._config,
            mean="legacy",
            started=self._started,
            ended=time.time(),
        )

    def _find_sent_models(self) -> dict[str, Arrays]:
        """Return the model that each node was sent; nodes that were sent the same parameters share one view."""
        views: dict[int, Arrays] = {}
        sent = {}
        for node, parameters in self._sent:
            if id(parameters) not in views:
                # Flower hands one object to all clients; what a strategy makes for one client alone is another.
                views[id(parameters)] = view_tensors(parameters.tensors, self._names)
            sent[node] = views[id(parameters)]
        return sent

    def _replies(self, sent: Iterable[str], results: Results, failures: Failures, reason: str) -> list[Reply]:
        """Return a reply for each node: first those with a result, then the failed ones, then the silent ones."""
        replies = [self._reply(_node(proxy), result, "ok") for proxy, result in results]
        for failure in failures:
            # A client that answered with a status other than OK; all else are exceptions.
            if isinstance(failure, tuple):
                proxy, result = failure
                replies.append(self._reply(_node(proxy), result, "failed"))
        answered = {reply.node for reply in replies}
        silent = [node for node in sent if node not in answered]
        return replies + self._make_unanswered(silent, failures, reason)

    def _reply(self, node: str, result: FitRes, status: Status) -> Reply:
        reason = ""
        if status != "ok":
            reason = f"status {result.status.code.value}: {result.status.message}"
        arrays: Arrays | None = None
        try:
            arrays = view_tensors(result.parameters.tensors, self._names) or None
        except Exception as cause:
            # Whatever it is, it is about this client's reply alone.
            status, reason = "failed", f"arrays could not be read: {cause}"
        return Reply(node, status, arrays, result.num_examples, dict(result.metrics), reason)

    def _make_unanswered(self, nodes: list[str], failures: Sequence[object], reason: str) -> list[Reply]:
        """Tell failed from missing nodes: legacy failures are exceptions that carry no node id."""
        # They may be long, and all stand beside each node.
        errors = [short(str(failure)) for failure in failures if isinstance(failure, BaseException)]
        # SecAgg+ counts one client's failure in several stages, and that of a client whose reply is in the sum.
        if self._recorder.view == "individual" and len(errors) == len(nodes):
            either = short("; or ".join(errors))
            return [Reply(node, "failed", reason=either) for node in nodes]
        if errors:
            reason = short(f"{reason}; errors from unknown nodes: {'; '.join(dict.fromkeys(errors))}")
        return [Reply(node, "missing", reason=reason) for node in nodes]


def _node(proxy: ClientProxy) -> str:
    return str(getattr(proxy, "node_id", proxy.cid))


def _only_aggregate(arrays: list[Arrays]) -> Arrays | None:
    """Return the aggregate that SecAgg+ hands to the strategy once per client."""
    if not arrays:
        return None
    if not all(identical(arrays[0], other) for other in arrays):
        raise ValueError("expected the same aggregate for every client, as SecAgg+ gives it; is SecAgg+ on?")
    return arrays[0]


def _is_secagg(results: Results) -> bool:
    """Say whether SecAgg+ handed its sum to the strategy in the place of each reply.

    It hands over one and the same object. What clients send comes to be an object each, even if they send the same.
    """
    return len(results) > 1 and all(result.parameters is results[0][1].parameters for _, result in results)
