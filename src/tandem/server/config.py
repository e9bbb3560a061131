"""What the server is told: where to listen, whom to answer, and its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tandem.core.errors import ServeError
from tandem.core.plan import MIB

MAX_KEEPALIVE_S = 15.0
"""Proxies commonly drop a silent connection after 60 s and some clients after 20 s."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Resolved once by the command line. ``check`` refuses combinations that are unsafe or cannot work."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 = any free port."""
    api_keys: tuple[str, ...] = ()
    insecure: bool = False
    """Allow a bind beyond loopback without a key."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API; ``*`` = any. Credentials are never allowed."""
    allowed_hosts: tuple[str, ...] = ()
    """Further Host names accepted on a loopback bind without keys (a reverse proxy's name)."""
    max_body_bytes: int = 8 * MIB
    max_choices: int = 16
    """Largest ``n``, and most prompts of one completions request."""
    thinking_budget: int | None = None
    """Reasoning tokens after which the answer begins, where a request names no budget; None = no limit."""
    keepalive_s: float = 10.0
    """Longest silence of a stream before a comment line is sent."""
    stall_timeout_s: float = 120.0
    """An engine that has work but finishes no step for so long counts as stuck."""
    drain_timeout_s: float = 0.0
    """How long running requests may go on after SIGINT or SIGTERM."""
    exit_on_fault: bool = False
    """End the process when the engine fails, so that a supervisor restarts it."""

    @property
    def is_loopback(self) -> bool:
        return is_loopback_host(self.host)

    def check(self) -> None:
        """Raises ServeError for an open bind without a key and for values out of range."""
        if not self.is_loopback and not self.api_keys and not self.insecure:
            raise ServeError(
                f"Refusing to listen on {self.host}: everyone who reaches this machine could use the model",
                found="no API key",
                remedy="set TANDEM_API_KEY, or --insecure if the network is trusted",
            )
        if not 0 <= self.port <= 65535:
            raise ServeError(
                "The port must be between 0 and 65535", found=str(self.port), remedy="--port 8000"
            )
        if self.thinking_budget is not None and self.thinking_budget < 0:
            raise ServeError("The thinking budget must be 0 or more", found=str(self.thinking_budget))
        if not 0 < self.keepalive_s <= MAX_KEEPALIVE_S:
            raise ServeError(
                f"The keep-alive interval must be above 0 and at most {MAX_KEEPALIVE_S:.0f} s",
                found=f"{self.keepalive_s:g} s",
            )
        if not self.stall_timeout_s > 0:
            raise ServeError("The stall timeout must be above 0 s", found=f"{self.stall_timeout_s:g} s")
        if self.max_choices < 1:
            raise ServeError("At least one choice must be allowed", found=str(self.max_choices))
        if self.max_body_bytes < 1024:
            raise ServeError("The body limit must be at least 1024 bytes", found=str(self.max_body_bytes))


def is_loopback_host(host: str) -> bool:
    """Whether binding to this name or address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
