"""``tandem serve``: an OpenAI-compatible server of one model."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tandem.cli.console import notices
from tandem.cli.flags import (
    CacheFormatFlag,
    CardsFlag,
    ChunkFlag,
    ConfigFlag,
    ContextFlag,
    MaxRunningFlag,
    MaxWaitFlag,
    MaxWaitingFlag,
    ModelFlag,
    PrefixReuseFlag,
    ProfileFlag,
    ReasoningFormatFlag,
    RecipeFlag,
    ThreadsFlag,
    ToolFormatFlag,
    load_options,
)
from tandem.cli.from_recipe import recipe_settings
from tandem.cli.progress import ToldProgress, progress_for
from tandem.core.cards import format_cards, parse_size
from tandem.core.errors import SettingsError
from tandem.core.log import configure_logging
from tandem.core.options import LoadOptions, Resolved, SettingsLayer, resolve_options
from tandem.core.plan import format_bytes
from tandem.core.requests import SamplingDefaults
from tandem.core.settings import LOG_LEVELS, Environment, read_environment, read_serve_variables
from tandem.server.config import ServerConfig

if TYPE_CHECKING:
    from tandem.api import Service

_SERVER_PANEL = "Server"
DEFAULT_SERVER = ServerConfig()


def serve(
    model: ModelFlag = None,
    recipe: RecipeFlag = None,
    profile: ProfileFlag = None,
    config: ConfigFlag = None,
    served_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-name",
            help="What clients call the model; repeat for aliases.",
            show_default="the model's own name",
            rich_help_panel="Model",
        ),
    ] = None,
    tool_format: ToolFormatFlag = None,
    reasoning_format: ReasoningFormatFlag = None,
    cards: CardsFlag = None,
    context: ContextFlag = None,
    kv: CacheFormatFlag = None,
    chunk: ChunkFlag = None,
    threads: ThreadsFlag = None,
    max_running: MaxRunningFlag = None,
    max_waiting: MaxWaitingFlag = None,
    max_wait: MaxWaitFlag = None,
    prefix_reuse: PrefixReuseFlag = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Address to listen on; beyond this machine only with a key.",
            show_default="127.0.0.1",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", help="0 = any free port.", show_default="8000", rich_help_panel=_SERVER_PANEL
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help="Accept this key; repeatable. `ps` shows flags: better set `TANDEM_API_KEY`.",
            show_default=False,
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen beyond this machine without a key.", rich_help_panel=_SERVER_PANEL
        ),
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            help="Origin of a web page that may call the API; repeatable, `*` = any.",
            show_default="none",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="Further Host name to answer to on a loopback address without keys (a proxy's name).",
            show_default="none",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    thinking_budget: Annotated[
        int | None,
        typer.Option(
            "--thinking-budget",
            help="Reasoning tokens after which the answer begins, where a request sets none.",
            show_default="no limit",
            rich_help_panel="Requests",
        ),
    ] = None,
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            "--drain-timeout",
            help="At Ctrl-C let running requests go on for so many seconds; 0 = cut them off.",
            show_default="0",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    max_body: Annotated[
        str | None,
        typer.Option(
            "--max-body",
            help="Largest request body, e.g. `8MiB`; a larger one gets 413.",
            show_default=format_bytes(DEFAULT_SERVER.max_body_bytes),
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    max_choices: Annotated[
        int | None,
        typer.Option(
            "--max-choices",
            help="Largest `n`, and most prompts of one completions request.",
            show_default=str(DEFAULT_SERVER.max_choices),
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    keepalive: Annotated[
        float | None,
        typer.Option(
            "--keepalive",
            help="Seconds a stream may be silent before a comment line is sent; at most 15.",
            show_default=f"{DEFAULT_SERVER.keepalive_s:g}",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    stall_timeout: Annotated[
        float | None,
        typer.Option(
            "--stall-timeout",
            help="Seconds without a finished step after which a working engine counts as stuck.",
            show_default=f"{DEFAULT_SERVER.stall_timeout_s:g}",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
    exit_on_fault: Annotated[
        bool,
        typer.Option(
            "--exit-on-fault",
            help="End when the engine fails, for a supervisor to restart.",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            metavar="|".join(LOG_LEVELS),
            help="How much to log.",
            show_default="info",
            rich_help_panel=_SERVER_PANEL,
        ),
    ] = None,
) -> None:
    """Serve a model behind an OpenAI-compatible API.

    With no flag: the demo model on this machine's processor, at http://127.0.0.1:8000. The port opens
    at once; `/health` tells when the model has loaded. Ctrl-C ends it, a second Ctrl-C at once.

    `tandem serve`

    `tandem serve --model ./GLM-5.3-Flash-exl3 --cards cuda:2 --context 384k`

    `tandem serve --recipe glm53-flash-2x64-layer-split --profile q8_384k`

    `TANDEM_API_KEY=secret tandem serve --host 0.0.0.0`

    `tandem serve --cards cpu:2x600MiB --port 0`
    """
    from tandem.server.run import bind, server_url

    environment = read_environment()
    level = _log_level(log_level, environment)
    chosen = None
    variables = read_serve_variables()
    if recipe is not None or profile is not None or config is not None:
        given = {
            "model": model,
            "cards": cards,
            "context_tokens": context,
            "cache_format": kv,
            "chunk_tokens": chunk,
            "max_running": max_running,
            "prefix_reuse": prefix_reuse,
            "host": host,
            "port": port,
        }
        chosen = recipe_settings(recipe, profile, given, environment, file=config, variables=variables)
    elif variables:
        notices().print(
            f"{', '.join(variables)}: read only with --recipe, --profile or --config", style="yellow"
        )
    load = load_options(
        {
            "model": model,
            "served_names": served_name,
            "cards": cards,
            "context_tokens": context,
            "max_running": max_running,
            "max_waiting": max_waiting,
            "max_wait_s": max_wait,
            "chunk_tokens": chunk,
            "cache_format": kv,
            "threads": threads,
            "prefix_reuse": prefix_reuse,
            "tool_format": tool_format,
            "reasoning_format": reasoning_format,
            "stall_timeout_s": stall_timeout,
        },
        chosen.load if chosen else (),
    )
    flags: dict[str, object] = {
        "host": host,
        "port": port,
        "api_keys": tuple(api_key) if api_key else None,
        "insecure": insecure or None,
        "cors_origins": tuple(cors_origin) if cors_origin else None,
        "allowed_hosts": tuple(allowed_host) if allowed_host else None,
        "thinking_budget": thinking_budget,
        "drain_timeout_s": drain_timeout,
        "max_body_bytes": None if max_body is None else parse_size(max_body),
        "max_choices": max_choices,
        "keepalive_s": keepalive,
        "stall_timeout_s": stall_timeout,
        "exit_on_fault": exit_on_fault or None,
    }
    from_environment = SettingsLayer("environment", {"api_keys": environment.api_keys or None})
    below = chosen.server if chosen else ()
    server = resolve_options(ServerConfig, [*below, from_environment, SettingsLayer("flag", flags)])
    configure_logging(level)
    if chosen:
        notices().print("\n".join(chosen.lines), markup=False, soft_wrap=True)
        for line in chosen.notices:
            notices().print(line, markup=False, style="yellow", soft_wrap=True)
    listener = bind(server.options)
    _print_configuration(load, server)
    url = server_url(listener)
    notices().print(f"Listening at {url}; the model is loading.", markup=False)
    _serve(load.options, server.options, environment, listener, url)


def _serve(
    options: LoadOptions, config: ServerConfig, environment: Environment, listener: Any, url: str
) -> None:
    """Serve from the first moment and load on a thread; a model that cannot be loaded ends both."""
    from tandem.api import LoadState, Service
    from tandem.api.fit import PlannerFit
    from tandem.recipes.catalogue import Catalogue
    from tandem.server.run import serve as serve_until_stopped

    service = Service(_provisional_name(options))
    catalogue = Catalogue(environment.data_dir, calculator=PlannerFit())
    failures: list[BaseException] = []

    def load() -> None:
        from tandem.api.load import load_model, prepare_model

        try:
            progress = ToldProgress(
                progress_for(notices()), lambda detail: service.report(LoadState("loading", detail=detail))
            )
            prepared = prepare_model(options, environment, progress)
            load_model(prepared, service)
        except BaseException as error:
            failures.append(error)
            service.report(LoadState("failed", detail=str(error)))
            # The server's own way to end; before it has set its handlers, this is a KeyboardInterrupt.
            os.kill(os.getpid(), signal.SIGINT)
        else:
            _print_ready(service, config, url)

    threading.Thread(target=load, name="load", daemon=True).start()
    try:
        serve_until_stopped(service, config, listener, catalogue)
    except KeyboardInterrupt:
        if not failures:
            raise
    if failures:
        raise failures[0]


def _provisional_name(options: LoadOptions) -> str:
    """What ``/health`` calls a model that is not loaded yet; of a path only its last part is told."""
    if options.served_names:
        return options.served_names[0]
    return "demo" if options.model is None else options.model.rstrip("/").rpartition("/")[2]


def _log_level(flag: str | None, environment: Environment) -> str:
    level = (flag or environment.log_level).lower()
    if level not in LOG_LEVELS:
        raise SettingsError("Unknown log level", found=level, remedy=f"--log-level {'|'.join(LOG_LEVELS)}")
    return level


def _print_configuration(load: Resolved[LoadOptions], server: Resolved[ServerConfig]) -> None:
    """Every setting with the source of its value."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    shown: set[str] = set()
    for resolved in (load, server):
        for name, source in resolved.sources.items():
            if name in shown:  # one setting of both
                continue
            shown.add(name)
            style = "dim" if source == "default" else None
            table.add_row(name, shown_value(name, getattr(resolved.options, name)), source, style=style)
    notices().print(table)


def shown_value(name: str, value: object) -> str:
    if name == "api_keys" and isinstance(value, tuple):
        return f"{len(value)} set" if value else "none"
    if name == "cards" and isinstance(value, tuple):
        return format_cards(value)
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value) or "none"
    if name == "model" and value is None:
        return "demo"
    return "automatic" if value is None else str(value)


def _print_ready(service: Service, config: ServerConfig, url: str) -> None:
    """The address and a command to copy; where the model has no template, why it cannot chat."""
    card = service.card
    key = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if config.api_keys else ""
    unavailable = service.text.chat_unavailable
    route = "completions" if unavailable else "chat/completions"
    asked = '"prompt": "Hello"' if unavailable else '"messages": [{"role": "user", "content": "Hello!"}]'
    notices().print(
        f"Ready: {card.id}, {card.context_tokens:,} tokens of context, at {url}\n"
        f"  curl {url}/v1/{route}{key} -H 'Content-Type: application/json'"
        f""" -d '{{"model": "{card.id}", {asked}}}'""",
        markup=False,
        soft_wrap=True,
    )
    chosen = asdict(service.text.sampling)
    own = [f"{name} {value:g}" for name, value in chosen.items() if value != asdict(SamplingDefaults())[name]]
    if own:
        notices().print(f"Where a request is silent: {', '.join(own)}.", markup=False, soft_wrap=True)
    if unavailable:
        notices().print(f"Chat is off: {unavailable}", markup=False, style="yellow", soft_wrap=True)
