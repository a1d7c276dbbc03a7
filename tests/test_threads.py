"""Calls on threads of their own."""

from __future__ import annotations

import threading

import pytest

from ptxgym.threads import started


def test_what_a_call_returns_or_raises_arrives() -> None:
    asked, answer = threading.Event(), started(threading.current_thread, "ptxgym-test")
    thread = answer.result(10)
    assert (thread.name, thread.daemon) == ("ptxgym-test", True) and thread is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        started(lambda: 1 / 0, "ptxgym-test").result(10)
    waiting = started(asked.wait, "ptxgym-test")
    assert not waiting.cancel() and not waiting.done(), "who leaves does not end it"
    asked.set()
    assert waiting.result(10) is True
