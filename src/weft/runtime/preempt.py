"""Told to stop: SIGTERM comes when a job is preempted, halted or made smaller, and SIGKILL after its grace.

`on_preempt(save)` runs `save` and exits; `stopping()` only tells the loop, which then ends at a point of its own
choice. Python runs handlers in the main thread, between two instructions and never inside a C call: a function may
meet a model in the middle of an update, a loop that asks `stopping()` never does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

EXIT = 128 + signal.SIGTERM
LEAVING_SECONDS = 20.0
"""What `finally` blocks, exit functions and other threads may take once the functions have run."""

Function = TypeVar("Function", bound=Callable[[], object])


def on_preempt(save: Function) -> Function:
    """Run `save()` when the task is told to stop, then exit with 143; a decorator, too.

    Functions run in the order of registration, all of them, whatever one raises; SystemExit gives another exit
    code. A second SIGTERM changes nothing. Another handler of SIGTERM is replaced. Forked children behave as if it
    had never been called. RuntimeError outside the main thread, where Python allows no handlers.
    """
    if not callable(save):
        raise TypeError(f"weft.on_preempt takes a function, not {save!r}: weft.on_preempt(save), without ()")
    _order.install("weft.on_preempt()")
    _order.functions.append(save)
    return save


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """`with weft.stopping() as asked:` where `asked()` is true once the task was told to stop.

    The block is not interrupted. When it is left after all, the functions of `on_preempt` run, if there are any,
    and the process exits with 143: its work is not finished.
    """
    _order.install("weft.stopping()")
    with uninterrupted():
        try:
            yield asked
        except Exception:
            if not _order.asked or _order.held > 1:
                raise
            _show_exception()  # often for the same reason: data loaders were told to stop as well


def asked() -> bool:
    """Whether the task was told to stop, and goes on only to end where it likes."""
    return _order.asked


@contextmanager
def uninterrupted() -> Iterator[None]:
    """The functions of `on_preempt` wait for the end of the block: they may want the lock that it holds."""
    if threading.current_thread() is not threading.main_thread():
        yield  # nothing is interrupted here
        return
    _order.held += 1
    try:
        yield
    finally:
        _order.held = max(_order.held - 1, 0)  # a forked child has begun anew at 0
        if _order.asked and not _order.held:
            _order.obey()


class Order:
    """The order to stop: whether it has come, and what to do then."""

    def __init__(self) -> None:
        self.functions: list[Callable[[], object]] = []
        self.asked = False
        self.held = 0
        self._leaving = False
        self._before: Any = None
        self._fork = threading.local()

    def install(self, caller: str) -> None:
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            raise RuntimeError(
                f"{caller} in thread {thread.name}: only the main thread handles signals; call it there"
            )
        if signal.getsignal(signal.SIGTERM) != self._told:
            self._before = signal.signal(signal.SIGTERM, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self.held:
            self.obey()

    def obey(self) -> None:
        """Run the functions, once, and exit."""
        if self._leaving:
            return
        self._leaving = True
        if callable(signal.getsignal(signal.SIGCHLD)):
            # Data loaders are told to stop with us; torch's handler would raise in the middle of a save.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        codes: list[Any] = []
        for function in self.functions:
            try:
                function()
            except SystemExit as leave:
                codes.append(leave.code)
            except BaseException:
                _show_exception()
        code = codes[0] if codes else EXIT
        _be_sure(0 if code is None else code & 0xFF if isinstance(code, int) else 1)
        raise SystemExit(code)

    # A child has the handler until it takes it back. A signal in between would be lost, so it has to wait.

    def before_fork(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._told:
            self._fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after_fork(self) -> None:
        if not hasattr(self._fork, "mask"):
            return
        main = threading.current_thread() is threading.main_thread()
        self.held += main
        signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)
        self.held -= main
        del self._fork.mask
        if (
            main and self.asked and not self.held
        ):  # Python drops what is raised here: once more, a little later
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()

    def after_fork_in_child(self) -> None:
        self.functions.clear()
        self.asked = self._leaving = False
        self.held = 0
        if signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
        self.after_fork()


def _be_sure(code: int) -> None:
    """The exit is an exception, so that `finally` and atexit do their work; but a script may catch it, a thread hang."""

    def end() -> None:
        time.sleep(LEAVING_SECONDS)
        os._exit(code)

    try:
        threading.Thread(target=end, daemon=True, name="weft-leaving").start()
    except RuntimeError:  # on the way out already
        pass


def _show_exception() -> None:
    import traceback

    traceback.print_exc()


_order = Order()
os.register_at_fork(
    before=_order.before_fork,
    after_in_parent=_order.after_fork,
    after_in_child=_order.after_fork_in_child,
)
