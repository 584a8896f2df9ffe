"""
What constrains an answer: JSON schemas, regular expressions, grammars, and the tools that a model may call.

The replica compiles each of these into a grammar, and a small text can compile into a huge one. So all are bounded: a schema
is at most 64 KiB and 16 levels deep, a regular expression 512 characters, without large or multiplied repeats.

Source: vLLM 0.32 `sampling_params.StructuredOutputsParams`; design/acceptance.md, "vLLM facts behind the field policy".
"""

import re

import msgspec

from gateway.api.checks import (
    array_of,
    as_array,
    as_object,
    as_string,
    boolean,
    missing,
    one_of,
    text,
    wrong_type,
    wrong_value,
)

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 16
MAX_REGEX_CHARS = 512
MAX_REPEATS = 1000  #: of counted repeats, multiplied where one stands inside another
MAX_GRAMMAR_CHARS = 16 * 1024
MAX_CHOICES = 256
MAX_CHOICE_CHARS = 1024
MAX_TOOLS = 128
MAX_NAME_CHARS = 256
MAX_DESCRIPTION_CHARS = 64 * 1024

_CONSTRAINTS = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})
_STRUCTURED = _CONSTRAINTS | {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
_RESPONSE_TYPE = one_of("text", "json_object", "json_schema", "structural_tag")
_REPEAT = re.compile(r"\{(\d*)(?:,(\d*))?\}")

_name = text(MAX_NAME_CHARS, at_least=1)
_description = text(MAX_DESCRIPTION_CHARS)
_choices = array_of(text(MAX_CHOICE_CHARS, at_least=1), at_least=1, at_most=MAX_CHOICES)


def schema(value: object, param: str) -> object:
    """Accept a JSON schema of bounded size and depth, whose patterns are bounded too."""
    as_object(value, param)
    if len(msgspec.json.encode(value)) > MAX_SCHEMA_BYTES:
        wrong_value(param, f"it is larger than {MAX_SCHEMA_BYTES} bytes.")
    level: list[object] = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [child for parent in level for child in _children(parent, param)]
    if level:
        wrong_value(param, f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep.")
    return value


def regex(value: object, param: str) -> object:
    """Accept a regular expression whose repeats stay small."""
    pattern = as_string(value, param, at_least=1, at_most=MAX_REGEX_CHARS)
    if _repeats(pattern) > MAX_REPEATS:
        wrong_value(param, f"its counted repeats, multiplied where nested, must not exceed {MAX_REPEATS}.")
    return pattern


def response_format(value: object, param: str) -> object:
    """Accept OpenAI's `response_format`, and vLLM's `structural_tag`."""
    format_ = as_object(value, param)
    kind = format_.get("type")
    if kind is None:
        missing(f"{param}.type")
    _RESPONSE_TYPE(kind, f"{param}.type")
    if kind == "structural_tag":
        return schema(format_, param)
    as_object(format_, param, frozenset({"type", "json_schema"} if kind == "json_schema" else {"type"}))
    if kind == "json_schema":
        _json_schema(format_.get("json_schema"), f"{param}.json_schema")
    return format_


def structured_outputs(value: object, param: str) -> object:
    """Accept vLLM's `structured_outputs`; the choice of its backend is the replica's."""
    given = {name: item for name, item in as_object(value, param, _STRUCTURED).items() if item is not None}
    if len(_CONSTRAINTS & given.keys()) != 1:
        wrong_value(param, f"it must hold exactly one of {', '.join(sorted(_CONSTRAINTS))}.")
    for name, item in given.items():
        where = f"{param}.{name}"
        if name in {"json", "structural_tag"}:
            _schema_or_text(item, where)
        elif name in {"regex", "whitespace_pattern"}:
            regex(item, where)
        elif name == "choice":
            _choices(item, where)
        elif name == "grammar":
            as_string(item, where, at_least=1, at_most=MAX_GRAMMAR_CHARS)
        else:
            boolean(item, where)
    return given


def tools(value: object, param: str) -> object:
    """Accept the functions that a model may call."""
    return [
        _tool(tool, f"{param}[{index}]")
        for index, tool in enumerate(as_array(value, param, at_least=1, at_most=MAX_TOOLS))
    ]


def tool_choice(value: object, param: str) -> object:
    """Accept none, auto, required, or one function by name."""
    if isinstance(value, str):
        return _MODE(value, param)
    if not isinstance(value, dict):
        wrong_type(value, param, "a string or an object")
    choice = as_object(value, param, frozenset({"type", "function"}))
    if choice.get("type") != "function":
        wrong_value(f"{param}.type", "only a function can be chosen.")
    function = as_object(choice.get("function"), f"{param}.function", frozenset({"name"}))
    if function.get("name") is None:
        missing(f"{param}.function.name")
    _name(function["name"], f"{param}.function.name")
    return choice


def check_tool_choice_matches(choice: object, offered: object) -> None:
    """Refuse a checked `tool_choice` that no checked `tools` can satisfy: vLLM would answer with an error."""
    if choice is None or choice == "none":
        return
    if not isinstance(offered, list):
        wrong_value("tool_choice", "it is only allowed when tools are specified.")
    if isinstance(choice, dict):
        names = {tool["function"]["name"] for tool in offered}
        if choice["function"]["name"] not in names:
            wrong_value("tool_choice", "it names a function that is not among the tools.")


_MODE = one_of("none", "auto", "required")


def _tool(value: object, param: str) -> object:
    tool = as_object(value, param)
    kind = tool.get("type")
    if kind is None:
        missing(f"{param}.type")
    if kind != "function":
        wrong_value(f"{param}.type", "only tools of type function are supported.")
    as_object(tool, param, frozenset({"type", "function"}))
    function = as_object(
        tool.get("function"), f"{param}.function", frozenset({"name", "description", "parameters", "strict"})
    )
    given = {name: item for name, item in function.items() if item is not None}
    if "name" not in given:
        missing(f"{param}.function.name")
    for name, check in (("name", _name), ("description", _description), ("parameters", schema), ("strict", boolean)):
        if name in given:
            check(given[name], f"{param}.function.{name}")
    return {"type": "function", "function": given}


def _json_schema(value: object, param: str) -> None:
    if value is None:
        missing(param)
    given = as_object(value, param, frozenset({"name", "description", "schema", "strict"}))
    for name in ("name", "schema"):
        if given.get(name) is None:
            missing(f"{param}.{name}")
    for name, check in (("name", _name), ("description", _description), ("schema", schema), ("strict", boolean)):
        if given.get(name) is not None:
            check(given[name], f"{param}.{name}")


def _schema_or_text(value: object, param: str) -> None:
    if isinstance(value, str):
        as_string(value, param, at_least=1, at_most=MAX_SCHEMA_BYTES)
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            wrong_value(param, "it is not valid JSON.")
    schema(value, param)


def _children(parent: object, param: str) -> list[object]:
    """Return the containers directly inside *parent*; check the patterns met on the way."""
    if isinstance(parent, list):
        return [child for child in parent if isinstance(child, dict | list)]
    if not isinstance(parent, dict):
        return []
    pattern = parent.get("pattern")
    if isinstance(pattern, str):
        regex(pattern, f"{param}.pattern")
    patterns = parent.get("patternProperties")
    if isinstance(patterns, dict):
        for each in patterns:
            regex(each, f"{param}.patternProperties")
    return [child for child in parent.values() if isinstance(child, dict | list)]


def _repeats(pattern: str) -> int:
    """
    Return the largest product of counted repeats along any nesting of groups in *pattern*; 0 when there are none.

    Reads only escapes, classes, groups and `{n,m}`; whether the rest is a valid expression is the replica's to say.
    """
    heaviest = 0  # of everything read so far in the group at hand
    last = 1  # of the atom that a repeat would apply to
    outer: list[int] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        repeat = _REPEAT.match(pattern, position) if character == "{" else None
        if repeat is not None:
            counts = [int(count) for count in repeat.groups() if count]
            last *= max(counts, default=1) or 1
            heaviest = max(heaviest, last)
            position = repeat.end()
            continue
        if character == "(":
            outer.append(heaviest)
            heaviest = 0
        elif character == ")" and outer:
            last = max(heaviest, 1)
            heaviest = max(heaviest, outer.pop())
        elif character == "[":
            position = _end_of_class(pattern, position)
            last = 1
        elif character not in "*+?":
            position += character == "\\"
            last = 1
        position += 1
    return max([heaviest, *outer])


def _end_of_class(pattern: str, position: int) -> int:
    """Return where the character class that opens at *position* closes."""
    position += 2  # a bracket directly after the opening one is an ordinary member
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position
