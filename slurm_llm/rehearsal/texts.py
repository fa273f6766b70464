"""One text being written: what a client asked for, when the text ends, what is sent when; knows no ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Client(Protocol):
    """Whoever asked for a text."""

    def send(self, text: str) -> None:
        """Take one more token."""

    def finish(self, text: str, reason: str, stop_text: str | None) -> None:
        """Take the last token's text, if one is still to come, and why the text ends."""

    def fail(self, message: str) -> None:
        """Learn that no text comes."""

    def is_gone(self) -> bool:
        """Whether the client does not wait any more."""


@dataclass
class Request:
    """A text to write and what has been written of it."""

    request_id: str
    prompt: bytes
    client: Client
    max_tokens: int = 16
    stop_texts: tuple[str, ...] = ()
    text: str = ""
    sent: int = 0
    cancelled: bool = False
    slot: int = -1

    def take(self, token: int) -> bool:
        """Add a token and tell the client; True when the text has ended."""
        self.text += chr(token)
        for stop_text in self.stop_texts:
            at = self.text.find(stop_text)
            if at >= 0:
                self.client.finish(self.text[self.sent : at], "stop", stop_text)
                return True
        if len(self.text) >= self.max_tokens:
            self.client.finish(self.text[self.sent :], "length", None)
            return True
        safe = len(self.text) - self._held_back()
        self.client.send(self.text[self.sent : safe])
        self.sent = max(safe, self.sent)
        return False

    def end_early(self) -> None:
        """Tell the client that its text was cancelled, with what there is."""
        self.client.finish(self.text[self.sent :], "cancelled", None)

    def _held_back(self) -> int:
        """Length of the text's end that may turn out to begin a stop text."""
        lengths = (
            length
            for stop_text in self.stop_texts
            for length in range(1, len(stop_text))
            if self.text.endswith(stop_text[:length])
        )
        return max(lengths, default=0)
