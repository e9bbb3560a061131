"""The contract engine behind a worker thread, for tests of the scheduler's own thread."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future

from contract_engine import ContractEngine

from tandem.core.batch import Batch, EngineLimits, SequenceSpec, StepResult


class WorkerEngine:
    """Finishes batches in order on its own thread. ``hold`` stops it between steps, ``die`` breaks it."""

    def __init__(self, limits: EngineLimits, *, constant_token: int | None = None) -> None:
        self.limits = limits
        self.inner = ContractEngine(limits, eager=False, constant_token=constant_token)
        self.callers: set[int] = set()
        self._lock = threading.Lock()
        self._tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._may_run = threading.Event()
        self._may_run.set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def open_sequence(self, slot: int, spec: SequenceSpec) -> None:
        self.callers.add(threading.get_ident())
        with self._lock:
            self.inner.open_sequence(slot, spec)

    def close_sequence(self, slot: int) -> None:
        self.callers.add(threading.get_ident())
        with self._lock:
            self.inner.close_sequence(slot)

    def submit(self, batch: Batch) -> Future[StepResult]:
        self.callers.add(threading.get_ident())
        with self._lock:
            future = self.inner.submit(batch)
        self._tickets.put(True)
        return future

    def shutdown(self) -> None:
        self._tickets.put(False)
        self._may_run.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        self.inner.shutdown()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def hold(self) -> None:
        self._may_run.clear()

    def go_on(self) -> None:
        self._may_run.set()

    def die(self, failure: BaseException) -> None:
        """The next step ends with ``failure``."""
        self._failure = failure

    def _work(self) -> None:
        while self._tickets.get():
            self._may_run.wait()
            with self._lock:
                if not self.inner.pending:
                    continue
                if self._failure is not None:
                    self.inner.pending.popleft().future.set_exception(self._failure)
                    continue
                self.inner.finish_oldest()
