"""The record of what a server observed: write, read, check, project. FORMAT.md describes it on disk."""

from fedattack.record.check import CheckReport, check_record
from fedattack.record.exchange import Exchange, Reply
from fedattack.record.format import Parameter
from fedattack.record.keep import Keep
from fedattack.record.project import project_record, records_in, rewrite_record, shrink_record
from fedattack.record.reader import Observation, Record, Round
from fedattack.record.writer import RecordWriter

__all__ = [
    "CheckReport",
    "Exchange",
    "Keep",
    "Observation",
    "Parameter",
    "Record",
    "RecordWriter",
    "Reply",
    "Round",
    "check_record",
    "project_record",
    "records_in",
    "rewrite_record",
    "shrink_record",
]
