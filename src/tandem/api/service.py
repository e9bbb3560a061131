"""What a server or a command holds: one model, its text side and its scheduler.

A ``Service`` exists from the first moment of a start, while the model is still loading, so that ``/health``
can tell the truth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tandem.core.errors import NotReadyError
from tandem.core.protocols import OutputSink, RequestScheduler
from tandem.core.requests import GenerationRequest, SchedulerStats

if TYPE_CHECKING:
    from tandem.text.bundle import TextBundle

Phase = Literal["loading", "ready", "failed", "stopping"]


@dataclass(frozen=True, slots=True)
class LoadState:
    """Where the service stands. ``progress`` runs from 0 to 1 while loading."""

    phase: Phase
    progress: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What ``/v1/models`` tells of the served model."""

    id: str
    created: int
    context_tokens: int
    aliases: tuple[str, ...] = ()
    owned_by: str = "tandem"
    bytes_per_token: int = 0
    """Weight bytes that decoding one token reads; 0 = unknown."""
    details: dict[str, str] = field(default_factory=dict)
    """Architecture, quantization, cards, cache format … for people to read."""

    def answers_to(self, name: str) -> bool:
        return name == self.id or name in self.aliases


class Service:
    """One served model. Methods are thread-safe; before ``attach`` every request is refused with 503."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.started_at = time.time()
        self._state = LoadState("loading")
        self._card: ModelCard | None = None
        self._text: TextBundle | None = None
        self._scheduler: RequestScheduler | None = None

    @property
    def state(self) -> LoadState:
        """The load state; an engine fault since then shows as ``failed``."""
        if self._state.phase == "ready" and self._scheduler is not None:
            fault = self._scheduler.fault()
            if fault is not None:
                return LoadState("failed", 1.0, fault)
        return self._state

    def report(self, state: LoadState) -> None:
        """The loader's progress, or the reason a load failed."""
        self._state = state

    def attach(self, card: ModelCard, text: TextBundle, scheduler: RequestScheduler) -> None:
        """The model is loaded: start its scheduler and take requests."""
        scheduler.start()
        self._card, self._text, self._scheduler = card, text, scheduler
        self._state = LoadState("ready", 1.0)

    @property
    def card(self) -> ModelCard:
        self._require_ready()
        assert self._card is not None
        return self._card

    @property
    def text(self) -> TextBundle:
        self._require_ready()
        assert self._text is not None
        return self._text

    @property
    def scheduler(self) -> RequestScheduler:
        self._require_ready()
        assert self._scheduler is not None
        return self._scheduler

    def submit(self, request: GenerationRequest, sink: OutputSink) -> None:
        """Queue one sequence. Raises NotReadyError, QueueFullError or ContextLengthError."""
        self.scheduler.submit(request, sink)

    def cancel(self, request_id: str) -> None:
        if self._scheduler is not None:
            self._scheduler.cancel(request_id)

    def stats(self) -> SchedulerStats:
        """All zeros while loading."""
        return SchedulerStats() if self._scheduler is None else self._scheduler.stats()

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new requests, let running ones end for so long, free the engine. Idempotent."""
        self._state = LoadState("stopping", 1.0, "the server is shutting down")
        if self._scheduler is not None:
            self._scheduler.shutdown(drain_timeout_s)

    def _require_ready(self) -> None:
        state = self.state
        if state.phase == "ready":
            return
        if state.phase == "loading":
            raise NotReadyError(
                f"The model is still loading ({state.progress:.0%}); ask /health", retry_after_s=2
            )
        if state.phase == "stopping":
            raise NotReadyError("The server is shutting down")
        raise NotReadyError(f"The engine has failed: {state.detail}")
