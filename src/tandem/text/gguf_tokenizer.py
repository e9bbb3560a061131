"""A tokenizer from GGUF metadata (``tokenizer.ggml.*``).

GGUF names how text is cut before merging only by a word (``tokenizer.ggml.pre``); this table gives the rule
behind each word we know. An unknown word is refused: a wrong rule gives slightly wrong tokens, silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.core.gguf import GgufValue
from tandem.text.tokenizer import Tokenizer

_CONTROL = 3
_USER_DEFINED = 4

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """``pattern`` None is GPT-2's own."""

    pattern: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


_GPT2 = _PreTokenizer()
_SINGLE_DIGITS = _PreTokenizer(single_digits=True)
_LLAMA3 = _PreTokenizer(_WORDS + r"\p{N}{1,3}" + _SYMBOLS, ignore_merges=True, add_bos=True)
_GLM4 = _PreTokenizer(_WORDS + r"\p{N}{1,3}" + _SYMBOLS)
_QWEN2 = _PreTokenizer(_WORDS + r"\p{N}" + _SYMBOLS, nfc=True)

_PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
}


def tokenizer_from_gguf(metadata: Mapping[str, GgufValue]) -> Tokenizer:
    """Build the tokenizer that ``metadata`` describes.

    Raises ModelDamagedError (a key is missing or does not fit the others) or ModelUnsupportedError (unknown
    tokenizer model or pre-tokenizer).
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelDamagedError(
            "The GGUF file has no tokenizer",
            found="no key tokenizer.ggml.model",
            remedy="use a GGUF file that was made with its tokenizer",
        )
    if model == "gpt2":
        definition, default_bos = _byte_level(metadata)
    elif model == "llama":
        definition, default_bos = _sentencepiece(metadata), True
    else:
        raise ModelUnsupportedError(
            "This GGUF tokenizer is not supported",
            found=f"tokenizer.ggml.model = {model}",
            remedy="use a model with one of: gpt2, llama",
        )
    definition["added_tokens"] = _added_tokens(metadata)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return Tokenizer(
        json.dumps(definition),
        bos_token_id=bos if isinstance(bos, int) else None,
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", default_bos)),
    )


def _strings(metadata: Mapping[str, GgufValue], key: str) -> tuple[str, ...]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise ModelDamagedError(
            "The GGUF file's tokenizer is incomplete",
            found=f"no list of strings under tokenizer.ggml.{key}",
            remedy="download the file again",
        )
    return tuple(item for item in value if isinstance(item, str))


def _added_tokens(metadata: Mapping[str, GgufValue]) -> list[dict[str, Any]]:
    tokens = _strings(metadata, "tokens")
    types = metadata.get("tokenizer.ggml.token_type", ())
    if not isinstance(types, tuple) or len(types) not in (0, len(tokens)):
        raise ModelDamagedError(
            "The GGUF file's tokenizer does not fit together",
            found=f"{len(tokens)} tokens and another number of token types",
            remedy="download the file again",
        )
    return [
        {
            "id": index,
            "content": tokens[index],
            "special": kind == _CONTROL,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for index, kind in enumerate(types)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _bpe(vocabulary: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": merges,
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
    }
    return {"version": "1.0", "truncation": None, "padding": None, "post_processor": None, "model": model}


def _byte_level(metadata: Mapping[str, GgufValue]) -> tuple[dict[str, Any], bool]:
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    rule = _PRE_TOKENIZERS.get(name)
    if rule is None:
        raise ModelUnsupportedError(
            "This GGUF pre-tokenizer is not known",
            found=f"tokenizer.ggml.pre = {name}",
            remedy=f"use a model with one of: {', '.join(sorted(_PRE_TOKENIZERS))}",
        )
    vocabulary = {text: index for index, text in enumerate(_strings(metadata, "tokens"))}
    # A space inside a token is always spelled with its own letter of the byte alphabet.
    merges = [merge.split(" ", 1) for merge in _strings(metadata, "merges")]
    definition = _bpe(vocabulary, merges, ignore_merges=rule.ignore_merges)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, Any]] = []
    if rule.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if rule.pattern is not None:
        steps.append(
            {
                "type": "Split",
                "pattern": {"Regex": rule.pattern},
                "behavior": "Isolated",
                "invert": False,
            }
        )
    steps.append({**byte_level, "use_regex": rule.pattern is None})
    definition["normalizer"] = {"type": "NFC"} if rule.nfc else None
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    definition["decoder"] = {**byte_level, "use_regex": True}
    return definition, rule.add_bos


def _sentencepiece(metadata: Mapping[str, GgufValue]) -> dict[str, Any]:
    tokens = _strings(metadata, "tokens")
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, tuple) or len(scores) != len(tokens):
        raise ModelDamagedError(
            "The GGUF file's tokenizer does not fit together",
            found=f"{len(tokens)} tokens without as many tokenizer.ggml.scores",
            remedy="download the file again",
        )
    vocabulary = {text: index for index, text in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    definition = _bpe(
        vocabulary,
        _merges_by_score(tokens, [float(score) for score in scores if isinstance(score, int | float)]),
        unk_token=tokens[unknown] if isinstance(unknown, int) and unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
    definition["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    definition["pre_tokenizer"] = None
    definition["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    return definition


def _merges_by_score(tokens: tuple[str, ...], scores: list[float]) -> list[list[str]]:
    """SentencePiece merges the adjacent pair whose union scores best; as an ordered list of merges that is
    every way to cut every token in two, best union first."""
    rank = dict(zip(tokens, scores, strict=True))
    index = {text: position for position, text in enumerate(tokens)}
    pairs = []
    for text, score in rank.items():
        cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
        known = [(left, right) for left, right in cuts if left in rank and right in rank]
        known.sort(key=lambda pair: (index[pair[0]], index[pair[1]]))
        pairs += [(score, left, right) for left, right in known]
    pairs.sort(key=lambda pair: -pair[0])
    return [[left, right] for _, left, right in pairs]
