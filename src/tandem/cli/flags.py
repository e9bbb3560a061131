"""Flags that several commands share, and how they become LoadOptions with a source for every value.

A flag's own default is None, so that what the user said can be told from what the dataclass defaults to;
the help text shows the dataclass's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tandem.core.cards import format_cards, parse_cards
from tandem.core.options import (
    PREFIX_REUSE,
    LoadOptions,
    Resolved,
    SettingsLayer,
    parse_tokens,
    resolve_options,
)

DEFAULTS = LoadOptions()
_MODEL_PANEL = "Model"
_CARDS_PANEL = "Cards and memory"
_QUEUE_PANEL = "Requests"

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
UrlFlag = Annotated[
    str | None,
    typer.Option(
        "--url", help="Talk to this server instead of loading a model, e.g. `http://127.0.0.1:8000`."
    ),
]
ApiKeyFlag = Annotated[
    str | None,
    typer.Option("--api-key", help="Key for `--url`; better set `TANDEM_API_KEY`, which `ps` does not show."),
]
ModelFlag = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A folder (config.json and safetensors), a GGUF file, or `org/name[@revision]` of the hub.",
        show_default="the demo model",
        rich_help_panel=_MODEL_PANEL,
    ),
]
ToolFormatFlag = Annotated[
    str | None,
    typer.Option(
        "--tool-format",
        help="How the model writes tool calls (`hermes`, `glm` …); `none` = do not parse them.",
        show_default="from the chat template",
        rich_help_panel=_MODEL_PANEL,
    ),
]
ReasoningFormatFlag = Annotated[
    str | None,
    typer.Option(
        "--reasoning-format",
        help="How the model marks its reasoning; `none` = leave it in the answer.",
        show_default="from the chat template",
        rich_help_panel=_MODEL_PANEL,
    ),
]
CardsFlag = Annotated[
    str | None,
    typer.Option(
        "--cards",
        help="Where the model goes: `cpu:2` (virtual cards), `cpu:2x600MiB` (with budgets), `cuda:2`, "
        "`cuda:0=60GiB,cuda:1=62GiB`.",
        show_default=format_cards(DEFAULTS.cards),
        rich_help_panel=_CARDS_PANEL,
    ),
]
ContextFlag = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Longest prompt plus output in tokens; `384k` = 393216, `1m` = 1048576.",
        show_default="the model's own, as far as it fits",
        rich_help_panel=_CARDS_PANEL,
    ),
]
CacheFormatFlag = Annotated[
    str | None,
    typer.Option(
        "--kv",
        help="Element type of the attention cache.",
        show_default="the model's default",
        rich_help_panel=_CARDS_PANEL,
    ),
]
ChunkFlag = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        help="Prompt tokens computed at once.",
        show_default="chosen for the cards",
        rich_help_panel=_CARDS_PANEL,
    ),
]
ThreadsFlag = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="Processor threads for CPU cards.",
        show_default="all this process may use",
        rich_help_panel=_CARDS_PANEL,
    ),
]
MaxRunningFlag = Annotated[
    int | None,
    typer.Option(
        "--max-running",
        help="Sequences computed at once.",
        show_default=str(DEFAULTS.max_running),
        rich_help_panel=_QUEUE_PANEL,
    ),
]
MaxWaitingFlag = Annotated[
    int | None,
    typer.Option(
        "--max-waiting",
        help="Requests that may queue; one more gets 429.",
        show_default=str(DEFAULTS.max_waiting),
        rich_help_panel=_QUEUE_PANEL,
    ),
]
MaxWaitFlag = Annotated[
    float | None,
    typer.Option(
        "--max-wait",
        help="Seconds a request may queue before it gets 429.",
        show_default=f"{DEFAULTS.max_wait_s:g}",
        rich_help_panel=_QUEUE_PANEL,
    ),
]
RecipeFlag = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="Take settings from this recipe of the catalogue (`tandem recipes ls`); flags still win.",
        rich_help_panel=_MODEL_PANEL,
    ),
]
ConfigFlag = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A YAML file of settings, over recipe and profile, under `TANDEM_SERVE_*` variables and flags.",
        show_default=False,
        rich_help_panel=_MODEL_PANEL,
    ),
]
ProfileFlag = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="A profile of the recipe, e.g. `q8_384k`; alone it means the recipe for GLM-5.3-Flash.",
        rich_help_panel=_MODEL_PANEL,
    ),
]
PrefixReuseFlag = Annotated[
    str | None,
    typer.Option(
        "--prefix-reuse",
        help="`exact` = same bits as a cold run, `fast` = also reuse answers (approximate), `off`.",
        metavar="|".join(PREFIX_REUSE),
        show_default=DEFAULTS.prefix_reuse,
        rich_help_panel=_QUEUE_PANEL,
    ),
]


def load_options(flags: Mapping[str, object], below: Sequence[SettingsLayer] = ()) -> Resolved[LoadOptions]:
    """LoadOptions from the flags given, by option name; None = not given. ``below`` are weaker layers.

    ``cards`` and ``context_tokens`` come as text, ``served_names`` as a list. Raises SettingsError.
    """
    values = dict(flags)
    if isinstance(cards := values.get("cards"), str):
        values["cards"] = parse_cards(cards)
    if isinstance(context := values.get("context_tokens"), str):
        values["context_tokens"] = parse_tokens(context, "--context")
    names = values.get("served_names")
    values["served_names"] = tuple(names) if isinstance(names, list) and names else None
    resolved = resolve_options(LoadOptions, [*below, SettingsLayer("flag", values)])
    resolved.options.check()
    return resolved
