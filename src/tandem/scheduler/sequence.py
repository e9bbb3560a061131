"""One request on its way through the scheduler: its tokens, its place, its counts."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.core.batch import MAX_ROWS_PER_RUN, Run, RunKind, SequenceSpec
from tandem.core.protocols import OutputSink
from tandem.core.requests import GenerationRequest, Timings, Usage
from tandem.scheduler.prefix import Node


class Sequence:
    """Mutable; owned by the scheduler's thread once it has left the queue.

    ::

        0                    scheduled               len(history)
        |====== computed ====|~~~~ to be computed ~~~|   (the last token of a full history is sampled)
                     └ in flight: the last ``in_flight`` runs, not returned yet

    A resumed sequence is a sequence whose ``scheduled`` went back to 0: the prompt is prefilled again and
    the generated tokens follow as ROWS, as in its first life.
    """

    __slots__ = (
        "admitted_at",
        "branch_tokens",
        "chunk_keys",
        "ended",
        "first_token_at",
        "history",
        "in_flight",
        "last_turn",
        "leaving",
        "node",
        "order",
        "pages",
        "prompt_cached",
        "prompt_seen",
        "repeats",
        "request",
        "restore_checkpoint",
        "scheduled",
        "sink",
        "slot",
        "submitted_at",
    )

    def __init__(self, request: GenerationRequest, sink: OutputSink, now: float) -> None:
        self.request = request
        self.sink = sink
        self.history = list(request.prompt_tokens)
        self.order = 0
        """Arrival: a lower number is older."""
        self.submitted_at = now
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.prompt_seen = 0
        """Prompt tokens computed or reused so far; what a resume repeats is not counted again."""
        self.prompt_cached = 0
        self.repeats = 0
        """Length of the run of equal tokens at the end of the output."""
        self.chunk_keys: list[int] = []
        self.ended = False
        """The sink has had, or is about to have, its ``on_finish``."""
        self._leave()

    def _leave(self) -> None:
        self.slot = -1
        self.pages: tuple[int, ...] = ()
        self.scheduled = 0
        self.in_flight = 0
        self.last_turn = (-1, 0)
        """Step of its latest run, and the run's place in it: who was served first goes first again."""
        self.leaving = False
        """Slot and pages are to be given back as soon as nothing is in flight."""
        self.node: Node | None = None
        """Deepest published chunk this sequence holds; None = takes no part in prefix reuse."""
        self.restore_checkpoint: int | None = None
        self.branch_tokens = 0
        """Where the published prompts this one shares pages with go another way; 0 = unknown."""

    def leave(self) -> None:
        """Out of the running, its slot and pages given back; ready to be resumed from the start."""
        assert self.in_flight == 0, "a sequence leaves with a batch in flight"
        self._leave()

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_tokens)

    @property
    def generated(self) -> int:
        return len(self.history) - self.prompt_length

    @property
    def in_prompt(self) -> bool:
        """Its next run is a prompt chunk."""
        return self.scheduled < self.prompt_length

    @property
    def backlog(self) -> int:
        """Known tokens that have not been scheduled yet; 0 while it waits for a sample."""
        return len(self.history) - self.scheduled

    def spec(self) -> SequenceSpec:
        return SequenceSpec(
            sampling=self.request.sampling,
            history=tuple(self.history),
            prompt_length=self.prompt_length,
            stop_token_ids=self.request.stop_token_ids,
            constraint=self.request.constraint,
        )

    def take_run(self, turn: tuple[int, int], rows: int, save_checkpoint: int | None = None) -> Run:
        """The next ``rows`` tokens as a run, now in flight. Pages have been secured by the caller."""
        end = self.scheduled + rows
        in_prompt = self.in_prompt
        assert 1 <= rows <= self.backlog, f"{rows} rows of a backlog of {self.backlog}"
        assert end <= self.prompt_length if in_prompt else rows <= MAX_ROWS_PER_RUN
        run = Run(
            slot=self.slot,
            kind=RunKind.PREFILL if in_prompt else RunKind.ROWS,
            tokens=tuple(self.history[self.scheduled : end]),
            start=self.scheduled,
            pages=self.pages,
            sample=end == len(self.history),
            restore_checkpoint=self.restore_checkpoint,
            save_checkpoint=save_checkpoint,
        )
        self.restore_checkpoint = None
        self.scheduled = end
        self.last_turn = turn
        self.in_flight += 1
        return run

    def count_prompt(self, end: int, *, cached: bool) -> int:
        """Prompt tokens up to ``end`` are there; returns how many of them for the first time."""
        new = max(0, min(end, self.prompt_length) - self.prompt_seen)
        self.prompt_seen += new
        if cached:
            self.prompt_cached += new
        return new

    def append(self, token: int, now: float) -> None:
        """One generated token."""
        if self.first_token_at is None:
            self.first_token_at = now
        repeated = self.generated > 0 and self.history[-1] == token
        self.repeats = self.repeats + 1 if repeated else 1
        self.history.append(token)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_length,
            completion_tokens=self.generated,
            cached_tokens=self.prompt_cached,
        )

    def timings(self, now: float) -> Timings:
        """Up to ``now``; what has not begun is 0."""
        started = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        return Timings(
            queue_ms=(started - self.submitted_at) * 1e3,
            prompt_ms=(first - started) * 1e3,
            predicted_ms=(now - first) * 1e3,
            prompt_n=self.prompt_seen - self.prompt_cached,
            predicted_n=self.generated,
            cached_n=self.prompt_cached,
        )


def least_recent_first(sequences: Iterator[Sequence]) -> list[Sequence]:
    """Whose turn it is: the longest unserved first, the older one among equals."""
    return sorted(sequences, key=lambda sequence: (sequence.last_turn, sequence.order))
