"""Let a NumPyClient serve Flower's Message-API strategies.

Flower 1.41 refuses the combination: a Message-API strategy sends the records ``arrays`` and ``config``, a NumPyClient
expects ``fitins.parameters`` and ``fitins.config``. This client mod rewrites one into the other and passes legacy
messages on unchanged, so the same client serves both generations and SecAgg+, which is legacy only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code
from flwr.common.constant import ErrorCode

_ARRAYS = "arrays"
_CONFIG = "config"
_METRICS = "metrics"
_EMPTY = "_empty"


@dataclass(frozen=True)
class _Legacy:
    """Names of the legacy records of one message type."""

    ins: str
    res: str


_TYPES: Mapping[str, _Legacy] = {
    MessageType.TRAIN: _Legacy("fitins", "fitres"),
    MessageType.EVALUATE: _Legacy("evaluateins", "evaluateres"),
}


def numpy_client_bridge(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: ``ClientApp(client_fn=..., mods=[numpy_client_bridge])``.

    Array names survive the round trip if the client returns as many arrays as it got. The example count arrives as
    ``num-examples``, with the numeric metrics; metrics of other types are in a ConfigRecord, because a MetricRecord
    holds only numbers.
    """
    legacy = _TYPES.get(message.metadata.message_type)
    if legacy is None or not message.has_content() or _ARRAYS not in message.content.array_records:
        return call_next(message, context)
    # Legacy parameters have no names: the order of the arrays is what both generations have in common.
    received = message.content.array_records[_ARRAYS]
    names = list(received)
    message.content = RecordDict(
        {
            f"{legacy.ins}.parameters": ArrayRecord({str(i): received[name] for i, name in enumerate(names)}),
            f"{legacy.ins}.config": ConfigRecord(dict(message.content.config_records.get(_CONFIG) or {})),
        }
    )
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    status = reply.content.config_records[f"{legacy.res}.status"]
    if status["code"] != Code.OK.value:
        # The Message API has no status beside a content: a client that cannot (one without `evaluate`, say) fails.
        reason = ": ".join(str(part) for part in ("status", status["code"], status["message"]))
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
    reply.content = _to_message_api(reply.content, legacy, names)
    return reply


def _to_message_api(content: RecordDict, legacy: _Legacy, names: list[str]) -> RecordDict:
    numbers: dict[str, Any] = {"num-examples": content.metric_records[f"{legacy.res}.num_examples"]["num_examples"]}
    if f"{legacy.res}.loss" in content.metric_records:
        numbers["loss"] = content.metric_records[f"{legacy.res}.loss"]["loss"]
    others: dict[str, Any] = {}
    for name, value in content.config_records[f"{legacy.res}.metrics"].items():
        # True and False count as whole numbers in Python, and are no metrics.
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        (numbers if numeric else others)[name] = value
    translated = RecordDict({_METRICS: MetricRecord(numbers)})
    if f"{legacy.res}.parameters" in content.array_records:
        sent = [array for key, array in content.array_records[f"{legacy.res}.parameters"].items() if key != _EMPTY]
        # A client that returns fewer or more sends no such model: its arrays have no known names.
        keys = names if len(names) == len(sent) else [str(index) for index in range(len(sent))]
        translated[_ARRAYS] = ArrayRecord(dict(zip(keys, sent, strict=True)))
    if others:
        translated[_CONFIG] = ConfigRecord(others)
    return translated
