"""How every model of the wire contract reads JSON: types as they are, nothing guessed.

`true` is no number, `"8"` no 8, `8.0` no 8; an 8 may stand for 8.0, as JSON knows one kind of number. Frozen,
and without the numbers that JSON lacks (NaN, infinities). Knows no fields.
"""

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict


class Asked(BaseModel):
    """What somebody asks for: a field that nobody knows is refused, since ignoring it makes a wrong film."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Told(BaseModel):
    """What somebody tells: fields of a newer version are ignored, so an old reader keeps reading."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


T = TypeVar("T")
Lax = Annotated[T, Strict(False)]
"""An enum by its value, a tuple from a list: what JSON has no type for."""


def _check_whole(value: Any) -> Any:
    if type(value) is not int:  # to Python, and to pydantic's Literal, True and 1.0 are 1 as well
        raise ValueError("expected the number 1")
    return value


def _check_finite(fields: dict[str, Any]) -> dict[str, Any]:
    pending: list[Any] = [fields]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError("it holds a number that is not finite")
        pending += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return fields


def _check_encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds a lone surrogate, which no text encoding can carry") from None
    return text


Text = Annotated[str, AfterValidator(_check_encodable)]
"""A text that can be written; one that was read from JSON always can."""
Version1 = Annotated[Literal[1], BeforeValidator(_check_whole)]
"""`schema_version` of everything so far."""
JsonFields = Annotated[dict[str, Any], AfterValidator(_check_finite)]
"""An object whose fields another schema checks."""
