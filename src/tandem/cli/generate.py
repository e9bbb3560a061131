"""``tandem generate``: one prompt, one answer on standard output."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tandem.cli.console import notices, print_json
from tandem.cli.flags import (
    ApiKeyFlag,
    CacheFormatFlag,
    CardsFlag,
    ChunkFlag,
    ContextFlag,
    JsonFlag,
    ModelFlag,
    ThreadsFlag,
    UrlFlag,
    load_options,
)
from tandem.core.errors import SettingsError


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; `-` or nothing = read it from standard input.", show_default=False),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens to generate at most.")] = 512,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="0 = always the likeliest token.")
    ] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Nucleus sampling.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this; repeatable.")] = None,
    json: JsonFlag = False,
    url: UrlFlag = None,
    api_key: ApiKeyFlag = None,
    model: ModelFlag = None,
    cards: CardsFlag = None,
    context: ContextFlag = None,
    kv: CacheFormatFlag = None,
    chunk: ChunkFlag = None,
    threads: ThreadsFlag = None,
) -> None:
    """Answer one prompt.

    The text streams to standard output; `--json` prints one object with usage and timings instead.

    `tandem generate "Name three rivers."`

    `git diff | tandem generate --system "Write a commit message." --url http://127.0.0.1:8000`

    `tandem generate --raw "Once upon a time" -n 40 -t 0 --json`
    """
    from tandem.cli.client import Answer
    from tandem.cli.endpoint import open_endpoint

    text = _prompt(prompt)
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
    sampling = {"temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop or None}
    body: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    body["max_tokens"] = max_tokens
    if raw:
        path, body["prompt"] = "/v1/completions", text
    else:
        roles = [("system", system), ("user", text)]
        messages = [{"role": role, "content": content} for role, content in roles if content is not None]
        path, body["messages"] = "/v1/chat/completions", messages

    answer = Answer()
    with open_endpoint(url, api_key, options) as endpoint:
        for piece in endpoint.client.stream(path, {"model": endpoint.model, **body}, answer):
            if not json:
                print(piece.content, end="", flush=True)
        name = endpoint.model
    if not json:
        print()
        if answer.reasoning and not answer.content:
            notices().print(
                f"Only reasoning was written ({answer.finish_reason}); more --max-tokens leave room for an "
                "answer, --json shows the reasoning",
                style="yellow",
                soft_wrap=True,
            )
        return
    print_json(
        {
            "model": name,
            "content": answer.content,
            "reasoning": answer.reasoning,
            "finish_reason": answer.finish_reason,
            "usage": answer.usage,
            "timings": answer.timings,
        }
    )


def _prompt(argument: str | None) -> str:
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise SettingsError("No prompt", remedy='tandem generate "…", or pipe the prompt in')
    text = sys.stdin.read()
    if not text.strip():
        raise SettingsError("The prompt on standard input is empty", remedy="pipe some text in")
    return text
