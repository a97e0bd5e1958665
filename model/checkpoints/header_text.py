"""The JSON text of a header, read by the one grammar that it may have.

Not `json.loads`, which keeps the last of two equal keys, descends as deep as the text wants, builds all of it
before anything can be checked, and does not say where a fault is. Here every value is checked where it
stands: a string map for `__metadata__`, and for each tensor exactly dtype, shape and data_offsets.
"""

import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from queue_schemas.text import shortened

ELEMENT_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
TENSORS_MAX: Final = 20_000
"""The largest known file has 2,054."""
METADATA_KEYS_MAX: Final = 10_000
NAME_BYTES_MAX: Final = 4096
RANK_MAX: Final = 8
_FIELDS: Final = ("dtype", "shape", "data_offsets")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_USUAL_ENTRY: Final = re.compile(
    r'\{"dtype":"([A-Z0-9_]{2,7})",'
    r'"shape":\[((?:[1-9][0-9]{0,17}(?:,[1-9][0-9]{0,17}){0,7})?)\],'
    r'"data_offsets":\[(0|[1-9][0-9]{0,17}),([1-9][0-9]{0,17})\]\}'
)
"""An entry as every known writer has it; read at once, since sign by sign 1,000 of them take 25 ms."""
_STRING: Final = json.JSONDecoder()
"""Asked only where a quotation mark stands, so it never descends."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as the header declares it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Byte offset in the payload."""
    end: int


class HeaderTextError(ValueError):
    """Raised for a text that is no header; `position` is the byte of the text at which that shows."""

    def __init__(self, reason: str, *, position: int) -> None:
        super().__init__(reason)
        self.position = position


def parse_header_text(data: bytes) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Return tensors, in the text's order, and metadata. Raises HeaderTextError."""
    if not data.startswith(b"{"):
        raise HeaderTextError("the header does not start with '{'", position=0)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeaderTextError("the header is not valid UTF-8", position=error.start) from None
    return _Parser(text).header()


def quoted(name: str) -> str:
    """Return a name as messages show it: escaped, and no longer than a line."""
    return shortened(ascii(name), 100)


class _Parser:
    """A position in the text, and what may follow there."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.end = 0
        """Just behind the last sign that was read; white space may stand between it and `at`."""

    def header(self) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        tensors: dict[str, TensorEntry] = {}
        metadata: dict[str, str] = {}

        def member(name: str, start: int) -> None:
            if name == "__metadata__":
                metadata.update(self._metadata())
                return
            if len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
                self.fail(f"the tensor name {quoted(name)} is too long or not printable", start)
            if len(tensors) == TENSORS_MAX:
                self.fail(f"there are more than {TENSORS_MAX:,} tensors", start)
            tensors[name] = self._entry(name)

        self._object("the header", member)
        rest = self.text[self.end :].lstrip(" ")
        if rest:
            self.fail(f"{rest[0]!a} follows the header, which only spaces may", len(self.text) - len(rest))
        return tensors, metadata

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        position = len(self.text[: self.at if at is None else at].encode())
        raise HeaderTextError(reason, position=position)

    def _metadata(self) -> dict[str, str]:
        found: dict[str, str] = {}

        def member(key: str, start: int) -> None:
            if len(found) == METADATA_KEYS_MAX:
                self.fail(f"__metadata__ has more than {METADATA_KEYS_MAX:,} keys", start)
            found[key] = self._string(f"the value of __metadata__ {quoted(key)}")

        self._object("__metadata__", member)
        return found

    def _entry(self, name: str) -> TensorEntry:
        what, start = f"tensor {quoted(name)}", self.at
        usual = _USUAL_ENTRY.match(self.text, start)
        if usual is not None and usual[1] in ELEMENT_BITS:
            self.at = self.end = usual.end()
            self._skip_space()
            shape = tuple(map(int, usual[2].split(","))) if usual[2] else ()
            begin, end = int(usual[3]), int(usual[4])
            self._check_bytes(what, usual[1], shape, begin=begin, end=end, start=start)
            return TensorEntry(usual[1], shape, begin, end)
        dtype, found = "", dict[str, tuple[int, ...]]()

        def member(field: str, field_start: int) -> None:
            nonlocal dtype
            if field == "dtype":
                dtype = self._string(f"dtype of {what}")
                if dtype not in ELEMENT_BITS:
                    self.fail(f"{what} has the unknown dtype {quoted(dtype)}", field_start)
            elif field in _FIELDS:
                limit = RANK_MAX if field == "shape" else 2
                found[field] = self._integers(f"{field} of {what}", limit=limit)
            else:
                self.fail(f"{what} has the unknown field {quoted(field)}", field_start)

        self._object(what, member)
        missing = [field for field in _FIELDS if field not in found and (field != "dtype" or not dtype)]
        if missing:
            self.fail(f"{what} lacks {', '.join(missing)}", start)
        if len(found["data_offsets"]) != 2:
            self.fail(f"data_offsets of {what} are not two numbers", start)
        begin, end = found["data_offsets"]
        self._check_bytes(what, dtype, found["shape"], begin=begin, end=end, start=start)
        return TensorEntry(dtype, found["shape"], begin, end)

    def _check_bytes(
        self, what: str, dtype: str, shape: tuple[int, ...], *, begin: int, end: int, start: int
    ) -> None:
        bits = math.prod(shape) * ELEMENT_BITS[dtype]
        # Also where a 0 follows: other readers multiply in this order, in 64 bits.
        if max(bits, *itertools.accumulate(shape, operator.mul, initial=1)) >= 2**64:
            self.fail(f"{what} ({dtype} {list(shape)}) has more bytes than a file can", start)
        if begin > end:
            self.fail(f"{what} ends ({end:,}) before it begins ({begin:,})", start)
        if bits != (end - begin) * 8:
            needed = f"{bits // 8:,}" if bits % 8 == 0 else f"{bits / 8:,}"
            self.fail(
                f"{what} ({dtype} {list(shape)}) needs {needed} bytes and declares {end - begin:,}", start
            )

    def _object(self, what: str, member: Callable[[str, int], None]) -> None:
        """Read `{...}`; `member` reads each value, given its key and where that stands."""
        self._expect("{", f"{what} is no JSON object")
        seen: set[str] = set()
        if self._skips("}"):
            return
        while True:
            start = self.at
            key = self._string(f"a key of {what}")
            if key in seen:
                self.fail(f"{what} has the key {quoted(key)} twice", start)
            seen.add(key)
            self._expect(":", f"no ':' after the key {quoted(key)}")
            member(key, start)
            if self._skips("}"):
                return
            self._expect(",", f"no ',' or '}}' in {what}")

    def _integers(self, what: str, *, limit: int) -> tuple[int, ...]:
        self._expect("[", f"{what} is no array of integers")
        found: list[int] = []
        if self._skips("]"):
            return ()
        while True:
            if len(found) == limit:
                self.fail(f"{what} has more than {limit} numbers")
            found.append(self._integer(what))
            if self._skips("]"):
                return tuple(found)
            self._expect(",", f"{what} is no array of integers")

    def _integer(self, what: str) -> int:
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            self.fail(f"{what} holds something that is no number")
        if not _INTEGER.fullmatch(number[0]) or int(number[0]) >= 2**64:
            self.fail(f"{what} holds {quoted(number[0])[1:-1]}, which is no integer of 0 to 2^64 - 1")
        self.at = number.end()
        self._skip_space()
        return int(number[0])

    def _string(self, what: str) -> str:
        if not self.text.startswith('"', self.at):
            self.fail(f"{what} is no string")
        try:
            value, end = _STRING.raw_decode(self.text, self.at)
            value.encode()  # a lone surrogate, which JSON can escape and UTF-8 cannot hold
        except json.JSONDecodeError as error:
            self.fail(f"{what} is a malformed string", error.pos)
        except UnicodeEncodeError:
            self.fail(f"{what} holds half a surrogate pair")
        self.at = end
        self._skip_space()
        return str(value)

    def _expect(self, sign: str, otherwise: str) -> None:
        if not self._skips(sign):
            self.fail(otherwise)

    def _skips(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += 1
        self.end = self.at
        self._skip_space()
        return True

    def _skip_space(self) -> None:
        space = _SPACE.match(self.text, self.at)
        assert space is not None  # it may be empty
        self.at = space.end()
