"""Where a model keeps its text side: the files of a Hugging Face folder, or the keys of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.core.damage import likely_cause, read_head, remedy_for
from tandem.core.errors import ModelDamagedError, ModelNotFoundError
from tandem.core.gguf import read_gguf_header
from tandem.core.requests import SamplingDefaults
from tandem.text.gguf_tokenizer import tokenizer_from_gguf
from tandem.text.tokenizer import Tokenizer

_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|observation|>",
)
"""Control tokens that end a turn in every model that has them (a role's marker begins another turn)."""
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


_DEFAULT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """``origin`` names the file or key, for errors."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class ModelText:
    """Everything read, nothing compiled."""

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    vocab_size: int
    """As the model's config says; at least the tokenizer's."""
    template: TemplateSource | None
    template_missing: str
    """What to say where ``template`` is None."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """bos_token, eos_token …: variables of chat templates."""
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """From generation_config.json."""


def read_folder(folder: Path) -> ModelText:
    """Raises ModelNotFoundError or ModelDamagedError naming the file, or ModelUnsupportedError."""
    if not folder.is_dir():
        raise ModelNotFoundError(f"No model folder at {folder}", remedy="check the path")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFoundError(
            f"{folder} has no tokenizer.json",
            found=_neighbours(folder),
            remedy="download tokenizer.json from the model's repository",
        )
    definition = _read_text(path)
    settings = _read_json(folder / "tokenizer_config.json")
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    special = {name: text for name in _SPECIAL_NAMES if (text := _token_text(settings.get(name)))}
    try:
        tokenizer = Tokenizer(definition)
    except ModelDamagedError as error:
        raise _damaged(path, error.found) from error
    bos = tokenizer.added_tokens.get(special.get("bos_token", ""), tokenizer.automatic_bos)
    wants_bos = settings.get("add_bos_token")
    tokenizer.bos_token_id = bos
    tokenizer.add_bos = wants_bos if isinstance(wants_bos, bool) else tokenizer.automatic_bos is not None
    text_config = config.get("text_config")
    configs = [config, text_config if isinstance(text_config, dict) else {}, generation]
    declared = {index for part in configs for index in _token_ids(part.get("eos_token_id"))}
    eos = tokenizer.token_id(special.get("eos_token", ""))
    sizes = [part.get("vocab_size") for part in configs]
    return ModelText(
        tokenizer=tokenizer,
        eos_token_ids=_end_tokens(tokenizer, declared | ({eos} if eos is not None else set())),
        vocab_size=max([tokenizer.vocab_size, *(size for size in sizes if isinstance(size, int))]),
        template=_folder_template(folder, settings),
        template_missing=f"{folder} has no chat_template.jinja and no chat_template in tokenizer_config.json",
        special_tokens=special,
        sampling=_sampling_defaults(generation),
    )


def read_gguf(path: Path) -> ModelText:
    """Raises ModelNotFoundError, ModelDamagedError or ModelUnsupportedError."""
    metadata = read_gguf_header(path).metadata
    tokenizer = tokenizer_from_gguf(metadata)
    ids = {
        name: index
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
        if isinstance(index := metadata.get(f"tokenizer.ggml.{name}_token_id"), int)
    }
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    source = metadata.get("tokenizer.chat_template")
    size = metadata.get(f"{metadata.get('general.architecture')}.vocab_size")
    return ModelText(
        tokenizer=tokenizer,
        eos_token_ids=_end_tokens(tokenizer, {ids[name] for name in ("eos", "eot", "eom") if name in ids}),
        vocab_size=max(tokenizer.vocab_size, size if isinstance(size, int) else 0),
        template=(
            TemplateSource(source, f"tokenizer.chat_template in {path}") if isinstance(source, str) else None
        ),
        template_missing=f"{path} has no key tokenizer.chat_template",
        special_tokens={
            name: tokenizer.token_bytes(ids[key]).decode("utf-8", "replace")
            for key, name in names.items()
            if key in ids
        },
    )


def _end_tokens(tokenizer: Tokenizer, declared: Iterable[int]) -> frozenset[int]:
    known = (tokenizer.added_tokens.get(text) for text in _END_TOKENS)
    return frozenset(declared) | {index for index in known if index in tokenizer.special_token_ids}


def _folder_template(folder: Path, settings: dict[str, Any]) -> TemplateSource | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return TemplateSource(_read_text(path), str(path))
    path = folder / "chat_template.json"
    if path.is_file() and isinstance(text := _read_json(path).get("chat_template"), str):
        return TemplateSource(text, str(path))
    text = settings.get("chat_template")
    if isinstance(text, list):
        named = {item.get("name"): item.get("template") for item in text if isinstance(item, dict)}
        text = named.get("default", next(iter(named.values()), None))
    origin = f"chat_template in {folder / 'tokenizer_config.json'}"
    return TemplateSource(text, origin) if isinstance(text, str) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, "bytes that are no UTF-8") from error


def _read_json(path: Path) -> dict[str, Any]:
    """{} for a file that is not there."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _damaged(path, f"a JSON {type(value).__name__} where an object belongs")
    return value


def _damaged(path: Path, found: str | None) -> ModelDamagedError:
    head = read_head(path)
    return ModelDamagedError(
        f"{path} cannot be read", found=likely_cause(head) or found, remedy=remedy_for(head)
    )


def _neighbours(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return "tokenizer.model alone, the older format"
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") or "an empty folder"


def _sampling_defaults(generation: dict[str, Any]) -> SamplingDefaults:
    """Values within a request's ranges; others are left to OpenAI's, as some files hold nulls or nonsense."""
    found = {
        name: value
        for name, (least, most) in _DEFAULT_RANGES.items()
        if isinstance(value := generation.get(name), int | float)
        and not isinstance(value, bool)
        and least <= value <= most
    }
    top_k = found.pop("top_k", 0)
    return SamplingDefaults(top_k=int(top_k), **found)


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _token_ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]
