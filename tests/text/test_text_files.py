"""What a model's folder holds, and what is missing from it (case N6)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import text_toy as toy

from tandem.core.errors import ModelDamagedError, ModelNotFoundError, ModelUnsupportedError, RequestError
from tandem.core.requests import SamplingDefaults
from tandem.text.bundle import TextBundle


def test_n6_a_missing_folder_or_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        TextBundle.from_folder(tmp_path / "nowhere")
    folder = toy.write_folder(tmp_path / "model", toy.CHATML)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        TextBundle.from_folder(folder)
    with pytest.raises(ModelNotFoundError, match=r"x\.gguf"):
        TextBundle.from_gguf(tmp_path / "x.gguf")


def test_n6_without_a_template_chat_is_off_and_says_why(tmp_path: Path) -> None:
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, None))
    assert bundle.template is None
    assert bundle.chat_unavailable is not None
    assert "chat_template.jinja" in bundle.chat_unavailable
    with pytest.raises(RequestError, match="chat_template") as caught:
        bundle.encode_chat([{"role": "user", "content": "x"}])
    assert caught.value.status == 400
    assert bundle.encode_prompt("Hello")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", ""),
        ("tokenizer_config.json", "["),
        ("config.json", "[]"),
        ("generation_config.json", "<!DOCTYPE html><html>"),
        ("chat_template.json", "nope"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    folder = toy.write_folder(tmp_path, None)
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(ModelDamagedError, match=name):
        TextBundle.from_folder(folder)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    folder = toy.write_folder(tmp_path, None)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{ x }}")
    with pytest.raises(ModelDamagedError, match=r"chat_template\.jinja"):
        TextBundle.from_folder(folder)


@pytest.mark.parametrize("where", ["jinja", "json", "config", "named"])
def test_a_template_is_found_in_every_place(tmp_path: Path, where: str) -> None:
    folder = toy.write_folder(tmp_path, None)
    template = "{{ messages[0].content }}!"
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if where == "jinja":
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        settings["chat_template"] = "older"
    elif where == "json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
        settings["chat_template"] = "older"
    elif where == "config":
        settings["chat_template"] = template
    else:
        settings["chat_template"] = [
            {"name": "tool_use", "template": "other"},
            {"name": "default", "template": template},
        ]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert TextBundle.from_folder(folder).encode_chat([{"role": "user", "content": "x"}]).text == "x!"


def test_b7_end_tokens_come_from_every_file(tmp_path: Path) -> None:
    folder = toy.write_folder(tmp_path, None, eos_token_id=300, text_config={"eos_token_id": [301]})
    (folder / "generation_config.json").write_text('{"eos_token_id": [302, 303]}', encoding="utf-8")
    bundle = TextBundle.from_folder(folder)
    names = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|user|>", "<|observation|>", "<|assistant|>")
    known = {bundle.tokenizer.token_id(name) for name in names}
    assert bundle.eos_token_ids >= {300, 301, 302, 303} | known
    assert bundle.tokenizer.token_id("<think>") not in bundle.eos_token_ids


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True},
            SamplingDefaults(0.6, 0.95, 20),
        ),
        ({"repetition_penalty": 1.05, "min_p": 0}, SamplingDefaults(repetition_penalty=1.05)),
        (
            {"temperature": None, "top_p": "0.9", "top_k": -1, "min_p": 3, "repetition_penalty": True},
            SamplingDefaults(),
        ),
        ({}, SamplingDefaults()),
    ],
)
def test_sampling_defaults_are_the_makers(
    tmp_path: Path, written: dict[str, object], expected: SamplingDefaults
) -> None:
    folder = toy.write_folder(tmp_path, None)
    (folder / "generation_config.json").write_text(json.dumps(written), encoding="utf-8")
    assert TextBundle.from_folder(folder).sampling == expected


def test_the_models_vocabulary_may_be_larger(tmp_path: Path) -> None:
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, None, vocab_size=640))
    assert bundle.vocab_size == 640
    assert bundle.tokenizer.vocab_size < 640


@pytest.mark.parametrize(("wanted", "expected"), [(True, True), (False, False), (None, False)])
def test_bos_where_the_config_wants_it(tmp_path: Path, wanted: bool | None, expected: bool) -> None:
    folder = toy.write_folder(tmp_path, None)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["add_bos_token"] = wanted
    path.write_text(json.dumps(settings), encoding="utf-8")
    bundle = TextBundle.from_folder(folder)
    bos = bundle.tokenizer.token_id("<|begin_of_text|>")
    assert (bundle.encode_prompt("x")[0] == bos) is expected
    assert bundle.encode_prompt("<|begin_of_text|>x").count(bos or 0) == 1


def test_bos_where_the_tokenizer_itself_adds_it(tmp_path: Path) -> None:
    folder = toy.write_folder(tmp_path, None)
    definition = json.loads(toy.definition())
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<sop>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<sop>": {"id": "<sop>", "ids": [8], "tokens": ["<sop>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    settings = {"eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    bundle = TextBundle.from_folder(folder)
    assert bundle.encode_prompt("x")[0] == bundle.tokenizer.token_id("<sop>") == 8
    assert 8 not in bundle.tokenizer.encode("x", special=True)


TEMPLATES = {
    "glm": toy.GLM,
    "chatml": toy.CHATML,
    "none": "{{ messages }}",
    "other": "{{ messages }}[TOOLS]{{ tools }}",
    "functions": "{{ messages }}{{ tools }}<tool_call><function=",
    "mistral": "{{ messages }}{{ tools }}[TOOL_CALLS][",
    "newer mistral": "{{ messages }}{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]",
    "llama": "{{ messages }}{{ tools }}<|eot_id|>{'\"parameters\": '}",
}


def test_formats_are_detected_or_named(tmp_path: Path) -> None:
    found = {
        name: TextBundle.from_folder(toy.write_folder(tmp_path / name, template))
        for name, template in TEMPLATES.items()
    }
    formats = {name: (bundle.reasoning_format, bundle.tool_format) for name, bundle in found.items()}
    assert formats == {
        "glm": ("think", "glm"),
        "chatml": (None, "hermes"),
        "none": (None, "hermes"),
        "other": (None, None),
        "functions": (None, "qwen_xml"),
        "mistral": (None, "mistral"),
        "newer mistral": (None, "mistral_args"),
        "llama": (None, "llama3_json"),
    }
    named = TextBundle.from_folder(tmp_path / "none", reasoning_format="think", tool_format="glm")
    assert (named.reasoning_format, named.tool_format) == ("think", "glm")
    off = TextBundle.from_folder(tmp_path / "glm", reasoning_format="none", tool_format="none")
    assert (off.reasoning_format, off.tool_format) == (None, None)
    for how in ({"reasoning_format": "x"}, {"tool_format": "x"}):
        with pytest.raises(ModelUnsupportedError, match="none"):
            TextBundle.from_folder(tmp_path / "none", **how)
