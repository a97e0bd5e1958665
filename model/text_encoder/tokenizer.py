"""`Tokenizer`: text to token ids, special tokens by name. Byte-level BPE with NFC, so every text encodes.

Three sources: the built-in Qwen vocabulary, a folder, and a tiny one for synthetic checkpoints. A tokenizer
without H3's seven own tokens is refused: it would split `<d>` and condition on something the model never saw.
Making the built-in one takes about two seconds; importing makes nothing. Source: MiniMax-H3 tokenizer files.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from model.errors import TokenizerError, TokenizerMismatchError
from model.places import is_file
from model.text_encoder.special_tokens import END, H3_SPECIAL, PAD, QWEN_PLAIN, QWEN_SPECIAL, REQUIRED
from model.text_encoder.vocabulary import bpe_tables, byte_characters, read_ranks, vocabulary_file
from queue_schemas.errors import InvalidRequestError
from queue_schemas.requests import load_json_object

WORD_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where a text may be cut before BPE; digits stand alone."""
TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TOKENIZER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Qwen's has 11 MB."""
CONFIG_BYTES_MAX: Final = 4 * 1024 * 1024
EXTRA_KEYS: Final = ("additional_special_tokens", "extra_special_tokens")
"""Both spellings of the list that holds H3's tokens: transformers 4, transformers 5."""


class Tokenizer:
    """Token ids of a text. Adds no begin, end or padding token and cuts nothing off."""

    def __init__(self, backend: Backend) -> None:
        missing = [token for token in REQUIRED if backend.token_to_id(token) is None]
        if missing:
            raise TokenizerError(
                f"the tokenizer lacks {', '.join(missing)}; put MiniMax-H3's {CONFIG_FILE} beside its"
                f" {TOKENIZER_FILE}, or leave H3_TOKENIZER_DIR unset"
            )
        backend.no_truncation()  # a tokenizer.json may bring either, and both move the media clocks
        backend.no_padding()
        self._backend = backend

    @classmethod
    def built_in(cls) -> Self:
        """Qwen's vocabulary with Qwen's 26 and H3's 7 added tokens. Raises TokenizerError."""
        vocabulary, merges = bpe_tables(read_ranks(vocabulary_file()))
        backend = _byte_level_bpe(vocabulary, merges)
        backend.add_special_tokens(_added(QWEN_SPECIAL, special=True))
        backend.add_tokens(_added(QWEN_PLAIN, special=False))
        backend.add_special_tokens(_added(H3_SPECIAL, special=True))
        return cls(backend)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `tokenizer.json` and, where there is one, the further tokens of `tokenizer_config.json`.

        Raises TokenizerError.
        """
        path = folder / TOKENIZER_FILE
        if not is_file(path):
            raise TokenizerError(f"no {TOKENIZER_FILE} in {folder}; a tokenizer folder holds one")
        fields = _read_object(path, limit_bytes=TOKENIZER_BYTES_MAX)
        _refuse_other_kinds(fields, path=path)
        return cls(parse_backend(fields, _extra_tokens(folder / CONFIG_FILE), path=path))

    @classmethod
    def tiny(cls) -> Self:
        """One token per byte, 14 Qwen and 7 H3 specials: 277 ids, for synthetic checkpoints."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = _byte_level_bpe({character: i for i, character in enumerate(alphabet)}, [])
        backend.add_special_tokens(_added(REQUIRED, special=True))
        return cls(backend)

    def encode(self, text: str) -> list[int]:
        """Return the ids of one segment; joined texts would be cut into words differently."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens included; what was encoded comes back in NFC."""
        return self._backend.decode(ids, skip_special_tokens=False)

    def special_id(self, name: str) -> int:
        """Return the id of an added token such as `<|vision_start|>`. Raises TokenizerError."""
        found = self._backend.token_to_id(name)
        if found is None:
            raise TokenizerError(f"the tokenizer has no token {name!r}")
        return found

    @property
    def pad_id(self) -> int:
        return self.special_id(PAD)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def identity(self) -> str:
        """SHA-256 of everything that decides the ids; equal for equal tokenizers, whatever their source."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    def require_fit(self, num_rows: int) -> None:
        """Raise TokenizerMismatchError if some id has no row in an embedding of `num_rows`."""
        if self.vocab_size > num_rows:
            raise TokenizerMismatchError(largest_id=self.vocab_size - 1, num_rows=num_rows)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`; `transformers.AutoTokenizer` reads them too."""
        folder.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(folder / TOKENIZER_FILE))
        config = {
            "tokenizer_class": "Qwen2Tokenizer",
            "additional_special_tokens": [token for token in REQUIRED if token != PAD],
            "eos_token": END,
            "pad_token": PAD,
            "bos_token": None,
            "unk_token": None,
            "add_prefix_space": False,
        }
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def parse_backend(fields: Mapping[str, Any], extra: Iterable[str], *, path: Path) -> Backend:
    """Return the library's tokenizer of a `tokenizer.json`, with further tokens. Raises TokenizerError."""
    try:
        backend = Backend.from_str(json.dumps(fields))
        backend.add_special_tokens(_added(extra, special=True))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # nothing narrower: some files make the Rust code panic
        raise TokenizerError(f"{path} is no readable tokenizer: {error}") from None
    return backend


def load_tokenizer(folder: Path | None) -> Tokenizer:
    """Return the tokenizer of `folder`, or the built-in one where none is named. Raises TokenizerError."""
    return Tokenizer.built_in() if folder is None else Tokenizer.from_folder(folder)


def write_tiny_tokenizer(folder: Path) -> None:
    """Write the tokenizer of a synthetic checkpoint."""
    Tokenizer.tiny().save(folder)


def _byte_level_bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Backend:
    backend = Backend(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _added(tokens: Iterable[str], *, special: bool) -> list[AddedToken]:
    return [AddedToken(token, special=special, normalized=False) for token in tokens]


def _refuse_other_kinds(fields: Mapping[str, Any], *, path: Path) -> None:
    """Refuse all but what Qwen's tokenizer is, since anything else gives ids that mean other words.

    Only the vocabulary, the merges and the added tokens are a file's own. Raises TokenizerError.
    """
    own = json.loads(_byte_level_bpe({}, []).to_str())
    model = fields.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise TokenizerError(f"{path} is no byte-level BPE tokenizer, which Qwen's is")
    for part in ("normalizer", "pre_tokenizer"):
        if _without_offsets(fields.get(part)) != _without_offsets(own[part]):
            raise TokenizerError(f"{path}: its {part} is not Qwen's, so texts would be cut into other tokens")
    options = sorted(key for key, value in model.items() if key not in ("type", "vocab", "merges") and value)
    if options:
        raise TokenizerError(f"{path}: its model sets {', '.join(options)}, which Qwen's does not")
    vocabulary = model.get("vocab")
    missing = [
        char for char in byte_characters() if not isinstance(vocabulary, dict) or char not in vocabulary
    ]
    if missing:
        raise TokenizerError(f"{path}: its vocabulary lacks {len(missing)} of the 256 bytes")


def _without_offsets(part: Any) -> Any:
    """Drop what moves offsets only, which nobody reads."""
    if isinstance(part, dict):
        return {key: _without_offsets(value) for key, value in part.items() if key != "trim_offsets"}
    return [_without_offsets(item) for item in part] if isinstance(part, list) else part


def _read_object(path: Path, *, limit_bytes: int) -> dict[str, Any]:
    """Return a file's JSON object. Raises TokenizerError."""
    try:
        with path.open("rb") as file:
            return load_json_object(file.read(limit_bytes + 1), limit_bytes=limit_bytes)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from None
    except InvalidRequestError as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from None


def _extra_tokens(path: Path) -> list[str]:
    """Return the further special tokens that a `tokenizer_config.json` lists, in order."""
    if not is_file(path):
        return []
    config = _read_object(path, limit_bytes=CONFIG_BYTES_MAX)
    entries: list[Any] = []
    for key in EXTRA_KEYS:
        tokens = config.get(key) or []
        if not isinstance(tokens, list):
            raise TokenizerError(f"{path}: {' and '.join(EXTRA_KEYS)} must be lists of tokens")
        entries += [token.get("content") if isinstance(token, dict) else token for token in tokens]
    if not all(isinstance(token, str) and token for token in entries):
        raise TokenizerError(f"{path}: a special token is neither a text nor an object with its content")
    return entries
