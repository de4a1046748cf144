"""Observe a whole ServerApp at its Grid, whatever generation of Flower it is written for."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedattack.observe._noticing import notice_messages
from fedattack.observe._recorder import Recorder
from fedattack.observe._tracker import RoundTracker


class PassingGrid(Grid):
    """A Grid that passes every call on to another; subclasses override what they need."""

    def __init__(self, inner: Grid) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        # By ``__dict__``: while the object is being copied or unpickled there is no ``_inner`` yet, and asking for it
        # would come back here.
        return getattr(self.__dict__["_inner"], name)

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._inner.set_run(run)

    @property
    def run(self) -> Any:
        """Pass on."""
        return self._inner.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Pass on."""
        return self._inner.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on."""
        return self._inner.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Pass on."""
        return self._inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Pass on."""
        return self._inner.send_and_receive(messages, timeout=timeout)


class RecordingGrid(PassingGrid):
    """A Grid that notes the training messages and their replies."""

    def __init__(self, inner: Grid, tracker: RoundTracker) -> None:
        super().__init__(inner)
        self._tracker = tracker

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note the messages, then push them."""
        # A list: what may be a generator can be gone through once.
        messages = list(messages)
        self._tracker.sent(messages)
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and note them."""
        replies = list(self._inner.pull_messages(message_ids))
        self._tracker.replied(replies)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Note the messages, send them, note the replies."""
        messages = list(messages)
        self._tracker.sent(messages)
        replies = list(self._inner.send_and_receive(messages, timeout=timeout))
        # Whether the round is over shows in what the server does next: it may send in parts, and Flower's legacy server
        # sends one message per call from several threads.
        self._tracker.replied(replies)
        return replies


class ObservedServerApp(ServerApp):
    """A ServerApp that records what it sees, and otherwise behaves like the app that it wraps.

    It works for the Message API and for a legacy ``server_fn``, because it watches the Grid that both use::

        app = ObservedServerApp(app, "records/%Y%m%d-%H%M%S")

    Parameters
    ----------
    inner
        The project's own ServerApp.
    out
        Folder of the record; ``strftime`` directives are filled in when the run starts.
    names
        Parameter names, in order, for projects whose arrays have none (legacy NumPyClients).
    options
        ``view``, ``protocol``, ``server``, ``seed``, ``facts`` and ``key`` of :class:`fedattack.record.RecordWriter`.
        ``every`` and ``clients`` of :class:`fedattack.record.Keep`, to record less. In the aggregate view each round is
        reduced to its mean before it is written. Without ``view`` it records sums if the app runs Flower's SecAgg+,
        else single replies.

    Notes
    -----
    A Grid does not show the model after the last round unless the app sends it out for evaluation. Under SecAgg+
    messages are masked there, so the strategy is observed to which the workflow hands its sums.
    """

    def __init__(
        self, inner: ServerApp, out: Path | str, *, names: Sequence[str] | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._inner = inner
        self._out = out
        self._names = names
        self._options = options

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the inner app under observation.

        Raises
        ------
        RecordError
            Before the run starts, if the folder holds a record already or cannot be written.
        """
        recorder = Recorder(self._out, **self._options)
        recorder.open()
        recorder.of_run(context.run_id)
        tracker = RoundTracker(recorder, self._names)
        try:
            with notice_messages(tracker, self._names, may_choose=self._options.get("view") != "individual"):
                self._inner(RecordingGrid(grid, tracker), context)
        except BaseException as cause:
            tracker.close(error=f"the run ended with {type(cause).__name__}: {cause}")
            raise
        tracker.close()
