"""Notice, while a ServerApp runs, what its messages do not show: by what it weights, and that it starts SecAgg+."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedattack.observe._tracker import RoundTracker, count_keys_of
from fedattack.observe.legacy import ObservedLegacyStrategy


@contextmanager
def notice_messages(tracker: RoundTracker, names: Sequence[str] | None, *, may_choose: bool) -> Iterator[None]:
    """Tell a tracker what is noticed.

    Parameters
    ----------
    tracker
        Of the ServerApp's messages.
    names
        Parameter names, in order.
    may_choose
        Whether sums are recorded where the app runs SecAgg+. Otherwise the tracker ends the recording.
    """

    def weights(strategy: Any, *_: Any, **__: Any) -> None:
        with tracker.recorder.containing():
            tracker.count_keys = count_keys_of(strategy)

    def secures(_: Any, grid: Any, context: Any) -> None:
        with tracker.recorder.containing():
            _observe_sums(tracker, names, context)

    with ExitStack() as stack:
        # At the class, since the app makes its strategy when it runs; and before the call, since its rounds are within
        # it.
        stack.enter_context(call_before(Strategy, "start", weights))
        workflow = _workflow()
        if may_choose and workflow is not None:
            stack.enter_context(call_before(workflow, "__call__", secures))
        yield


def _workflow() -> type | None:
    try:
        from flwr.server.workflow import SecAggPlusWorkflow
    except ImportError:  # a version of Flower without it
        return None
    return SecAggPlusWorkflow


@contextmanager
def call_before(cls: type, method: str, tell: Callable[..., None]) -> Iterator[None]:
    """Call a function before each call of a method, with the same arguments."""
    original = getattr(cls, method)

    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    # On the base class: a subclass whose own method calls it by ``super()`` is noticed, too.
    setattr(cls, method, told)
    try:
        yield
    finally:
        setattr(cls, method, original)


def _observe_sums(tracker: RoundTracker, names: Sequence[str] | None, context: Any) -> None:
    """Put an observer around the strategy that a SecAgg+ workflow hands its sums to, unless it is there."""
    recorder, strategy = tracker.recorder, context.strategy
    if isinstance(strategy, ObservedLegacyStrategy) and strategy.records_by(recorder):
        return
    # What is open was sent before SecAgg+ began.
    tracker.finish()
    tracker.aside = True
    # It fails where rounds of single replies are recorded already: one record has one view.
    recorder.see_sums()
    context.strategy = ObservedLegacyStrategy.sharing(strategy, recorder, names)
