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
from model.text_encoder.special_tokens import END, H3_SPECIAL, PAD, QWEN_PLAIN, QWEN_SPECIAL, REQUIRED
from model.text_encoder.vocabulary import bpe_tables, read_ranks, vocabulary_file

WORD_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where a text may be cut before BPE; digits stand alone."""
TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
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
        if not path.is_file():
            raise TokenizerError(f"no {TOKENIZER_FILE} in {folder}; a tokenizer folder holds one")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower for a malformed file
            raise TokenizerError(f"{path} is no readable tokenizer: {error}") from None
        backend.add_special_tokens(_added(_extra_tokens(folder / CONFIG_FILE), special=True))
        return cls(backend)

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


def _extra_tokens(path: Path) -> list[str]:
    """Return the further special tokens that a `tokenizer_config.json` lists, in order."""
    if not path.is_file():
        return []
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from None
    listed = [config.get(key) or [] for key in EXTRA_KEYS] if isinstance(config, dict) else [None]
    entries: list[Any] = []
    for tokens in listed:
        if not isinstance(tokens, list):
            raise TokenizerError(f"{path}: {' and '.join(EXTRA_KEYS)} must be lists of tokens")
        entries += [token.get("content") if isinstance(token, dict) else token for token in tokens]
    if not all(isinstance(token, str) and token for token in entries):
        raise TokenizerError(f"{path}: a special token is neither a text nor an object with its content")
    return entries
