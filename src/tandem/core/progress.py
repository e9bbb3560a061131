"""How a long job tells how far it is; the CLI draws it, tests count it."""

from __future__ import annotations

from typing import Protocol


class ProgressSink(Protocol):
    """One job after another: ``start``, any number of ``advance``, ``finish``. Called from one thread."""

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        """``done_bytes`` were there before (a resumed download): they count towards no rate."""
        ...

    def advance(self, count_bytes: int) -> None: ...

    def finish(self) -> None: ...


class Silent:
    """Tells nobody."""

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        pass

    def advance(self, count_bytes: int) -> None:
        pass

    def finish(self) -> None:
        pass
