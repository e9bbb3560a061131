"""Fixtures of the server's tests: a stub server, made to order."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from harness import Opens, StubServer, stub_server
from stub_engine import Script


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def opens(tmp_path: Path) -> Opens:
    """``async with opens({"key in the prompt": script}, template=…, config=…) as server:``"""

    def make(
        scripts: dict[str, Script] | None = None, **options: Any
    ) -> AbstractAsyncContextManager[StubServer]:
        return stub_server(tmp_path, scripts or {}, **options)

    return make


@pytest.fixture
async def server(opens: Opens) -> AsyncIterator[StubServer]:
    """Says "Hello!" to everybody."""
    async with contextlib.AsyncExitStack() as stack:
        yield await stack.enter_async_context(opens())
