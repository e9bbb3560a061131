"""``tandem chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.console import notices, write_json
from tandem.cli.flags import (
    ApiKeyFlag,
    CacheFormatFlag,
    CardsFlag,
    ChunkFlag,
    ContextFlag,
    ModelFlag,
    ThreadsFlag,
    UrlFlag,
    load_options,
)
from tandem.core.errors import SettingsError, TandemError

if TYPE_CHECKING:
    from tandem.cli.client import Piece
    from tandem.cli.endpoint import Endpoint

_HELP = """/reset        forget the conversation (the system message stays)
/system TEXT  set the system message and forget the conversation
/save FILE    write the conversation as JSON
/help         this list
/quit         end (so does Ctrl-D)
Ctrl-C stops an answer; at the prompt it ends the chat. A line that ends in \\ goes on in the next."""


def chat(
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Longest answer in tokens.")] = 1024,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="0 = always the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same answers.")] = None,
    url: UrlFlag = None,
    api_key: ApiKeyFlag = None,
    model: ModelFlag = None,
    cards: CardsFlag = None,
    context: ContextFlag = None,
    kv: CacheFormatFlag = None,
    chunk: ChunkFlag = None,
    threads: ThreadsFlag = None,
) -> None:
    """Talk to a model in the terminal; `/help` lists what can be typed there.

    `tandem chat`

    `tandem chat --url http://127.0.0.1:8000`

    `tandem chat --model ./my-model --cards cpu:2`
    """
    from tandem.cli.endpoint import open_endpoint

    options = load_options(
        {
            "model": model,
            "cards": cards,
            "context_tokens": context,
            "cache_format": kv,
            "chunk_tokens": chunk,
            "threads": threads,
        }
    ).options
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    fields = {name: value for name, value in sampling.items() if value is not None}
    with open_endpoint(url, api_key, options) as endpoint:
        if sys.stdin.isatty():
            notices().print(f"{endpoint.model} is listening; /help for help, /quit to end.", markup=False)
        _Conversation(endpoint, fields, system).run()


@dataclass(slots=True)
class _Conversation:
    endpoint: Endpoint
    fields: dict[str, Any]
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Until /quit or the end of the input."""
        if sys.stdin.isatty():
            import readline  # noqa: F401 - line editing and history for input()
        while (text := self._read()) is not None:
            if text.startswith("/"):
                if text.strip() == "/quit":
                    return
                self._command(text)
            elif text.strip():
                self._turn(text)

    def _read(self) -> str | None:
        """One message, continued while lines end in a backslash; None at the end of the input."""
        lines: list[str] = []
        while True:
            prompt = ("… " if lines else "> ") if sys.stdin.isatty() else ""
            try:
                line = input(prompt)
            except EOFError:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        argument = argument.strip()
        if name == "/reset":
            self.messages.clear()
            self._say("The conversation is forgotten.")
        elif name == "/system":
            self.system = argument or None
            self.messages.clear()
            self._say("The system message is set." if argument else "There is no system message.")
        elif name == "/save" and argument:
            self._save(Path(argument).expanduser())
        else:
            self._say(_HELP)

    def _save(self, path: Path) -> None:
        try:
            write_json(path, self._all_messages())
        except SettingsError as error:
            self._say(str(error))
        else:
            self._say(f"Saved {len(self.messages)} messages to {path}.")

    def _turn(self, text: str) -> None:
        """Ask and print; an answer stopped by Ctrl-C stays in the conversation as far as it came."""
        from tandem.cli.client import Answer

        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        body = {"model": self.endpoint.model, "messages": self._all_messages(), **self.fields}
        stream = self.endpoint.client.stream("/v1/chat/completions", body, answer)
        try:
            self._print(stream)
        except KeyboardInterrupt:
            stream.close()
            self._say("\n(stopped)")
        except TandemError as error:
            self.messages.pop()
            self._say(f"\n{error}")
            return
        self.messages.append({"role": "assistant", "content": answer.content})
        if sys.stdout.isatty():
            self._say(_speed(answer.timings))

    def _print(self, stream: Iterator[Piece]) -> None:
        console = notices()
        in_reasoning = False
        for piece in stream:
            if piece.reasoning:
                in_reasoning = True
                console.print(piece.reasoning, end="", style="dim", markup=False, soft_wrap=True)
            if piece.content:
                if in_reasoning:
                    console.print("\n")
                    in_reasoning = False
                print(piece.content, end="", flush=True)
        print()

    def _all_messages(self) -> list[dict[str, str]]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.messages]

    def _say(self, text: str) -> None:
        if text:
            notices().print(text, style="dim", markup=False)


def _speed(timings: dict[str, Any]) -> str:
    """Tokens a second, as the server measured them."""
    if not timings.get("predicted_ms"):
        return ""
    tokens, seconds = timings["predicted_n"], timings["predicted_ms"] / 1000
    first_ms = timings.get("queue_ms", 0) + timings["prompt_ms"]
    cached = f", {timings['cached_n']} from the cache" if timings.get("cached_n") else ""
    return (
        f"{tokens} tokens, {tokens / seconds:.1f} a second; first after {first_ms:.0f} ms "
        f"({timings['prompt_n']} prompt tokens computed{cached})"
    )
