"""Progress on a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from tandem.cli.progress import LineProgress, TerminalProgress, ToldProgress, progress_for


def consoles() -> tuple[Console, Console]:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    return terminal, Console(file=io.StringIO(), width=100)


def test_the_right_kind_is_chosen() -> None:
    terminal, log = consoles()
    assert isinstance(progress_for(terminal), TerminalProgress)
    assert isinstance(progress_for(log), LineProgress)


def test_both_end_with_one_line_that_counts_only_new_bytes_for_the_rate() -> None:
    for console in consoles():
        progress = progress_for(console)
        progress.start("model.gguf", 4 << 20, 1 << 20)
        for _ in range(3):
            progress.advance(1 << 20)
        progress.finish()
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert "model.gguf: 4.00 MiB in" in text
        assert "resumed at 1.00 MiB" in text


def test_a_restart_begins_anew() -> None:
    terminal, _ = consoles()
    progress = TerminalProgress(terminal)
    progress.start("model.gguf", 1000, 0)
    progress.advance(500)
    progress.start("model.gguf", 1000, 0)
    progress.advance(1000)
    progress.finish()
    assert isinstance(terminal.file, io.StringIO)
    assert "model.gguf: 1000 B in" in terminal.file.getvalue()


def test_health_can_tell_how_far_a_download_is() -> None:
    _, log = consoles()
    told: list[str] = []
    progress = ToldProgress(LineProgress(log), told.append)
    progress.start("model.gguf", 4 << 20, 1 << 20)
    progress.advance(3 << 20)
    progress.finish()
    assert told == ["model.gguf: 1.00 MiB of 4.00 MiB", "model.gguf: 4.00 MiB of 4.00 MiB"]
    assert isinstance(log.file, io.StringIO)
    assert "4.00 MiB in" in log.file.getvalue()
