"""The only serializer that queue entries know: strict JSON, never pickle."""

import json
from typing import Any


class StrictJson:
    """rq's serializer protocol. NaN and infinities are refused: other readers could not parse them."""

    @staticmethod
    def dumps(obj: Any, /) -> bytes:
        return json.dumps(obj, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def loads(data: bytes, /) -> Any:
        return json.loads(data)
