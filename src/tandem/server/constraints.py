"""From the request's fields to what may be generated: response_format, structured outputs, tool_choice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tandem.core.errors import RequestError
from tandem.server.schemas.chat import ChatFields
from tandem.server.schemas.generation import GenerationFields
from tandem.text.bundle import ConstraintSpec


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What ``tools``, ``tool_choice`` and ``parallel_tool_calls`` come to."""

    declared: tuple[dict[str, Any], ...] = ()
    """Calls of these are recognised in the output."""
    in_prompt: bool = False
    drop_calls: bool = False
    """tool_choice "none": should the model call all the same, the call is left out."""
    required: bool = False
    name: str | None = None
    """Exactly this tool is to be called."""
    parallel: bool = True


def plan_tools(request: ChatFields) -> ToolPlan:
    """Raises RequestError 400 for a choice that cannot be met. An empty ``tools`` is no tools."""
    tools = tuple(request.tools or ())
    choice = request.tool_choice
    parallel = request.parallel_tool_calls is not False
    if isinstance(choice, dict):
        name = _named_tool(choice)
        if name not in {_tool_name(tool) for tool in tools}:
            raise _bad_choice(f"tool_choice names {name[:64]!r}, which is not among the tools")
        return ToolPlan(tools, in_prompt=True, required=True, name=name, parallel=False)
    if choice not in {None, "auto", "none", "required"}:
        raise _bad_choice("tool_choice must be auto, none, required or a function", found=repr(choice)[:80])
    if choice == "required" and not tools:
        raise _bad_choice("tool_choice is 'required', but there are no tools")
    if choice == "none" or not tools:
        return ToolPlan(tools, drop_calls=bool(tools))
    return ToolPlan(tools, in_prompt=True, required=choice == "required", parallel=parallel)


def _tool_name(tool: dict[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _named_tool(choice: dict[str, Any]) -> str:
    name = _tool_name(choice)
    if choice.get("type") != "function" or name is None:
        raise _bad_choice(
            'tool_choice must be {"type": "function", "function": {"name": …}}', found=repr(choice)[:80]
        )
    return name


def _bad_choice(message: str, found: str | None = None) -> RequestError:
    return RequestError(message, param="tool_choice", code="invalid_value", found=found)


def output_constraint(request: GenerationFields) -> ConstraintSpec | None:
    """The one constraint on the answer's text, or None. Raises RequestError 400 if there are several."""
    specs: list[ConstraintSpec] = []
    if request.response_format is not None and request.response_format.type != "text":
        specs.append(_from_response_format(request))
    structured = request.structured_outputs
    if structured is not None:
        where = "structured_outputs"
        if structured.json_object:
            specs.append(ConstraintSpec(kind="json_object", param=where))
        specs += _specs(structured.json_, structured.regex, structured.choice, structured.grammar, where)
        if len(specs) == 0:
            raise RequestError(
                "structured_outputs needs one of json, json_object, regex, choice, grammar",
                param=where,
                code="invalid_value",
            )
    specs += _specs(request.guided_json, None, None, None, "guided_json")
    specs += _specs(None, request.guided_regex, None, None, "guided_regex")
    specs += _specs(None, None, request.guided_choice, None, "guided_choice")
    specs += _specs(None, None, None, request.guided_grammar, "guided_grammar")
    if len(specs) > 1:
        raise RequestError(
            "Only one constraint on the output can be given",
            param=specs[1].param,
            code="invalid_value",
            found=", ".join(str(spec.param) for spec in specs),
        )
    return specs[0] if specs else None


def _specs(
    schema: Any, regex: str | None, choice: list[str] | None, grammar: str | None, param: str
) -> list[ConstraintSpec]:
    specs = []
    if schema is not None:
        specs.append(ConstraintSpec(kind="json_schema", json_schema=schema, param=param))
    if regex is not None:
        specs.append(ConstraintSpec(kind="regex", regex=regex, param=param))
    if choice is not None:
        words = " | ".join(json.dumps(word, ensure_ascii=False) for word in choice)
        specs.append(ConstraintSpec(kind="grammar", grammar=f"start: {words}", param=param))
    if grammar is not None:
        specs.append(ConstraintSpec(kind="grammar", grammar=grammar, param=param))
    return specs


def _from_response_format(request: GenerationFields) -> ConstraintSpec:
    assert request.response_format is not None
    if request.response_format.type == "json_object":
        return ConstraintSpec(kind="json_object", param="response_format")
    described = request.response_format.json_schema
    if described is None or described.json_schema is None:
        raise RequestError(
            "response_format json_schema needs a schema",
            param="response_format.json_schema.schema",
            code="missing_required_parameter",
        )
    return ConstraintSpec(kind="json_schema", json_schema=described.json_schema, param="response_format")
