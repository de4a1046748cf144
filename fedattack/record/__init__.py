"""The record of what a server observed: write, read, check, project. FORMAT.md describes it on disk."""

from fedattack.record.check import CheckReport, check_record
from fedattack.record.format import Parameter
from fedattack.record.project import project_record, records_in
from fedattack.record.reader import Observation, Record, Round
from fedattack.record.writer import Exchange, RecordWriter, Reply

__all__ = [
    "CheckReport",
    "Exchange",
    "Observation",
    "Parameter",
    "Record",
    "RecordWriter",
    "Reply",
    "Round",
    "check_record",
    "project_record",
    "records_in",
]
