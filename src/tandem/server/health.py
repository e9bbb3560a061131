"""The one truth about whether a request would be answered now."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem import __version__
from tandem.api import Service
from tandem.core.errors import NotReadyError
from tandem.core.log import get_logger
from tandem.server.config import ServerConfig
from tandem.server.generation import Generation

_log = get_logger("server")

Status = Literal["ok", "loading", "stalled", "failed", "stopping"]
LOADING_RETRY_S = 2


@dataclass(frozen=True, slots=True)
class Health:
    status: Status
    progress: float = 1.0
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


@dataclass(slots=True)
class HealthMonitor:
    """Judges the service, and ends open requests with an error when its engine is stuck or broken."""

    service: Service
    config: ServerConfig
    open_generations: set[Generation] = field(default_factory=set)

    def check(self) -> Health:
        state = self.service.state
        if state.phase != "ready":
            return Health(state.phase, state.progress, state.detail)
        age_s = self.service.stats().last_step_age_s
        if age_s > self.config.stall_timeout_s:
            return Health("stalled", detail=f"the engine has finished no step for {age_s:.0f} s")
        return Health("ok")

    def require_ready(self) -> None:
        """Raises NotReadyError unless a request can be answered."""
        health = self.check()
        if health.status == "loading":
            raise NotReadyError(
                f"The model is still loading ({health.progress:.0%})", retry_after_s=LOADING_RETRY_S
            )
        if health.status == "stopping":
            raise NotReadyError("The server is shutting down")
        if not health.is_ok:
            raise NotReadyError(f"The engine is {health.status}: {health.detail}")

    def report(self) -> dict[str, Any]:
        """The body of ``/health``."""
        health = self.check()
        stats = self.service.stats()
        return {
            "status": health.status,
            "model": self._model_name(),
            "progress": round(health.progress, 4),
            "detail": health.detail,
            "running": stats.running,
            "waiting": stats.waiting,
            "pages": {
                "total": stats.total_pages,
                "free": stats.free_pages,
                "cached": stats.cached_pages,
                "live": stats.live_pages,
            },
            "uptime_s": round(time.time() - self.service.started_at, 1),
            "version": __version__,
        }

    def _model_name(self) -> str:
        """The served id; while there is none, what was asked for."""
        try:
            return self.service.card.id
        except NotReadyError:
            return self.service.model_id

    async def watch(self) -> None:
        """Runs for the server's life. Silence is the one answer a waiting client must never get."""
        interval_s = min(1.0, self.config.stall_timeout_s / 4)
        was_ok = True
        while True:
            await asyncio.sleep(interval_s)
            health = self.check()
            broken = health.status in {"stalled", "failed"}
            if broken and was_ok:
                _log.error("engine %s: %s", health.status, health.detail)
            was_ok = not broken
            if broken:
                error = NotReadyError(f"The engine is {health.status}: {health.detail}")
                for generation in tuple(self.open_generations):
                    generation.post(error)
