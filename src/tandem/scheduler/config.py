"""Every knob of the scheduler, with its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.core.errors import SettingsError

PrefixReuse = Literal["exact", "fast", "off"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How requests wait, run and end. Raises SettingsError for a value that cannot be used."""

    max_waiting: int = 128
    """Requests that may wait beyond those that find a slot at once; one more is refused with 429."""
    max_wait_s: float | None = 600.0
    """A request that has not started after so long ends with the same error; None = waits for ever."""
    max_prefill_chunks_per_step: int = 1
    """Prompt chunks computed beside the decode rows of one step: higher favours new requests, lower
    favours the pace of running streams."""
    prefix_reuse: PrefixReuse = "exact"
    """``exact`` shares prompt pages in a way that gives the bits of a cold run; ``off`` shares nothing.
    ``fast`` also shares pages and state that decoding made: approximate, as decoding rounds otherwise."""
    loop_guard_tokens: int = 1024
    """A sequence that emits the same token so often in a row ends with an error; 0 = off. A broken engine
    repeats one token for ever; honest text (a ruler of dashes, "repeat yes 500 times") stays far below."""
    stall_timeout_s: float = 120.0
    """A step that takes longer is a fault of the engine. Must exceed the slowest honest step."""
    shutdown_grace_s: float = 5.0
    """How long a shutdown waits for the scheduler's own thread beyond the drain time."""

    def __post_init__(self) -> None:
        self._require("max_waiting", self.max_waiting >= 0, "0 or more")
        self._require("max_wait_s", self.max_wait_s is None or self.max_wait_s > 0, "above 0, or none")
        self._require("max_prefill_chunks_per_step", self.max_prefill_chunks_per_step >= 1, "1 or more")
        self._require("prefix_reuse", self.prefix_reuse in ("exact", "fast", "off"), "exact, fast or off")
        self._require(
            "loop_guard_tokens", self.loop_guard_tokens == 0 or self.loop_guard_tokens >= 2, "0, or 2 or more"
        )
        self._require("stall_timeout_s", self.stall_timeout_s > 0, "above 0")
        self._require("shutdown_grace_s", self.shutdown_grace_s >= 0, "0 or more")

    def _require(self, name: str, holds: bool, range_text: str) -> None:
        if not holds:
            raise SettingsError(
                f"{name} cannot be used",
                found=str(getattr(self, name)),
                remedy=f"a value that is {range_text}",
            )
