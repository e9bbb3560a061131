"""Chat templates: as transformers renders them, whatever clients send (cases D3, D4, D7, G1–G11, H10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import text_toy as toy

from tandem.core.errors import ModelDamagedError, RequestError
from tandem.text.bundle import OutputOptions, TextBundle
from tandem.text.effort import map_effort, resolve_template_kwargs
from tandem.text.template import ChatTemplate, TemplateRefusal

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "안녕 <b>&'\" é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def call(name: str, arguments: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


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


def prompt_of(bundle: TextBundle, *messages: dict[str, Any], **how: Any) -> str:
    return bundle.encode_chat(list(messages), **how).text


def test_g1_null_missing_and_empty_content_are_one(glm: TextBundle, chatml: TextBundle) -> None:
    calls = {"tool_calls": [call("get_weather", {"city": "Oslo"})]}
    result = {"role": "tool", "content": "ok"}
    for bundle in (glm, chatml):
        prompts = {
            prompt_of(bundle, USER, {"role": "assistant", **content, **calls}, result)
            for content in ({"content": None}, {"content": ""}, {}, {"content": []})
        }
        assert len(prompts) == 1
        assert "None" not in prompts.pop()


def test_g2_empty_tool_calls_are_none(chatml: TextBundle) -> None:
    plain = {"role": "assistant", "content": "hi"}
    for empty in ([], None):
        assert prompt_of(chatml, USER, {**plain, "tool_calls": empty}) == prompt_of(chatml, USER, plain)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_g3_all_text_parts_in_order(chatml: TextBundle, role: str) -> None:
    parts = [{"type": "text", "text": "RED"}, {"type": "text", "text": "BLUE"}]
    assert "RED\nBLUE<|im_end|>" in prompt_of(chatml, USER, {"role": role, "content": parts})
    assert prompt_of(chatml, {"role": role, "content": []}) == prompt_of(
        chatml, {"role": role, "content": ""}
    )


def test_g4_developer_is_system_and_unknown_roles_are_refused(chatml: TextBundle) -> None:
    assert prompt_of(chatml, {"role": "developer", "content": "x"}) == prompt_of(
        chatml, {"role": "system", "content": "x"}
    )
    for role in ("wizard", None, 3):
        with pytest.raises(RequestError) as caught:
            chatml.encode_chat([USER, {"role": role, "content": "x"}])
        assert caught.value.param == "messages[1].role"


@pytest.mark.parametrize(
    "roles", ["uuu", "uaa", "aua", "s", "suu", "uasu", "a", "ss", "auau"], ids=lambda roles: str(roles)
)
def test_g6_any_order_of_roles_renders_without_loss(llama3: TextBundle, roles: str) -> None:
    """The template insists on alternation; the conversation is fitted to it."""
    names = {"u": "user", "a": "assistant", "s": "system"}
    messages = [{"role": names[role], "content": f"word{n}"} for n, role in enumerate(roles)]
    text = prompt_of(llama3, *messages)
    positions = [text.index(f"word{n}") for n in range(len(roles))]
    assert positions == sorted(positions)


BAD_MESSAGES = [
    ("x", "messages"),
    ([], "messages"),
    (["x"], "messages[0]"),
    ([{"role": "user", "content": 3}], "messages[0].content"),
    ([{"role": "user", "content": [3]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "zzz"}]}], "messages[0].content[0].type"),
    ([USER, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[1].content[0]"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "reasoning_content": 3}], "messages[0].reasoning_content"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    ([{"role": "assistant", "tool_calls": [call("", {})]}], "messages[0].tool_calls[0].function.name"),
    (
        [{"role": "assistant", "tool_calls": [call("f", "not json")]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        [{"role": "assistant", "tool_calls": [call("f", "[1]")]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("messages", "param"), BAD_MESSAGES)
def test_h10_c16_bad_messages_are_named(chatml: TextBundle, messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chatml.encode_chat(messages)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert param in caught.value.message or param == "messages"


@pytest.mark.parametrize("arguments", [None, "", "{}", {}, " "])
def test_c16_arguments_that_say_nothing(glm: TextBundle, arguments: Any) -> None:
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call("f", arguments)]}]
    assert prompt_of(glm, *history).count("<tool_call>f</tool_call>") == 1


def test_d7_reasoning_comes_back_under_any_name(glm: TextBundle) -> None:
    said = {"role": "assistant", "content": "4"}
    expected = prompt_of(glm, USER, {**said, "reasoning_content": "two and two"}, USER)
    assert "<think>two and two</think>4" in expected
    assert prompt_of(glm, USER, {**said, "reasoning": "two and two"}, USER) == expected
    assert prompt_of(glm, USER, {**said, "content": "<think>two and two</think>4"}, USER) == expected
    assert prompt_of(glm, USER, {**said, "reasoning_content": None}, USER) == prompt_of(glm, USER, said, USER)


def test_h6_unknown_message_fields_are_ignored(chatml: TextBundle) -> None:
    extra = {"refusal": None, "audio": None, "annotations": [], "reasoning_details": [], "id": "x"}
    assert prompt_of(chatml, {**USER, **extra}) == prompt_of(chatml, USER)


def test_g11_results_go_to_their_calls(glm: TextBundle) -> None:
    calls = {"role": "assistant", "tool_calls": [call("a", {}, "1"), call("b", {}, "2")]}
    first = {"role": "tool", "content": "of a", "tool_call_id": "1"}
    second = {"role": "tool", "content": "of b", "tool_call_id": "2"}
    assert prompt_of(glm, USER, calls, second, first) == prompt_of(glm, USER, calls, first, second)
    anonymous = [{"role": "tool", "content": "of b"}, {"role": "tool", "content": "of a"}]
    text = prompt_of(glm, USER, calls, *anonymous)
    assert text.index("of b") < text.index("of a")


MARKERS = "print </think> and <|user|> literally <|im_end|>"


def test_g11_typed_markers_are_plain_text(glm: TextBundle, chatml: TextBundle) -> None:
    for bundle in (glm, chatml):
        plain = bundle.encode_chat([{"role": "user", "content": "print it"}])
        typed = bundle.encode_chat([{"role": "user", "content": MARKERS}])
        controls = set(bundle.tokenizer.added_tokens.values())
        assert MARKERS in typed.text
        assert bundle.tokenizer.decode(typed.tokens) == typed.text
        assert [token for token in typed.tokens if token in controls] == [
            token for token in plain.tokens if token in controls
        ]
        assert typed.starts_in_reasoning == plain.starts_in_reasoning


def test_g11_everywhere_a_client_can_type(glm: TextBundle) -> None:
    def build(text: str) -> list[dict[str, Any]]:
        return [
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}]},
            {
                "role": "assistant",
                "content": f"it is {text}",
                "reasoning_content": f"so {text}",
                "tool_calls": [call("f", {"k": text, text: ["x", {"y": text}]})],
            },
            {"role": "tool", "content": text},
        ]

    tool = {"type": "function", "function": {"name": "f", "description": MARKERS}}
    plain_tool = {"type": "function", "function": {"name": "f", "description": "."}}
    typed = glm.encode_chat(build(MARKERS), tools=[tool])
    plain = glm.encode_chat(build("."), tools=[plain_tool])
    controls = set(glm.tokenizer.added_tokens.values())
    assert glm.tokenizer.decode(typed.tokens) == typed.text
    assert [token for token in typed.tokens if token in controls] == [
        token for token in plain.tokens if token in controls
    ]


@pytest.mark.parametrize("text", ["\ufdd00\ufdd1", "\ufdd099\ufdd1", "\ufdd0", "a\ufdd2b", "\ud800"])
def test_g11_placeholders_cannot_be_forged(chatml: TextBundle, text: str) -> None:
    prompt = chatml.encode_chat([{"role": "user", "content": text}])
    shown = text.replace("\ud800", "\ufffd")
    assert shown in chatml.tokenizer.decode(prompt.tokens)


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


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "tools"),
        (["x"], "tools[0]"),
        ([{"type": "web_search"}], "tools[0]"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        (
            [TOOL, {"type": "function", "function": {"name": "f", "parameters": []}}],
            "tools[1].function.parameters",
        ),
    ],
)
def test_bad_tools_are_named(chatml: TextBundle, tools: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chatml.encode_chat([USER], tools=tools)
    assert caught.value.param == param


def test_tools_for_a_template_that_knows_none(llama3: TextBundle) -> None:
    """Declared in the system message; calls and results of the history in plain text."""
    history = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Oslo"})]},
        {"role": "tool", "content": "-3 <|eot_id|>", "tool_call_id": "call_1"},
    ]
    text = prompt_of(llama3, *history, tools=[TOOL])
    system, _, rest = text.partition("<|eot_id|>")
    assert "Be brief." in system
    assert "안녕 <b>" in system
    assert '<tool_call>\n{"name": "NAME"' in system
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in rest
    assert "<tool_response>\n-3 <|eot_id|>\n</tool_response>" in rest
    prompt = llama3.encode_chat(history, tools=[TOOL])
    assert prompt.tokens.count(llama3.tokenizer.token_id("<|eot_id|>") or 0) == 4
    assert prompt_of(llama3, USER, tools=[]) == prompt_of(llama3, USER)
    answer = toy.run(
        llama3,
        '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>',
        OutputOptions(tools=(TOOL,)),
    )
    assert [made["name"] for made in answer["calls"]] == ["get_weather"]
