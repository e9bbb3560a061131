"""Tokenizers: exact ids, exact bytes, both GGUF families, refusals."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from pathlib import Path

import pytest
import text_toy as toy
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.core.gguf import GgufValue
from tandem.text.bundle import TextBundle
from tandem.text.gguf_tokenizer import tokenizer_from_gguf
from tandem.text.tokenizer import Tokenizer

STRINGS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\t\tand\nnewlines\r\n\r\n\n\n   end",
    "def f(x):\n    if x > 1:\n        return {'a': [1, 2.5], \"b\": None}\n",
    "The year 2024, 1,000,000.50 and 3.14159",
    "🧑\u200d🚀 👩🏽\u200d💻 🇺🇦 🙂🙂🙂",
    "歪 龘 世界 こんにちは 한글 ไทย",
    "Ünïcödé ß ﬁ Ⅷ ½ \u00a0nbsp\u200bzwsp",
    "don't we'll I'm THEY'RE it's",
    '<div class="a">&amp;</div>\n\t<!-- c -->',
    "<|im_start|>user\nhi<|im_end|>",
    "a\u0301 e\u0308 \ufffd \U0010ffff",
    "x" * 500,
    "مرحبا بالعالم Привет שלום",
]


def random_texts(count: int, seed: int) -> list[str]:
    """Random characters of all planes, without surrogates."""
    source = random.Random(seed)
    texts = []
    for _ in range(count):
        top = source.choice([0x80, 0x800, 0x3000, 0x10FFFF])
        codes = [source.randrange(1, top) for _ in range(source.choice([1, 7, 63]))]
        texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
    return texts


@pytest.mark.parametrize("special", [False, True])
def test_encode_and_decode_are_inverse(special: bool) -> None:
    for text in STRINGS + random_texts(50, seed=1):
        ids = toy.tokenizer().encode(text, special=special)
        assert toy.tokenizer().decode(ids) == text
        assert b"".join(toy.tokenizer().token_bytes(index) for index in ids) == text.encode()


def test_marker_text_is_special_only_on_request() -> None:
    tokenizer = toy.tokenizer()
    end = tokenizer.token_id("<|im_end|>")
    think = tokenizer.token_id("<think>")
    assert tokenizer.encode("<|im_end|><think>", special=True) == [end, think]
    plain = tokenizer.encode("<|im_end|><think>")
    assert end not in plain
    assert think not in plain
    assert tokenizer.is_special(end or 0)
    assert not tokenizer.is_special(think or 0)


def test_lone_surrogates_do_not_fail() -> None:
    assert toy.tokenizer().decode(toy.tokenizer().encode("a\ud800b")) == "a\ufffdb"


def test_ids_out_of_range_have_no_bytes() -> None:
    assert toy.tokenizer().token_bytes(10**9) == b""
    assert toy.tokenizer().token_bytes(-1) == b""


def test_a_definition_that_is_none() -> None:
    with pytest.raises(ModelDamagedError):
        Tokenizer("{}")


def test_a_family_without_bytes_is_refused() -> None:
    fields = json.loads(toy.definition())
    fields["pre_tokenizer"] = {"type": "Whitespace"}
    fields["decoder"] = None
    with pytest.raises(ModelUnsupportedError):
        Tokenizer(json.dumps(fields))


def byte_level_metadata(pre: str) -> dict[str, GgufValue]:
    """The toy vocabulary as a GGUF file would hold it."""
    fields = json.loads(toy.definition())
    vocabulary = dict(fields["model"]["vocab"])
    vocabulary.update({token["content"]: token["id"] for token in fields["added_tokens"]})
    tokens = sorted(vocabulary, key=lambda text: vocabulary[text])
    kinds = {token["content"]: 3 if token["special"] else 4 for token in fields["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": tuple(kinds.get(token, 1) for token in tokens),
        "tokenizer.ggml.merges": tuple(" ".join(merge) for merge in fields["model"]["merges"]),
        "tokenizer.ggml.bos_token_id": vocabulary["<|begin_of_text|>"],
    }


def test_gguf_gives_the_ids_of_the_same_vocabulary() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata("gpt-2"))
    for text in STRINGS + random_texts(50, seed=2):
        assert tokenizer.encode(text) == toy.tokenizer().encode(text)
        assert tokenizer.encode(text, special=True) == toy.tokenizer().encode(text, special=True)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'m", " aB", "  ", " 123456", "\n", "\n", "x"]),
        ("smollm", ["I", "'m", " aB", "   ", *"123456", "\n", "\n", "x"]),
        ("llama-bpe", ["I", "'m", " aB", "  ", " ", "123", "456", "\n\n", "x"]),
        ("qwen2", ["I", "'m", " aB", "  ", " ", *"123456", "\n\n", "x"]),
    ],
)
def test_pre_tokenizers_cut_before_merging(pre: str, pieces: list[str]) -> None:
    """With every possible merge in the vocabulary, tokens are exactly the pre-tokenizer's pieces."""
    text = "".join(pieces)
    spelled = text.replace(" ", "Ġ").replace("\n", "Ċ")
    words = [spelled[a : a + size] for size in range(1, 20) for a in range(len(spelled) - size + 1)]
    metadata: dict[str, GgufValue] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tuple(dict.fromkeys(words)),
        "tokenizer.ggml.merges": tuple(
            dict.fromkeys(f"{word[:at]} {word[at:]}" for word in words for at in range(1, len(word)))
        ),
    }
    tokenizer = tokenizer_from_gguf(metadata)
    assert [tokenizer.token_bytes(index).decode() for index in tokenizer.encode(text)] == pieces


def test_unknown_pre_tokenizer_lists_the_known() -> None:
    with pytest.raises(ModelUnsupportedError) as caught:
        tokenizer_from_gguf(byte_level_metadata("wordwise"))
    assert "wordwise" in str(caught.value)
    assert "smollm" in str(caught.value)


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_gguf_keys_are_named(key: str) -> None:
    metadata = byte_level_metadata("smollm")
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(ModelDamagedError, match=key):
        tokenizer_from_gguf(metadata)


def test_unknown_gguf_model_is_refused() -> None:
    with pytest.raises(ModelUnsupportedError, match="t5"):
        tokenizer_from_gguf({"tokenizer.ggml.model": "t5"})


WORDS = ["▁hello", "▁wor", "ld", "▁the", "he", "ll", "lo", "▁w", "or", "▁he", "llo", "▁", "th", "▁▁"]


def sentencepiece_metadata(add_space_prefix: bool = True) -> dict[str, GgufValue]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *"helowrdt"]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(WORDS))] + [-100.0] * 8
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.scores": tuple(scores),
        "tokenizer.ggml.token_type": (2, 3, 3, *([6] * 256), *([1] * (len(WORDS) + 8))),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def merge_by_score(text: str, metadata: dict[str, GgufValue]) -> list[str]:
    """SentencePiece BPE as its paper says it: again and again the best-scored neighbours."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    assert isinstance(tokens, tuple)
    assert isinstance(scores, tuple)
    score = dict(zip(tokens, scores, strict=True))
    parts = list(text)
    while True:
        pairs = [
            (score[a + b], -index) for index, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in score
        ]
        if not pairs:
            break
        index = -max(pairs)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    result = []
    for part in parts:
        result += [part] if part in score else [f"<0x{byte:02X}>" for byte in part.encode()]
    return result


@given(st.text(alphabet="helowrdt é世", max_size=20))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_sentencepiece_merges_by_score(text: str) -> None:
    metadata = sentencepiece_metadata()
    tokenizer = tokenizer_from_gguf(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, tuple)
    expected = merge_by_score(("▁" + text if text else "").replace(" ", "▁"), metadata)
    assert [tokens[index] for index in tokenizer.encode(text)] == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_bytes_and_bos() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
    assert tokenizer.token_bytes(3 + 0xE4) == b"\xe4"
    hello = tokenizer.token_id("▁hello")
    assert hello is not None
    assert tokenizer.token_bytes(hello) == b" hello"
    assert tokenizer.encode_prompt("hello") == [1, hello]
    assert tokenizer.encode_prompt("<s>hello")[0] == 1
    assert tokenizer.encode_prompt("<s>hello").count(1) == 1


@pytest.mark.demo
def test_demo_ids_equal_transformers(demo: TextBundle, demo_gguf: Path) -> None:
    """transformers reads the GGUF file without its rule for digits (each one on its own, as the model was
    trained): it is given that rule here. On text without digits the two agree as they are."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import pre_tokenizers

    theirs = transformers.AutoTokenizer.from_pretrained(demo_gguf.parent, gguf_file=demo_gguf.name)
    texts = STRINGS + random_texts(200, seed=3)
    for text in texts:
        if not any(unicodedata.category(character).startswith("N") for character in text):
            assert demo.tokenizer.encode(text, special=True) == theirs(text)["input_ids"], text
    backend = theirs.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in texts:
        assert demo.tokenizer.encode(text, special=True) == backend.encode(text).ids, text
        assert demo.tokenizer.decode(demo.tokenizer.encode(text)) == theirs.decode(backend.encode(text).ids)


@pytest.mark.demo
def test_demo_end_tokens_and_sizes(demo: TextBundle) -> None:
    assert demo.eos_token_ids == {0, 2}
    assert demo.vocab_size == demo.tokenizer.vocab_size == 49152
    assert demo.encode_prompt("Hi") == tuple(demo.tokenizer.encode("Hi"))
