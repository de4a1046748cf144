"""Observe a Message-API strategy by composition."""

import inspect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedattack.observe._recorder import Recorder
from fedattack.observe._tracker import RoundTracker, count_keys_of


class ObservedStrategy(Strategy):
    """A strategy that records what it sees, and otherwise behaves like the strategy that it wraps.

    One line in the server file::

        strategy = ObservedStrategy(FedAvg(), "records/%Y%m%d-%H%M%S")

    Wrap the outermost strategy. The record then holds what arrived, before any server-side change.

    With ``view="aggregate"`` each round is reduced, before it is written, to what a secure-aggregation server would
    have seen: the example-weighted mean and who took part. No single client's model reaches the disk.

    Parameters
    ----------
    inner
        The project's own strategy.
    out
        Folder of the record; ``strftime`` directives are filled in when the run starts.
    names
        Names of the model's arrays, in order, for projects whose arrays have none.
    options
        ``view``, ``protocol``, ``server``, ``seed``, ``facts`` and ``key`` of :class:`fedattack.record.RecordWriter`.
        Also ``every`` and ``clients`` of :class:`fedattack.record.Keep`, to record less.

    Raises
    ------
    ConfigError
        If what is to be kept is out of range.
    """

    def __init__(self, inner: Strategy, out: Path | str, *, names: Sequence[str] | None = None, **options: Any) -> None:
        self._inner = inner
        # Bound now: while it runs, the inner strategy's own names lead to this object.
        self._configure = inner.configure_train
        self._aggregate = inner.aggregate_train
        self._configure_evaluate = inner.configure_evaluate
        self._aggregate_evaluate = inner.aggregate_evaluate
        self._tracker = RoundTracker(Recorder(out, **options), names, count_keys_of(inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the inner strategy's own ``start`` under observation.

        Raises
        ------
        TypeError
            If these are not its arguments. There is then no record yet, and the corrected call makes it.
        RecordError
            Before the run starts, if the folder already holds a record or cannot be written.
        """
        bound = inspect.signature(self._inner.start).bind(*args, **kwargs)
        bound.apply_defaults()
        recorder = self._tracker.recorder
        recorder.open()
        rounds = bound.arguments.get("num_rounds")
        recorder.rounds = rounds if isinstance(rounds, int) else None
        if recorder.resumes:
            # If no round is left, this run ends in the model of the stopped run.
            self._tracker.ended_in(bound.arguments["initial_arrays"])
        # The inner strategy runs itself, so that its own ``start`` finds its own state. Only the methods that get the
        # messages are shadowed meanwhile.
        attributes = vars(self._inner)
        before = dict(attributes)
        names = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
        shadows = {name: getattr(self, name) for name in names}
        attributes.update(shadows)
        try:
            result = self._inner.start(*args, **kwargs)
        except BaseException as cause:
            self._tracker.close(error=f"the run ended with {type(cause).__name__}: {cause}")
            raise
        finally:
            for name in shadows:
                attributes.pop(name)
                if name in before:
                    attributes[name] = before[name]
        self._tracker.close()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, and note the messages."""
        # A Grid of somebody else's may know no run.
        with suppress(Exception):
            self._tracker.recorder.of_run(grid.run.run_id)
        messages = list(self._configure(server_round, arrays, config, grid))
        self._tracker.sent(messages, server_round)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Note the replies before the inner strategy may change them, and delegate."""
        # A list: what may be a generator can be gone through once.
        replies = list(replies)
        self._tracker.replied(replies)
        self._tracker.finish()
        arrays, metrics = self._aggregate(server_round, replies)
        if arrays is not None:
            self._tracker.ended_in(arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, and note the messages."""
        messages = list(self._configure_evaluate(server_round, arrays, config, grid))
        self._tracker.sent(messages, server_round)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Note the replies before the inner strategy may change them, and delegate."""
        replies = list(replies)
        self._tracker.replied(replies)
        return self._aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Delegate."""
        self._inner.summary()
