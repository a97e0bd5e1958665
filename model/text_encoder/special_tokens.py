"""Names of the tokens that H3 adds to Qwen's base vocabulary, in id order.

Ids are never written down here: they follow the base vocabulary, so a tokenizer is asked for them by name.
Sources: Qwen3-VL `tokenizer.json`, MiniMax-H3 `tokenizer_config.json`.
"""

from typing import Final

PAD: Final = "<|endoftext|>"
END: Final = "<|im_end|>"
VISION_START: Final = "<|vision_start|>"
VISION_END: Final = "<|vision_end|>"
IMAGE_PAD: Final = "<|image_pad|>"
VIDEO_PAD: Final = "<|video_pad|>"

QWEN_SPECIAL: Final = (
    PAD,
    "<|im_start|>",
    END,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    VISION_START,
    VISION_END,
    "<|vision_pad|>",
    IMAGE_PAD,
    VIDEO_PAD,
)
QWEN_PLAIN: Final = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added, matched whole, but not special: a decoder keeps them."""
H3_SPECIAL: Final = (
    "<d>",
    "</d>",
    "<|cutoff|>",
    "<|lyrics_start|>",
    "<|lyrics_end|>",
    "<|caption_start|>",
    "<|caption_end|>",
)
"""Only in H3's `tokenizer_config.json`; a stock Qwen tokenizer splits them into ordinary text."""
REQUIRED: Final = (*QWEN_SPECIAL, *H3_SPECIAL)
