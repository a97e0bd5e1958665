"""The tokenizers give the published ids, and refuse what would silently give others."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from model.config import RELEASED, TINY
from model.errors import TokenizerError, TokenizerMismatchError
from model.text_encoder.presentation import present_t2va
from model.text_encoder.special_tokens import H3_SPECIAL
from model.text_encoder.tokenizer import Tokenizer, load_tokenizer, parse_backend, write_tiny_tokenizer
from model.text_encoder.vocabulary import read_ranks, vocabulary_file
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions

ODD_TEXTS = (
    "👩‍👩‍👧‍👦 🏳️‍🌈 🦊 🇪🇺 1️⃣",
    "雪の森を走る狐。一个机器人在跳舞。로봇이 춤춘다",
    "שלום עולם — مرحبا بالعالم \u202btest\u202c",
    "नमस्ते दुनिया, สวัสดีชาวโลก",
    "\ta \r\n\r\n  b\u00a0\u2003c\u200d\ufeff ",
    "x\u0001\u007f\ufffd\U0010ffff",
    "'S 'll don't 12345 3.14 <d>[English] Hi.</d><|cutoff|><think>",
)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<Picture 1>: ", "21604 3826 220 16 26818 220"),
        ("<Picture 2>: ", "21604 3826 220 17 26818 220"),
        ("<Audio 1>: ", "65406 220 16 26818 220"),
        ("<Video 1>: ", "27 10724 220 16 26818 220"),
        ("<0.2 seconds>", "27 15 13 17 6486 29"),
        ("<10.2 seconds>", "27 16 15 13 17 6486 29"),
        ("a robot dancing", "64 12305 27966"),
        (
            "A red fox trotting through a snowy pine forest, snow crunching underfoot",
            "32 2518 38835 56577 1280 1526 264 89773 33597 13638 11 11794 41734 287 1212 5334",
        ),
        (
            "<d>[English] Then I will take two.</d>",
            "151669 58 22574 60 5005 358 686 1896 1378 13 151670",
        ),
        ("<d>[English] hold on</d><|cutoff|>", "151669 58 22574 60 3331 389 151670 151671"),
    ],
)
def test_the_built_in_tokenizer_gives_the_published_ids(tokenizer: Tokenizer, text: str, ids: str) -> None:
    assert tokenizer.encode(text) == [int(part) for part in ids.split()]


@pytest.mark.parametrize(("conventions", "kind"), [(COMFYUI, "ids"), (DIFFUSERS, "ids_plain_tokenizer")])
def test_prompts_give_the_ids_of_the_preset(
    tokenizer: Tokenizer,
    golden: Callable[[str], dict[str, Tensor]],
    conventions: Conventions,
    kind: str,
) -> None:
    tensors = golden("tokens")
    names = sorted({name.split(".")[0] for name in tensors})

    for name in names:
        prompt = bytes(tensors[f"{name}.utf8"].tolist()).decode()
        presentation = present_t2va(prompt, tokenizer=tokenizer, conventions=conventions)

        assert list(presentation.ids) == tensors[f"{name}.{kind}"].tolist(), name
        assert presentation.tags == (1,) * len(presentation.ids)

    assert len(names) == 25


def test_a_part_begins_at_embedding_after_any_white_space_and_nowhere_else(tokenizer: Tokenizer) -> None:
    def ids(prompt: str) -> list[int]:
        return list(present_t2va(prompt, tokenizer=tokenizer, conventions=COMFYUI).ids)

    assert ids("see\nembedding:a embedding:b") == [
        token for part in ("see\n", "embedding:a ", "embedding:b") for token in tokenizer.encode(part)
    ]
    assert ids("(embedding:a) myembedding:b") == tokenizer.encode("(embedding:a) myembedding:b")


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_text_comes_back_byte_for_byte(tokenizer: Tokenizer, text: str) -> None:
    composed = unicodedata.normalize("NFC", text)

    assert tokenizer.decode(tokenizer.encode(text)).encode() == composed.encode()
    assert Tokenizer.tiny().decode(Tokenizer.tiny().encode(text)).encode() == composed.encode()


def test_the_built_in_tokenizer_fits_the_released_embedding_and_no_smaller_one(tokenizer: Tokenizer) -> None:
    tokenizer.require_fit(RELEASED.text_encoder.vocab_size)

    with pytest.raises(TokenizerMismatchError, match=r"151675.* 512 rows"):
        tokenizer.require_fit(TINY.text_encoder.vocab_size)


def test_special_tokens_follow_the_base_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 151_676
    assert tokenizer.pad_id == 151_643
    assert tokenizer.special_id("<|vision_start|>") == 151_652
    assert [tokenizer.special_id(name) for name in H3_SPECIAL] == list(range(151_669, 151_676))
    with pytest.raises(TokenizerError, match="<nothing>"):
        tokenizer.special_id("<nothing>")


def test_the_built_in_tokenizer_agrees_with_transformers_own_class(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)

    assert type(theirs).__name__.startswith("Qwen2Tokenizer")
    for text in ODD_TEXTS:
        assert tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_a_saved_tokenizer_is_the_same_when_read_from_its_folder(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)

    read = load_tokenizer(tmp_path)

    assert read.identity == tokenizer.identity
    assert read.identity != Tokenizer.tiny().identity


def test_the_tiny_tokenizer_has_a_token_per_byte_and_21_special_ones(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    tiny = load_tokenizer(tmp_path)

    assert tiny.identity == Tokenizer.tiny().identity
    assert tiny.vocab_size == 277
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<d>", "<|caption_end|>")
    assert [tiny.special_id(name) for name in names] == [265, 266, 268, 269, 270, 276]
    assert len(tiny.encode("añ🦊<d>")) == 1 + 2 + 4 + 1
    tiny.require_fit(TINY.text_encoder.vocab_size)


def test_a_stock_folder_is_refused_until_the_h3_tokens_stand_in_its_config(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    stock = json.loads(file.read_text(encoding="utf-8"))
    stock["added_tokens"] = [item for item in stock["added_tokens"] if item["content"] not in H3_SPECIAL]
    stock["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(stock), encoding="utf-8")
    config = tmp_path / "tokenizer_config.json"
    config.unlink()

    with pytest.raises(TokenizerError, match=r"lacks <d>, .*tokenizer_config\.json"):
        load_tokenizer(tmp_path)

    for key in ("additional_special_tokens", "extra_special_tokens"):
        config.write_text(json.dumps({key: [{"content": "<d>"}, *H3_SPECIAL[1:]]}), encoding="utf-8")
        completed = load_tokenizer(tmp_path)
        assert completed.identity == Tokenizer.tiny().identity
        assert len(completed.encode("not cut off")) == 11


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "expected a JSON object"),
        ("[" * 100_000, "deeper than 16 levels"),
        ('{"a":' * 100 + "1" + "}" * 100, "deeper than 16 levels"),
        ('{"a": 1, "a": 1}', "same key twice"),
        ('{"a": "' + "x" * 5_000_000 + '"}', "at most 4,194,304"),
        ('{"extra_special_tokens": {"a": "b"}}', "must be lists"),
        ('{"extra_special_tokens": [7]}', "neither a text"),
        ('{"extra_special_tokens": [""]}', "neither a text"),
        ('{"extra_special_tokens": ["\\ud800"]}', "no readable tokenizer: .*surrogates"),
    ],
    ids=range(10),
)
def test_a_malformed_tokenizer_config_is_refused(tmp_path: Path, config: str, reason: str) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")

    with pytest.raises(TokenizerError, match=reason) as caught:
        load_tokenizer(tmp_path)

    assert len(str(caught.value)) < 500


PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
"""Makes the library panic, with an exception that is no Exception."""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": PRECOMPILED}, "its normalizer is not Qwen's"),
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer is not Qwen's"),
        ({"normalizer": None}, "its normalizer is not Qwen's"),
        ({"pre_tokenizer": None}, "its pre_tokenizer is not Qwen's"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}}}, "its pre_tokenizer is not"),
        ({"model": None}, "no byte-level BPE"),
        ({"model": {"type": "WordPiece", "vocab": {}}}, "no byte-level BPE"),
        ({"model": {"type": "BPE"}}, "lacks 256 of the 256 bytes"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "lacks 256 of the 256 bytes"),
        ({"model": {"type": "BPE", "vocab": ["a"], "merges": []}}, "lacks 256 of the 256 bytes"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "lacks 255 of the 256 bytes"),
        ({"model": {"type": "BPE", "dropout": 0.5, "unk_token": "a"}}, "its model sets dropout, unk_token"),
        ({"version": "9.0"}, "no readable tokenizer: Unknown tokenizer version"),
        ({"added_tokens": 3}, "no readable tokenizer"),
    ],
    ids=range(14),
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change), encoding="utf-8")

    with pytest.raises(TokenizerError, match=reason):
        load_tokenizer(tmp_path)


def test_a_panic_inside_the_library_is_an_error_like_any_other(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    fields = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))

    with pytest.raises(TokenizerError, match=r"x\.json is no readable tokenizer: Precompiled"):
        parse_backend(fields | {"normalizer": PRECOMPILED}, [], path=Path("x.json"))


def test_a_vocabulary_may_move_offsets_and_name_more_tokens_than_qwens(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    fields["pre_tokenizer"]["pretokenizers"][1]["trim_offsets"] = False
    fields["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    file.write_text(json.dumps(fields), encoding="utf-8")

    assert load_tokenizer(tmp_path).encode("a fox") == Tokenizer.tiny().encode("a fox")


def test_a_folder_without_a_readable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in"):
        load_tokenizer(tmp_path)

    for text in ("", "{", "[" * 100_000, "\x00"):
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
            load_tokenizer(tmp_path)


def test_an_altered_or_absent_vocabulary_is_refused_with_a_remedy(tmp_path: Path) -> None:
    altered = tmp_path / "qwen.tiktoken"
    altered.write_bytes(vocabulary_file().read_bytes().replace(b"IQ== 0", b"IQ== 1", 1))

    with pytest.raises(TokenizerError, match=r"sha256 .*H3_TOKENIZER_DIR"):
        read_ranks(altered)
    with pytest.raises(TokenizerError, match=r"cannot be read .*worker extra"):
        read_ranks(tmp_path / "absent")
    with pytest.raises(TokenizerError, match="not installed; install the worker extra"):
        vocabulary_file("no-such-distribution")
