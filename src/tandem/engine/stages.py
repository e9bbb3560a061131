"""One stage: a worker thread that takes messages in order and runs its layers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import torch

from tandem.core.batch import Run
from tandem.core.plan import MemoryTerm, StagePlan
from tandem.engine.buffers import StageBuffers
from tandem.engine.head import SamplingHead
from tandem.engine.step import CloseSlot, Message, OpenSlot, Pass, PrefillPass, RowsPass
from tandem.engine.transfer import Entrance, HostBuffer, Stopped
from tandem.kernels.jit import use_threads
from tandem.models.base import StageModel

Parcel = tuple[Message, HostBuffer | None]
"""A message and, but for the first stage, the buffer its residual streams lie in."""


class StageOwner(Protocol):
    """What a stage tells the engine; called on the stage's thread."""

    def finished(self, item: Pass) -> None:
        """The last stage is done with a pass."""
        ...

    def failed(self, stage: Stage, cause: BaseException) -> None:
        """The stage's worker ends with this exception."""
        ...


class Stage:
    """Consecutive layers on one card, driven by a thread of their own."""

    def __init__(
        self, index: int, plan: StagePlan, model: StageModel, buffers: StageBuffers, entrance: Entrance | None
    ) -> None:
        self.index = index
        self.plan = plan
        self.model = model
        self.buffers = buffers
        self.entrance = entrance
        self._next: Stage | None = None
        self._head = SamplingHead(model)
        self._inbox: SimpleQueue[Parcel | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._host_read = torch.cuda.Event() if plan.card.kind == "cuda" else None  # type: ignore[no-untyped-call]
        """The card has read all that a pass takes from host memory."""
        self._stream: torch.cuda.Stream | None = None

    def memory(self) -> tuple[MemoryTerm, ...]:
        """What is allocated on the stage's card."""
        card = self.plan.card.name
        terms = [
            MemoryTerm(card, "weights", self.model.weight_bytes),
            MemoryTerm(card, "cache", self.model.cache_bytes),
            MemoryTerm(card, "working", self.model.working_bytes),
            MemoryTerm(card, "layout", self.buffers.nbytes),
        ]
        if self.entrance is not None:
            terms.append(MemoryTerm(card, "transfer", self.entrance.nbytes))
        return tuple(term for term in terms if term.bytes)

    def start(self, owner: StageOwner, next_stage: Stage | None, threads: int) -> None:
        """Start the worker; ``next_stage`` None makes this the last stage, which samples."""
        self._next = next_stage
        self._thread = threading.Thread(
            target=self._run, args=(owner, threads), name=f"tandem-stage-{self.index}", daemon=True
        )
        self._thread.start()

    def put(self, message: Message, buffer: HostBuffer | None = None) -> None:
        self._inbox.put((message, buffer))

    def stop(self) -> None:
        """Ask the worker to end after what it is doing now; what waits in the queue is dropped."""
        self._stopping.set()
        self._inbox.put(None)
        if self.entrance is not None:
            self.entrance.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the worker's end; False if it is still running. From the worker itself: True."""
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, owner: StageOwner, threads: int) -> None:
        # Stages must split their products alike, or the number of stages could show in the last bits.
        use_threads(threads)
        if self.plan.card.kind == "cuda":
            torch.cuda.set_device(self.plan.card.index)
            self._stream = torch.cuda.current_stream()
        try:
            with torch.inference_mode():
                while (parcel := self._inbox.get()) is not None and not self._stopping.is_set():
                    self._handle(*parcel, owner.finished)
        except Stopped:
            pass
        except BaseException as cause:
            owner.failed(self, cause)

    def _handle(self, message: Message, buffer: HostBuffer | None, finished: Callable[[Pass], None]) -> None:
        match message:
            case OpenSlot(slot, sampler):
                self.model.reset_slot(slot)
                if self._next is None:
                    self._head.open(slot, sampler)
                else:
                    self._next.put(message)
            case CloseSlot(slot):
                if self._next is None:
                    self._head.close(slot)
                else:
                    self._next.put(message)
            case RowsPass() | PrefillPass():
                self._pass(message, buffer, finished)

    def _pass(self, item: Pass, buffer: HostBuffer | None, finished: Callable[[Pass], None]) -> None:
        hidden = self._compute(item, buffer)
        if self._next is not None:
            assert self._next.entrance is not None
            sent = self._next.entrance.send(hidden)
            self._next.put(item, sent)
        else:
            self._sample(item, hidden)
        if buffer is not None:
            assert self.entrance is not None
            self._wait_for_host_reads()
            self.entrance.release(buffer)
        if self._next is None:
            self._wait_for_host_reads()  # those of earlier stages came before
            finished(item)

    def _compute(self, item: Pass, buffer: HostBuffer | None) -> torch.Tensor:
        """The pass's residual streams after this stage's layers."""
        model = self.model
        self.buffers.write_pages(item.image, item.page_updates)
        if isinstance(item, RowsPass):
            rows = self.buffers.load_rows(item.image, item.rows, len(item.runs))
            hidden = self._entering(rows.token_ids, buffer)
            self._restore(item.runs)
            hidden = model.forward_rows(hidden, rows)
            self._save(item.runs)
        else:
            chunk = self.buffers.load_prefill(item.image, item.run)
            hidden = self._entering(chunk.token_ids, buffer)
            self._restore((item.run,))
            hidden = model.forward_prefill(hidden, chunk)
            self._save((item.run,))
        return hidden

    def _entering(self, token_ids: torch.Tensor, buffer: HostBuffer | None) -> torch.Tensor:
        if buffer is None:
            hidden = self.model.embed(token_ids)
        else:
            assert self.entrance is not None
            hidden = self.entrance.receive(buffer, token_ids.shape[0])
        if self._host_read is not None:
            self._host_read.record(self._stream)
        return hidden

    def _wait_for_host_reads(self) -> None:
        if self._host_read is not None:
            self._host_read.synchronize()

    def _restore(self, runs: tuple[Run, ...]) -> None:
        for run in runs:
            if run.restore_checkpoint is not None:
                self.model.restore_state(run.slot, run.restore_checkpoint)

    def _save(self, runs: tuple[Run, ...]) -> None:
        for run in runs:
            if run.save_checkpoint is not None:
                self.model.save_state(run.slot, run.save_checkpoint)

    def _sample(self, item: Pass, hidden: torch.Tensor) -> None:
        if isinstance(item, PrefillPass):
            self._head.sample(item.step, (item.run,), (len(item.run.tokens) - 1,), hidden)
            return
        last_rows: list[int] = []
        end = 0
        for run in item.runs:
            end += len(run.tokens)
            last_rows.append(end - 1)
        self._head.sample(item.step, item.runs, last_rows, hidden)
