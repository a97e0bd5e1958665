"""A picture brought to its size with PIL's LANCZOS in 8 bits, as ComfyUI and diffusers do.

`stretch` fills the size whatever the shape. The two ways to crop differ in order and in rounding: ComfyUI
cuts the source and then resizes, diffusers resizes to cover and then cuts.
"""

from typing import Literal

from PIL import Image

Fit = Literal["stretch", "crop_then_resize", "resize_then_crop"]


def fit(image: Image.Image, size: tuple[int, int], *, how: Fit) -> tuple[Image.Image, list[str]]:
    """Return an RGB picture of exactly `size` (width, height), and what was changed."""
    if image.size == size:
        return image, []
    was, (width, height) = image.size, size
    if how == "crop_then_resize":
        image, cut = _cut_to_shape(image, size)
        fitted = image.resize(size, Image.Resampling.LANCZOS)
    elif how == "resize_then_crop":
        fitted, cut = _cover(image, size)
    else:
        fitted, cut = image.resize(size, Image.Resampling.LANCZOS), False
    verb = "Cropped about its centre and scaled" if cut else "Scaled"
    return fitted, [
        f"{verb} from {was[0]}x{was[1]} to {width}x{height} pixels{_distortion(was, size, cut=cut)}."
    ]


def _cut_to_shape(image: Image.Image, size: tuple[int, int]) -> tuple[Image.Image, bool]:
    width, height = image.size
    old, new = width / height, size[0] / size[1]
    x = round((width - width * (new / old)) / 2) if old > new else 0
    y = round((height - height * (old / new)) / 2) if old < new else 0
    return image.crop((x, y, width - x, height - y)), x > 0 or y > 0


def _cover(image: Image.Image, size: tuple[int, int]) -> tuple[Image.Image, bool]:
    scale = max(size[0] / image.width, size[1] / image.height)
    wide, high = max(size[0], round(image.width * scale)), max(size[1], round(image.height * scale))
    covering = image.resize((wide, high), Image.Resampling.LANCZOS)
    left, top = (wide - size[0]) // 2, (high - size[1]) // 2
    return covering.crop((left, top, left + size[0], top + size[1])), (wide, high) != size


def _distortion(was: tuple[int, int], size: tuple[int, int], *, cut: bool) -> str:
    """Say so where the shape changed by more than rounding to 32 pixels explains."""
    change = (was[0] / was[1]) / (size[0] / size[1])
    if cut or 0.9 < change < 1 / 0.9:
        return ""
    return ", which distorts it"
