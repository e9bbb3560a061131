"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from tandem.text.scan import find_first, held_suffix


class StopMatcher:
    """Passes text on up to the first stop string.

    Held back is only a suffix that is a proper prefix of a stop. The earliest match wins, wherever pieces
    begin and end; nothing from the match on is ever passed.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = find_first(text, self._stops)
        if found is not None:
            self._held, self.stopped = "", True
            return text[: found[0]]
        keep = len(text) - held_suffix(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Text held back that can no longer become a stop."""
        held, self._held = self._held, ""
        return held
