"""``tandem bench``: how fast a model decodes and reads prompts here, and how near that is to the ceiling."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tandem.cli.console import make_folder, notices, output, print_json, write_json
from tandem.cli.flags import (
    ApiKeyFlag,
    CacheFormatFlag,
    CardsFlag,
    ChunkFlag,
    ContextFlag,
    JsonFlag,
    MaxRunningFlag,
    ModelFlag,
    ThreadsFlag,
    UrlFlag,
    load_options,
)
from tandem.core.errors import SettingsError
from tandem.core.settings import read_environment

if TYPE_CHECKING:
    from tandem.recipes.schema import Recipe


def bench(
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="A long prompt.")] = 1024,
    decode_tokens: Annotated[int, typer.Option("--decode-tokens", min=2, help="Tokens to generate.")] = 64,
    streams: Annotated[int, typer.Option("--streams", min=1, help="Requests at the same time.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repeats; medians are shown.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="Write the record (JSON) to this file.")] = None,
    record_id: Annotated[
        str | None,
        typer.Option(
            "--record", metavar="ID", help="Write the numbers down as a confirmation of this recipe."
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="With --record: the profile that was run.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="With --record: who measured.", show_default="your account")
    ] = None,
    json: JsonFlag = False,
    url: UrlFlag = None,
    api_key: ApiKeyFlag = None,
    model: ModelFlag = None,
    cards: CardsFlag = None,
    context: ContextFlag = None,
    kv: CacheFormatFlag = None,
    chunk: ChunkFlag = None,
    threads: ThreadsFlag = None,
    max_running: MaxRunningFlag = None,
) -> None:
    """Measure decoding, prompt reading, time to the first token, and many streams at once.

    For a model loaded here the table also names the ceiling: the weights' bytes that every token must read,
    over the bandwidth with which this machine reads memory.

    `tandem bench`

    `tandem bench --cards cpu:2 --streams 16 --out record.json`

    `tandem bench --url http://127.0.0.1:8000 --json`

    `tandem bench --record smollm2-135m-demo --by me`
    """
    from tandem.cli.bench_measure import Workload, measure, read_bandwidth
    from tandem.cli.endpoint import open_endpoint
    from tandem.cli.facts import machine_facts, source_commit

    recipe = None if record_id is None else _recipe(record_id, profile)
    records = read_environment().data_dir / "records"
    if out is not None and not out.parent.is_dir():  # said before minutes of measuring, not after
        raise SettingsError(
            f"{out} cannot be written", found=f"no folder {out.parent}", remedy="make it first"
        )
    if out is None and recipe is not None:
        make_folder(records)
    options = load_options(
        {
            "model": model,
            "cards": cards,
            "context_tokens": context,
            "cache_format": kv,
            "chunk_tokens": chunk,
            "threads": threads,
            "max_running": max_running,
        }
    ).options
    workload = Workload(prompt_tokens, decode_tokens, streams, repeats)
    with open_endpoint(url, api_key, options) as endpoint:
        notices().print(f"Measuring {endpoint.model} …", markup=False)
        measurements = measure(endpoint, workload)
        record: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "command": "tandem " + " ".join(sys.argv[1:]),
            "commit": source_commit(),
            "model": endpoint.model,
            "machine": machine_facts() if url is None else None,
            "results": {measurement.name: measurement.as_dict() for measurement in measurements},
        }
        if endpoint.service is not None:
            card = endpoint.service.card
            record["details"] = card.details
            if card.bytes_per_token:
                kind = options.cards[0].kind
                bandwidth = read_bandwidth("cuda:0" if kind == "cuda" else "cpu")
                record["ceiling"] = {
                    "bytes_per_token": card.bytes_per_token,
                    "bandwidth_bytes_per_s": bandwidth,
                    "tokens_per_s": bandwidth / card.bytes_per_token,
                }
    if recipe is not None and out is None:
        # A number in the catalogue needs a record to point to.
        out = records / f"{recipe.id}--{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    if out is not None:
        write_json(out, record)
        notices().print(f"Record written to {out}.", markup=False)
    if recipe is not None and out is not None:
        _confirm(recipe, record, by, profile, out)
    if json:
        print_json(record)
    else:
        _print_table(record)


def _recipe(recipe_id: str, profile: str | None) -> Recipe:
    """Looked up before anything is measured. Raises UnknownRecipeError, or SettingsError for the profile."""
    from tandem.cli.recipes_read import open_catalogue
    from tandem.recipes.profiles import named_profile

    recipe = open_catalogue().entry(recipe_id).recipe
    named_profile(recipe, profile)
    return recipe


def _confirm(recipe: Recipe, record: dict[str, Any], by: str | None, profile: str | None, out: Path) -> None:
    from tandem.cli.bench_record import confirmation_of
    from tandem.recipes.userdata import add_confirmation

    confirmation = confirmation_of(recipe, record, by=by, profile=profile, artifact=out)
    path = add_confirmation(recipe.id, confirmation, read_environment().data_dir)
    notices().print(f"Confirmation of {recipe.id} written to {path}.", markup=False)


def _print_table(record: dict[str, Any]) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("quantity")
    table.add_column("median", justify="right")
    table.add_column("unit")
    table.add_column("samples", justify="right", style="dim")
    for name, result in record["results"].items():
        samples = " ".join(f"{sample:.1f}" for sample in result["samples"])
        table.add_row(name, f"{result['median']:.1f}", result["unit"], samples)
    output().print(table)
    ceiling = record.get("ceiling")
    if ceiling:
        decode = record["results"]["decode, 1 stream"]["median"]
        output().print(
            f"Ceiling of one stream: {ceiling['tokens_per_s']:.1f} tokens/s "
            f"({ceiling['bytes_per_token'] / 1e6:.1f} MB a token at "
            f"{ceiling['bandwidth_bytes_per_s'] / 1e9:.1f} GB/s read); "
            f"reached: {decode / ceiling['tokens_per_s']:.0%}"
        )
