"""Chat templates: as transformers renders them (cases D3, D4, G7–G10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import text_toy as toy
from text_calls import USER
from text_calls import WEATHER_TOOL as TOOL
from text_calls import history_call as call

from tandem.core.errors import ModelDamagedError, RequestError
from tandem.text.bundle import TextBundle
from tandem.text.effort import map_effort, resolve_template_kwargs
from tandem.text.template import ChatTemplate, TemplateRefusal


def conversations() -> list[list[dict[str, Any]]]:
    """Thirty and more, in the shapes that transformers takes too."""
    texts = [
        "Hello",
        "  spaces  ",
        "line\nbreak\n\n",
        "안녕 <b>&'\" é",
        "```py\ndef f():\n\treturn {'a': 1}\n```",
        "{{ not }} {% jinja %}",
        "🧑\u200d🚀",
        "x" * 63,
    ]
    result: list[list[dict[str, Any]]] = []
    for text in texts:
        user, assistant = {"role": "user", "content": text}, {"role": "assistant", "content": f"Re: {text}"}
        result.append([user])
        result.append([{"role": "system", "content": text}, user])
        result.append([user, assistant, {"role": "user", "content": "And?"}])
        result.append(
            [user, {**assistant, "reasoning_content": f"So {text}"}, {"role": "user", "content": "?"}]
        )
    result.append(
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Tromsø"})]},
            {"role": "tool", "content": "-3 °C", "tool_call_id": "call_1"},
        ]
    )
    return result


def theirs(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


TEMPLATES = {"chatml": toy.CHATML, "llama3": toy.LLAMA3, "glm": toy.GLM}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_g9_renders_as_transformers(tmp_path: Path, name: str, tools: list[dict[str, Any]] | None) -> None:
    tool_format = "none" if name == "llama3" else None  # transformers drops tools that a template drops
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, TEMPLATES[name]), tool_format=tool_format)
    reference = theirs(tmp_path)
    compared = 0
    for messages in conversations():
        if name == "llama3" and messages[-1]["role"] == "tool":
            continue
        for generate in (True, False):
            expected = reference.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generate, tokenize=False
            )
            prompt = bundle.encode_chat(messages, tools=tools, add_generation_prompt=generate)
            assert prompt.text == expected
            assert list(prompt.tokens) == reference(expected, add_special_tokens=False)["input_ids"]
            compared += 1
    assert compared >= 60


@pytest.mark.demo
def test_g9_demo_renders_as_transformers(demo: TextBundle) -> None:
    render = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    assert demo.template is not None
    for messages in conversations()[:-1]:
        expected, _ = render(
            conversations=[messages], chat_template=demo.template.source, add_generation_prompt=True
        )
        assert demo.encode_chat(messages).text == expected[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", ["The largest planet is", "The largest planet is ", " a\n"])
def test_g7_continues_as_transformers(tmp_path: Path, name: str, content: str) -> None:
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, TEMPLATES[name]))
    messages = [USER, {"role": "assistant", "content": content}]
    expected = theirs(tmp_path).apply_chat_template(messages, continue_final_message=True, tokenize=False)
    prompt = bundle.encode_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert prompt.text == expected
    assert not prompt.starts_in_reasoning
    assert not prompt.may_open_reasoning


def test_g7_refusals(chatml: TextBundle) -> None:
    both = [USER, {"role": "assistant", "content": "The"}]
    with pytest.raises(RequestError, match="exclude") as caught:
        chatml.encode_chat(both, add_generation_prompt=True, continue_final_message=True)
    assert caught.value.param == "continue_final_message"
    for messages in ([USER], [USER, {"role": "assistant", "content": " "}]):
        with pytest.raises(RequestError, match="last message"):
            chatml.encode_chat(messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{% set n = namespace(x=1) %}{% for i in [1] %}{% set n.x = 2 %}{% endfor %}{{ n.x }}", "2"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ 'a b'.split()[1] }}", "b"),
        ("{{ strftime_now('%Y')|length }}", "4"),
        ("{{ {'é': '<&>\"'} | tojson(ensure_ascii=False) }}", '{"é": "<&>\\""}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=True) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ bos_token }}", "<s>"),
    ],
)
def test_g10_template_features(source: str, expected: str) -> None:
    template = ChatTemplate(source, origin="here", special_tokens={"bos_token": "<s>"})
    text = template.render([], tools=None, add_generation_prompt=False, template_kwargs={})
    assert text == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{{ range(10**9) | list }}",
        "{{ {}.x.y }}",
        "{% include 'x' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_g10_whatever_fails_while_rendering_is_the_requests_fault(source: str) -> None:
    template = ChatTemplate(source, origin="here", special_tokens={})
    with pytest.raises(RequestError) as caught:
        template.render([], tools=None, add_generation_prompt=False, template_kwargs={})
    assert caught.value.status == 400
    assert caught.value.param == "messages"


def test_g10_raise_exception_carries_its_text(tmp_path: Path) -> None:
    template = ChatTemplate("{{ raise_exception('no cats') }}", origin="here", special_tokens={})
    with pytest.raises(TemplateRefusal, match="no cats"):
        template.render([], tools=None, add_generation_prompt=False, template_kwargs={})
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, "{{ raise_exception('no cats') }}"))
    with pytest.raises(RequestError, match="no cats") as caught:
        bundle.encode_chat([USER])
    assert caught.value.status == 400


def test_g10_a_syntax_error_is_found_at_start_with_its_line(tmp_path: Path) -> None:
    folder = toy.write_folder(tmp_path, "line one\nline two\n{% for x in %}")
    with pytest.raises(ModelDamagedError, match=r"chat_template\.jinja, line 3"):
        TextBundle.from_folder(folder)


def test_starts_in_reasoning_is_read_from_the_prompt(
    glm: TextBundle, chatml: TextBundle, tmp_path: Path
) -> None:
    assert glm.encode_chat([USER]).starts_in_reasoning
    assert not glm.encode_chat([USER], add_generation_prompt=False).starts_in_reasoning
    assert not chatml.encode_chat([USER]).starts_in_reasoning
    switch = "{{ messages[0].content }}{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, switch))
    assert bundle.encode_chat([USER]).may_open_reasoning
    off = bundle.encode_chat([USER], template_kwargs={"enable_thinking": False})
    assert not off.may_open_reasoning
    assert not off.starts_in_reasoning


@pytest.mark.parametrize(
    ("effort", "rung"),
    [
        ("none", "low"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "high"),
        ("high", "high"),
        ("xhigh", "max"),
        ("max", "max"),
        (None, "max"),
    ],
)
def test_d3_effort_reaches_the_template(glm: TextBundle, effort: str | None, rung: str) -> None:
    prompt = glm.encode_chat([USER], template_kwargs={"reasoning_effort": effort})
    assert f"Reasoning Effort: {rung}<|user|>" in prompt.text
    assert prompt.notes == ()


@pytest.mark.parametrize("effort", ["banana", "", 3, ["low"], True])
def test_d3_unknown_effort_is_refused(glm: TextBundle, chatml: TextBundle, effort: Any) -> None:
    for bundle in (glm, chatml):
        with pytest.raises(RequestError) as caught:
            bundle.encode_chat([USER], template_kwargs={"reasoning_effort": effort})
        assert caught.value.param == "reasoning_effort"
    with pytest.raises(RequestError):
        map_effort(effort)


def test_d4_switches_reach_a_template_under_its_own_name() -> None:
    both = {"reasoning_effort", "enable_thinking"}
    assert resolve_template_kwargs({"enable_thinking"}, {"thinking": False}) == (
        {"enable_thinking": False},
        (),
    )
    assert resolve_template_kwargs({"thinking"}, {"reasoning_effort": "none"}) == ({"thinking": False}, ())
    kwargs, notes = resolve_template_kwargs({"reasoning_effort"}, {"enable_thinking": False})
    assert kwargs == {"reasoning_effort": "low"}
    assert "cannot be switched off" in notes[0]
    assert resolve_template_kwargs(both, {"reasoning_effort": "medium", "thinking": True})[0] == {
        "reasoning_effort": "high",
        "enable_thinking": True,
    }
    kwargs, notes = resolve_template_kwargs(set(), {"zzz": 1, "thinking": True, "reasoning_effort": "low"})
    assert kwargs == {"zzz": 1}
    assert len(notes) == 3


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_template_kwargs_cannot_replace_the_conversation(chatml: TextBundle, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        chatml.encode_chat([USER], template_kwargs={name: []})
    assert caught.value.param == "chat_template_kwargs"
