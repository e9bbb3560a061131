"""The thread that owns the scheduler: it sleeps until a step is done, a command comes or a time is up."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from tandem.core.batch import StepResult
from tandem.core.errors import EngineFault, NotReadyError
from tandem.core.log import get_logger
from tandem.core.protocols import OutputSink, StepEngine
from tandem.core.requests import GenerationRequest, SchedulerStats
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.scheduler import StepScheduler

_log = get_logger("scheduler")
_SHUTTING_DOWN = "The server is shutting down"


class Scheduler:
    """The RequestScheduler the api room holds. Every method is thread-safe and, but for ``shutdown``,
    returns at once."""

    def __init__(
        self,
        engine: StepEngine,
        config: SchedulerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._config = SchedulerConfig() if config is None else config
        self._clock = clock
        self._machine = StepScheduler(engine, self._config, clock)
        self._steps: deque[Future[StepResult]] = deque()
        self._cancels: deque[str] = deque()
        self._wake = threading.Event()
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        """When the engine, or this thread's own turn, last made progress; None while there is no work."""
        self._stop_at: float | None = None
        self._fault: str | None = None

    def start(self) -> None:
        """Start the thread; does nothing the second time."""
        with self._lifecycle:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tandem-scheduler", daemon=True)
                self._thread.start()

    def submit(self, request: GenerationRequest, sink: OutputSink) -> None:
        """Queue a request. Raises QueueFullError, ContextLengthError, NotReadyError, RequestError."""
        if self._stop_at is not None:
            raise NotReadyError(_SHUTTING_DOWN)
        fault = self.fault()
        if fault is not None:
            raise NotReadyError(f"The engine has failed: {fault}")
        self._machine.add(request, sink)
        self._wake.set()

    def cancel(self, request_id: str) -> None:
        """End a request, waiting or running; its sink gets CANCELLED. Unknown ids are ignored."""
        self._cancels.append(request_id)
        self._wake.set()

    def queue_position(self, request_id: str) -> int | None:
        """0 = next; None once it runs or has ended."""
        return self._machine.queue.position(request_id)

    def stats(self) -> SchedulerStats:
        return replace(
            self._machine.snapshot,
            waiting=len(self._machine.queue),
            last_step_age_s=self._stuck_for_s(),
        )

    def fault(self) -> str | None:
        """Why the engine cannot go on. Tells of a stuck engine even while it blocks this thread."""
        if self._fault is not None:
            return self._fault
        return self._stall()

    def shutdown(self, drain_timeout_s: float) -> None:
        """Take no more requests, let running ones end for so long, cut off the rest, stop the engine.

        May be called again, and from any thread; the earliest deadline counts. Does not wait when called
        by a sink.
        """
        with self._lifecycle:
            stop_at = self._clock() + max(0.0, drain_timeout_s)
            self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self.start()
        self._wake.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(max(0.0, drain_timeout_s) + self._config.shutdown_grace_s)
        if thread.is_alive():
            _log.error("the scheduler's thread does not end; stopping the engine beside it")
            self._engine.shutdown()

    # The thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._turn()
            except BaseException as error:  # whatever a worker died of: nobody may wait in silence
                self._fail(error)
            if self._may_stop():
                break
            self._wake.wait(self._sleep_s())
        self._cut_off()
        self._busy_since = None
        try:
            self._engine.shutdown()
        except Exception:
            _log.exception("the engine did not shut down cleanly")

    def _turn(self) -> None:
        """Everything that can be done without waiting."""
        if self._fault is not None:
            return
        if self._busy_since is None:
            self._busy_since = self._clock()
        while self._cancels:
            self._machine.cancel(self._cancels.popleft())
        while self._steps and self._steps[0].done():
            self._machine.commit(self._steps.popleft().result())
            self._busy_since = self._clock()
        stall = self._stall()
        if self._steps and stall is not None:
            raise EngineFault(stall)
        self._machine.expire()
        if self._stop_at is not None:
            self._machine.close(_SHUTTING_DOWN, NotReadyError(_SHUTTING_DOWN))
            if self._clock() >= self._stop_at:
                return
        while (batch := self._machine.next_batch()) is not None:
            step = self._engine.submit(batch)
            self._steps.append(step)
            step.add_done_callback(lambda _: self._wake.set())
        if not self._steps:
            self._busy_since = None

    def _fail(self, error: BaseException) -> None:
        """The engine cannot go on: tell everybody, and keep the reason for ``fault``."""
        reason = str(error) or repr(error)
        _log.error("the engine has failed: %s", reason, exc_info=error)
        self._fault = reason
        self._steps.clear()
        self._busy_since = None
        fault = error if isinstance(error, EngineFault) else EngineFault(f"The engine has failed: {reason}")
        self._machine.abort(f"The engine has failed: {reason}", fault)

    def _may_stop(self) -> bool:
        if self._stop_at is None:
            return False
        return self._fault is not None or self._machine.idle or self._clock() >= self._stop_at

    def _cut_off(self) -> None:
        self._machine.abort(_SHUTTING_DOWN, NotReadyError(_SHUTTING_DOWN))

    def _sleep_s(self) -> float | None:
        """How long nothing can happen by itself; None = for ever."""
        if self._fault is not None:
            return None
        times = [self._machine.queue.next_expiry(), self._stop_at]
        if self._steps and self._busy_since is not None:
            times.append(self._busy_since + self._config.stall_timeout_s)
        due = [at for at in times if at is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def _stall(self) -> str | None:
        stuck_s = self._stuck_for_s()
        if stuck_s < self._config.stall_timeout_s:
            return None
        return f"engine stuck: no step finished for {stuck_s:.0f} s"

    def _stuck_for_s(self) -> float:
        since = self._busy_since
        return 0.0 if since is None else max(0.0, self._clock() - since)
