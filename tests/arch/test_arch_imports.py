"""Gates on imports: rooms one way only, and no torch where it is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
heavy = {"torch", "numba", "transformers", "triton"} & sys.modules.keys()
sys.exit(f"loads {', '.join(sorted(heavy))}" if heavy else 0)
"""


@pytest.mark.parametrize("room", ["core", "planner", "recipes", "text", "scheduler", "server", "cli"])
def test_the_room_imports_without_torch(room: str) -> None:
    if not (ROOT / "src" / "tandem" / room).is_dir():
        pytest.fail(f"room {room} is gone: change this list")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, f"tandem.{room}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rooms_import_one_way() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
