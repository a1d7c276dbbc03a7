"""Calls on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def started(function: Callable[[], T], name: str) -> Future[T]:
    """Call a function on a daemon thread: one that waits for a verdict does not keep the process from ending.

    Args:
        function: What to call.
        name: Of the thread.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody who leaves can cancel it

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
