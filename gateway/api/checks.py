"""
The small checks that the field tables are made of: type, range and length of one JSON value.

A check takes a value and the name that the client knows it by (`messages[0].role`), and returns what is forwarded or raises
`InvalidRequest`. Messages follow OpenAI's: what was expected, what came instead, never the value itself.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn

from gateway.errors import InvalidRequest, UnknownParameter

Check = Callable[[object, str], object]

_TYPE_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def wrong_type(value: object, param: str, expected: str) -> NoReturn:
    """Refuse *value*, which is not *expected*."""
    got = _TYPE_NAMES.get(type(value), "something else")
    raise InvalidRequest(
        f"Invalid type for '{param}': expected {expected}, but got {got} instead.", param=param, code="invalid_type"
    )


def wrong_value(param: str, why: str) -> NoReturn:
    """Refuse the value of *param*; *why* is a sentence."""
    raise InvalidRequest(f"Invalid value for '{param}': {why}", param=param)


def missing(param: str) -> NoReturn:
    """Refuse a request that lacks *param*."""
    raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def as_object(value: object, param: str, known: frozenset[str] | None = None) -> dict[str, object]:
    """Return *value* as a JSON object; with *known*, refuse names outside it."""
    if not isinstance(value, dict):
        wrong_type(value, param, "an object")
    if known is not None and not value.keys() <= known:
        raise UnknownParameter(f"{param}.{next(name for name in value if name not in known)[:64]}")
    return value


def as_array(value: object, param: str, *, at_least: int = 0, at_most: int | None = None) -> list[object]:
    """Return *value* as a JSON array of bounded length."""
    if not isinstance(value, list):
        wrong_type(value, param, "an array")
    if len(value) < at_least:
        wrong_value(param, f"it must hold at least {at_least} item{'s' if at_least != 1 else ''}.")
    if at_most is not None and len(value) > at_most:
        wrong_value(param, f"it holds {len(value)} items; at most {at_most} are accepted.")
    return value


def as_string(value: object, param: str, *, at_least: int = 0, at_most: int | None = None) -> str:
    """Return *value* as a string of bounded length, in characters."""
    if not isinstance(value, str):
        wrong_type(value, param, "a string")
    if len(value) < at_least:
        wrong_value(param, "it must not be empty.")
    if at_most is not None and len(value) > at_most:
        wrong_value(param, f"it is {len(value)} characters long; at most {at_most} are accepted.")
    return value


def boolean(value: object, param: str) -> object:
    """Accept true and false."""
    return value if isinstance(value, bool) else wrong_type(value, param, "a boolean")


def text(at_most: int, *, at_least: int = 0) -> Check:
    """Return a check for a string of bounded length."""
    return lambda value, param: as_string(value, param, at_least=at_least, at_most=at_most)


def integer(low: int, high: int) -> Check:
    """Return a check for an integer from *low* to *high*."""

    def check(value: object, param: str) -> object:
        if type(value) is not int:
            wrong_type(value, param, "an integer")
        if not low <= value <= high:
            wrong_value(param, f"it must be from {low} to {high}.")
        return value

    return check


def number(low: float, high: float, *, above_low: bool = False) -> Check:
    """Return a check for a number from *low* (or above it) to *high*."""

    def check(value: object, param: str) -> object:
        if type(value) is not float and type(value) is not int:
            wrong_type(value, param, "a number")
        if not low <= value <= high or (above_low and value == low):
            wrong_value(param, f"it must be {'above' if above_low else 'from'} {low:g} {_up_to(above_low)} {high:g}.")
        return value

    return check


def one_of(*choices: str) -> Check:
    """Return a check for one of a few words."""

    def check(value: object, param: str) -> object:
        if as_string(value, param) not in choices:
            wrong_value(param, f"it must be one of {', '.join(choices)}.")
        return value

    return check


def array_of(item: Check, *, at_most: int, at_least: int = 0) -> Check:
    """Return a check for an array whose items all pass *item*."""

    def check(value: object, param: str) -> object:
        items = as_array(value, param, at_least=at_least, at_most=at_most)
        return [item(each, f"{param}[{index}]") for index, each in enumerate(items)]

    return check


def token_ids(value: Sequence[object], param: str) -> None:
    """Check token ids at the speed of C: a prompt may have a hundred thousand of them."""
    if set(map(type, value)) != {int}:
        index, item = next((index, item) for index, item in enumerate(value) if type(item) is not int)
        wrong_type(item, f"{param}[{index}]", "an integer")
    if min(value) < 0 or max(value) >= 2**31:  # type: ignore[type-var, operator]  # all of them are int
        wrong_value(param, "token ids are integers from 0 to 2147483647.")


def _up_to(above_low: bool) -> str:
    return "and at most" if above_low else "to"
