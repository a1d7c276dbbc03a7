"""The record of an untrusted process, parsed."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ptxgym.plan.events import MAX_ERRORS, MAX_LINES, MAX_PARAMETERS, parse_record

START = b'{"event":"start","confined":true}\n'
LAUNCH = {
    "event": "launch", "kernel": "k", "grid": [1, 1, 1], "block": [1, 1, 1], "dynamic_smem_bytes": 0, "cluster": [],
    "cooperative": False, "programmatic": False, "stream": 0, "params": [],
}  # fmt: skip
END = b'{"event":"end"}\n'


def test_a_whole_record() -> None:
    recording = parse_record(START + b'{"event":"free","name":"workspace0"}\n' + END)
    assert recording.started and recording.ended and recording.malformed is None
    assert len(recording.ordered) == 1


def test_a_failure_after_a_line_that_was_cut_short() -> None:
    failure = b'{"event":"failure","status":"plan_error","code":"plan.host_hang","message":"m"}\n'
    recording = parse_record(START + b'{"event":"laun\n' + failure)
    assert recording.failed is not None and recording.failed.code == "plan.host_hang"


def test_wrong_types_unknown_fields_and_codes_are_malformed() -> None:
    for line in (
        {"event": "free", "name": 3},
        {"event": "free", "name": "a", "more": 1},
        {"event": "memset", "target": -1, "value": 0, "width_bytes": 1, "count": 1, "stream": 0},
        {"event": "upload", "target": 1, "data": "abc", "stream": 0, "host_waits": False},
        {"event": "failure", "status": "ok", "code": "plan.x", "message": ""},
        {"event": "failure", "status": "plan_error", "code": "../x", "message": ""},
        {"event": "failure", "status": "plan_error", "code": "plan.x", "message": "\x1b[2J"},
        {"event": "api_error", "call": "a", "error": "b", "why": "c\nd"},
        {"event": "function", "kernel": "k", "attribute": "max_dynamic_smem_bytes", "value": 1 << 31},
        {"event": "free", "name": "a" * 4097},
        {**LAUNCH, "cluster": [1, 1, 1, 1]},
        {**LAUNCH, "grid": [1, 1]},
        {**LAUNCH, "params": [""] * (MAX_PARAMETERS + 1)},
        {"event": "stream", "index": 2, "blocking": True},
        {"event": "stream", "index": 128 * 4, "blocking": True},
        {"event": "host_wait", "what": "everything", "index": 0},
        {"event": "other"},
    ):
        assert parse_record(START + json.dumps(line).encode() + b"\n" + END).malformed is not None, line


def test_a_launch_is_accepted() -> None:
    assert parse_record(START + json.dumps(LAUNCH).encode() + b"\n" + END).malformed is None


def test_only_the_first_failed_calls_are_kept() -> None:
    line = b'{"event":"api_error","call":"a","error":"b","why":"c"}\n'
    assert len(parse_record(START + line * (2 * MAX_ERRORS) + END).errors) == MAX_ERRORS


def test_too_many_lines() -> None:
    assert parse_record(START * (MAX_LINES - 1)).malformed is None
    assert parse_record(START * (MAX_LINES + 1) + END).malformed is not None


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed(data: bytes) -> None:
    parse_record(data)
