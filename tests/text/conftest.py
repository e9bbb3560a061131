"""Models for the text room's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import text_toy as toy

from tandem.text.bundle import TextBundle


def _bundle(tmp_path_factory: pytest.TempPathFactory, name: str, template: str) -> TextBundle:
    return TextBundle.from_folder(toy.write_folder(tmp_path_factory.mktemp(name), template))


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> TextBundle:
    return _bundle(tmp_path_factory, "chatml", toy.CHATML)


@pytest.fixture(scope="session")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> TextBundle:
    return _bundle(tmp_path_factory, "llama3", toy.LLAMA3)


@pytest.fixture(scope="session")
def glm(tmp_path_factory: pytest.TempPathFactory) -> TextBundle:
    return _bundle(tmp_path_factory, "glm", toy.GLM)


@pytest.fixture(scope="session")
def demo(demo_gguf: Path) -> TextBundle:
    return TextBundle.from_gguf(demo_gguf)
