"""What the routes share: one object made by ``create_app``, passed on, never global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread

from tandem.api import Service
from tandem.server.config import ServerConfig
from tandem.server.health import HealthMonitor
from tandem.server.metrics import Metrics

MAX_PREPARING = 8
"""Requests read, rendered and tokenized at once; more of them would only slow the engine's threads."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerContext:
    service: Service
    config: ServerConfig
    metrics: Metrics
    monitor: HealthMonitor
    preparing: anyio.CapacityLimiter

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Run slow work on a worker thread, so that streams go on meanwhile."""
        return await anyio.to_thread.run_sync(work, limiter=self.preparing, abandon_on_cancel=True)
