"""A picture's own colours into 8-bit sRGB RGB: profiles, CMYK, grey, palettes, transparency.

An embedded ICC profile is followed (relative colorimetric, black point compensated) unless it is sRGB itself
to within one level. CMYK without a profile becomes R = (1 - C)(1 - K) and so on. Transparency is laid over
white, after the conversion. 16 bits keep their upper 8.
"""

import io
from typing import Final

import numpy as np
from PIL import Image, ImageChops, ImageCms

from media.errors import ReferenceUnreadableError

BACKGROUND: Final = (255, 255, 255)
"""What shows through a transparent picture."""
BACKGROUND_NAME: Final = "white"
_GREY_16: Final = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_MODES: Final = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", *_GREY_16)


def to_srgb(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """Return a decoded picture in mode RGB, and what was changed. Raises ReferenceUnreadableError."""
    if image.mode not in _MODES:
        raise ReferenceUnreadableError(
            f"its pixels are of mode {image.mode}, which is not read; save it as 8-bit RGB"
        )
    changes: list[str] = []
    profile = image.info.get("icc_profile")
    image, alpha = _split_alpha(image, changes)
    if image.mode == "CMYK":
        image = _from_cmyk(image, profile, changes)
    else:
        if image.mode not in ("L", "RGB"):
            image = image.convert("RGB")
        image = _from_profile(image, profile, changes) if profile else image
    if image.mode != "RGB":
        image = image.convert("RGB")
    if alpha is not None and alpha.getextrema()[0] != 255:
        changes.append(f"Its transparent parts were laid over {BACKGROUND_NAME}.")
        image.paste(BACKGROUND, mask=ImageChops.invert(alpha))
    return image, changes


def _split_alpha(image: Image.Image, changes: list[str]) -> tuple[Image.Image, Image.Image | None]:
    """Return the picture without its transparency, in mode L, RGB or CMYK, and that transparency."""
    if image.mode in _GREY_16:
        changes.append("Its 16-bit grey was reduced to 8 bits.")
        levels = np.asarray(image)
        clear = image.info.get("transparency")
        alpha = Image.fromarray(np.uint8(255) * (levels != clear)) if isinstance(clear, int) else None
        return Image.fromarray((np.clip(levels, 0, 65_535) >> 8).astype(np.uint8)), alpha
    if image.has_transparency_data:
        grey = image.mode in ("1", "L", "LA", "La")  # kept grey, as a grey profile wants it
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        return image.convert("L" if grey else "RGB"), image.getchannel("A")
    return image, None


def _from_cmyk(image: Image.Image, profile: bytes | None, changes: list[str]) -> Image.Image:
    if profile:
        try:
            converted = _transform(image, profile)
        except (ImageCms.PyCMSError, OSError, ValueError):
            changes.append("Its colour profile is damaged or not one of CMYK, and was left out.")
        else:
            changes.append("CMYK was converted to sRGB through its own profile.")
            return converted
    changes.append("CMYK without a usable profile was converted to sRGB as (1 - ink)(1 - black).")
    return image.convert("RGB")


def _from_profile(image: Image.Image, profile: bytes, changes: list[str]) -> Image.Image:
    try:
        if _is_srgb(profile, image.mode):
            return image
        converted = _transform(image, profile)
    except (ImageCms.PyCMSError, OSError, ValueError):
        changes.append("Its colour profile is damaged or not one of its colours, and was left out.")
        return image
    changes.append(f"Its colours were converted to sRGB from its profile{_profile_name(profile)}.")
    return converted


def _transform(image: Image.Image, profile: bytes) -> Image.Image:
    converted = ImageCms.profileToProfile(
        image,
        ImageCms.ImageCmsProfile(io.BytesIO(profile)),
        ImageCms.createProfile("sRGB"),
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        outputMode="RGB",
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    assert converted is not None  # it is only in place that nothing is returned
    return converted


def _is_srgb(profile: bytes, mode: str) -> bool:
    """Say whether a grid of colours comes through within one level."""
    levels = np.linspace(0, 255, 9).round().astype(np.uint8)
    if mode == "L":
        grid = levels[None]
    else:
        grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    found = np.asarray(_transform(Image.fromarray(grid), profile)).astype(int)
    return bool(np.abs(found - (grid[..., None] if mode == "L" else grid)).max() <= 1)


def _profile_name(profile: bytes) -> str:
    try:
        name = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(profile)))
    except ImageCms.PyCMSError:
        return ""
    shown = "".join(char for char in name.strip() if char.isprintable())[:60]
    return f" ({shown})" if shown else ""
