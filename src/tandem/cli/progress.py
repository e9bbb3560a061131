"""ProgressSink on a terminal: a bar with rate and time left; elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tandem.core.plan import format_bytes
from tandem.core.progress import ProgressSink

_LINE_INTERVAL_S = 5.0
_TELL_INTERVAL_S = 0.3


def progress_for(console: Console) -> ProgressSink:
    return TerminalProgress(console) if console.is_terminal else LineProgress(console)


class TerminalProgress:
    """A rich bar that disappears when it is done, leaving one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._summary = _Summary()

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        self._stop()
        self._summary = _Summary(label, done_bytes)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=total_bytes, completed=done_bytes)
        self._bar.start()

    def advance(self, count_bytes: int) -> None:
        self._summary.advance(count_bytes)
        if self._bar is not None:
            self._bar.update(self._task, advance=count_bytes)

    def finish(self) -> None:
        self._stop()
        self._console.print(str(self._summary), markup=False)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class LineProgress:
    """For logs: a line every few seconds and one at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total_bytes = 0
        self._summary = _Summary()
        self._last_line = 0.0

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        self._total_bytes = total_bytes
        self._summary = _Summary(label, done_bytes)
        self._last_line = time.monotonic()

    def advance(self, count_bytes: int) -> None:
        self._summary.advance(count_bytes)
        now = time.monotonic()
        if now - self._last_line >= _LINE_INTERVAL_S and self._total_bytes:
            self._last_line = now
            share = self._summary.done_bytes / self._total_bytes
            self._console.print(f"{self._summary} ({share:.0%})", markup=False)

    def finish(self) -> None:
        self._console.print(str(self._summary), markup=False)


class ToldProgress:
    """Passes on to ``inner``, and says in words how far it is, a few times a second at most."""

    def __init__(self, inner: ProgressSink, tell: Callable[[str], None]) -> None:
        self._inner = inner
        self._tell = tell
        self._label = ""
        self._total_bytes = self._done_bytes = 0
        self._last_told = 0.0

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        self._inner.start(label, total_bytes, done_bytes)
        self._label, self._total_bytes, self._done_bytes = label, total_bytes, done_bytes
        self._say()

    def advance(self, count_bytes: int) -> None:
        self._inner.advance(count_bytes)
        self._done_bytes += count_bytes
        if time.monotonic() - self._last_told >= _TELL_INTERVAL_S:
            self._say()

    def finish(self) -> None:
        self._inner.finish()
        self._say()

    def _say(self) -> None:
        self._last_told = time.monotonic()
        done, total = format_bytes(self._done_bytes), format_bytes(self._total_bytes)
        self._tell(f"{self._label}: {done} of {total}")


class _Summary:
    def __init__(self, label: str = "", resumed_bytes: int = 0) -> None:
        self.label = label
        self.done_bytes = resumed_bytes
        self._resumed_bytes = resumed_bytes
        self._started = time.monotonic()

    def advance(self, count_bytes: int) -> None:
        self.done_bytes += count_bytes

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-3)
        rate = (self.done_bytes - self._resumed_bytes) / seconds
        resumed = f", resumed at {format_bytes(self._resumed_bytes)}" if self._resumed_bytes else ""
        size = format_bytes(self.done_bytes)
        return f"{self.label}: {size} in {seconds:.1f} s, {format_bytes(rate)}/s{resumed}"
