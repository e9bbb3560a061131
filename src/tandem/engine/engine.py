"""The step engine: N stages in a row, fed by the scheduler's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from tandem.core.batch import Batch, EngineLimits, SequenceSpec, StepResult
from tandem.core.errors import EngineFault, RequestError
from tandem.core.log import get_logger
from tandem.core.plan import MemoryTerm
from tandem.engine.images import ImagePool
from tandem.engine.stages import Stage
from tandem.engine.step import CloseSlot, OpenSlot, Pass, StepBuilder, StepInFlight
from tandem.sampling.sequence import SequenceSampler

log = get_logger("engine")

JOIN_TIMEOUT_S = 1.0


class Engine:
    """Implements ``core.protocols.StepEngine``. Built by ``build_engine``.

    The first exception in any worker is the engine's fault: every batch in flight ends with it, every
    later call raises it, all workers end.
    """

    def __init__(
        self, stages: Sequence[Stage], limits: EngineLimits, *, vocab_size: int, pinned: bool, threads: int
    ) -> None:
        self._limits = limits
        self._vocab_size = vocab_size
        self._stages = tuple(stages)
        self._images = ImagePool(limits, pinned=pinned)
        self._builder = StepBuilder(limits, self._images)
        self._lock = threading.Lock()
        self._in_flight: set[StepInFlight] = set()
        self._fault: EngineFault | None = None
        for stage, following in zip(self._stages, [*self._stages[1:], None], strict=True):
            stage.start(self, following, threads)

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    def memory(self) -> tuple[MemoryTerm, ...]:
        """What is allocated on every card; empty after ``shutdown``."""
        return tuple(term for stage in self._stages for term in stage.memory())

    def open_sequence(self, slot: int, spec: SequenceSpec) -> None:
        """See StepEngine. Raises EngineFault after a fault, RequestError for tokens the model does not know.

        The latter would otherwise be an index error in the embedding, and with it the end of every sequence.
        """
        self._require_running()
        lowest, highest = min(spec.history), max(spec.history)
        if lowest < 0 or highest >= self._vocab_size:
            raise RequestError(
                "The prompt holds a token that the model does not know",
                param="prompt",
                found=f"token {highest if lowest >= 0 else lowest}, vocabulary of {self._vocab_size}",
            )
        self._builder.forget(slot)
        self._stages[0].put(OpenSlot(slot, SequenceSampler(spec)))

    def close_sequence(self, slot: int) -> None:
        """See StepEngine. After a fault there is nothing left to close."""
        if self._fault is None:
            self._stages[0].put(CloseSlot(slot))

    def submit(self, batch: Batch) -> Future[StepResult]:
        """See StepEngine. Raises EngineFault after a fault, ValueError for a batch it cannot execute."""
        step = StepInFlight(batch.step)
        with self._lock:
            self._require_running()
            passes = self._builder.passes(step, batch)
            if passes:
                self._in_flight.add(step)
        if not passes:
            step.future.set_result(step.result())
        for item in passes:
            self._stages[0].put(item)
        return step.future

    def shutdown(self) -> None:
        """See StepEngine. Returns within about a second even if a worker is stuck in its layers."""
        self._end(EngineFault("The engine was shut down"))
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for stage in self._stages:
            if not stage.join(max(0.0, deadline - time.monotonic())):
                log.warning("stage %d on %s did not stop in time", stage.index, stage.plan.card.name)
        self._stages = ()

    def finished(self, item: Pass) -> None:
        """A stage's report (last stage's thread): ``item`` is done, and with it perhaps its step."""
        self._images.release(item.image)
        if not item.ends_step:
            return
        with self._lock:
            alive = item.step in self._in_flight
            self._in_flight.discard(item.step)
        if alive:
            item.step.future.set_result(item.step.result())

    def failed(self, stage: Stage, cause: BaseException) -> None:
        """A stage's report (its thread): the worker has ended with ``cause``."""
        fault = EngineFault(
            f"Stage {stage.index} (layers {stage.plan.first_layer} to {stage.plan.end_layer - 1}) on "
            f"{stage.plan.card.name} failed: {type(cause).__name__}: {cause}"
        )
        fault.__cause__ = cause
        log.error("%s", fault, exc_info=cause)
        self._end(fault)

    def _end(self, fault: EngineFault) -> None:
        """Refuse further work, end what is in flight with ``fault``, tell the workers to stop."""
        with self._lock:
            if self._fault is not None:
                return
            self._fault = fault
            cut_off, self._in_flight = self._in_flight, set()
        for stage in self._stages:
            stage.stop()
        for step in cut_off:
            step.future.set_exception(fault)

    def _require_running(self) -> None:
        if self._fault is not None:
            raise EngineFault(self._fault.message) from self._fault
