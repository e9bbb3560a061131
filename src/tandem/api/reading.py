"""Weights on their way to a card, and how fast they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tandem.core.log import get_logger
from tandem.core.plan import Plan, StagePlan, format_bytes
from tandem.loader.base import TensorSource
from tandem.loader.safetensors import SafetensorsSource

_log = get_logger("api")

Report = Callable[[float, str], None]
"""Share of the stage's weights that has arrived, and a line for people."""

_WEIGHT_TERMS = ("weights", "embedding", "head")
_EVERY_S = 0.5


@contextmanager
def reading(
    weights: TensorSource, plan: Plan, stage: StagePlan, where: str, report: Report
) -> Iterator[TensorSource]:
    """The source a stage reads from: on a CUDA card one that reads ahead, in parallel, and tells its rate."""
    if stage.card.kind != "cuda" or not isinstance(weights, SafetensorsSource):
        yield weights
        return
    from tandem.engine.build import card_device
    from tandem.loader.device import DeviceSource

    meter = _Meter(planned_weight_bytes(plan, stage), where, report)
    device = card_device(stage.card)
    with DeviceSource(weights, device, end_layer=stage.end_layer, arrived=meter.arrived) as source:
        yield source
    _log.info("read %s: %s", where, meter.sentence())


def planned_weight_bytes(plan: Plan, stage: StagePlan) -> int:
    return sum(
        term.bytes for term in plan.terms if term.card == stage.card.name and term.name in _WEIGHT_TERMS
    )


class _Meter:
    """Counts bytes from any thread; reports at most twice a second."""

    def __init__(self, expected_bytes: int, where: str, report: Report) -> None:
        self._expected = max(expected_bytes, 1)
        self._where = where
        self._report = report
        self._lock = threading.Lock()
        self._begin = self._reported = self._last = time.monotonic()
        self._bytes = 0

    def arrived(self, count: int) -> None:
        now = time.monotonic()
        with self._lock:
            self._bytes += count
            self._last = now
            if now - self._reported < _EVERY_S:
                return
            self._reported = now
        self._report(min(self._bytes / self._expected, 1.0), f"reading {self._where}: {self.sentence()}")

    def sentence(self) -> str:
        """What has come, until the last of it came."""
        seconds = max(self._last - self._begin, 1e-3)
        rate = self._bytes / seconds
        return f"{format_bytes(self._bytes)} in {seconds:.1f} s, {rate / 1e9:.2f} GB/s"
