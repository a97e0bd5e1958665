"""Decoders and encoders against digests that comfy-kitchen 0.2.40 gave (CPU, torch 2.13), bit for bit."""

import struct
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model.quant.fp8 import dequantise_fp8
from model.quant.int4 import dequantise_int4
from model.quant.int8 import dequantise_int8
from model.quant.nvfp4 import dequantise_nvfp4, unpack_e2m1
from model.quant.rotation import rotate_groups
from model.synthetic.quantise import encode_fp8, encode_int4, encode_int8, encode_nvfp4

Digest = Callable[[Tensor], str]
Matrix = Callable[[int, int], Tensor]


def from_bits(bits: int) -> Tensor:
    return torch.tensor(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def bits(value: Tensor) -> int:
    return int(value.view(torch.int32))


def nvfp4_vector() -> tuple[Tensor, Tensor]:
    """Packed codes of a [256, 128] weight and its scales as they lie in a file."""
    packed = ((37 * torch.arange(256 * 64) + 11) % 256).to(torch.uint8).view(256, 64)
    scales = ((5 * torch.arange(2048) + 32) % 127).to(torch.uint8).view(256, 8)
    return packed, scales.view(torch.float8_e4m3fn)


def test_nvfp4_decodes_to_float32_and_rounds_once(digest: Digest) -> None:
    packed, scales = nvfp4_vector()

    weight = dequantise_nvfp4(packed, scales, from_bits(0x3AA1D0F6), shape=(256, 128))

    assert digest(weight) == "26a09ed488d18064d7faeb026bca209c81365afb626ba526fcedbb2b91d7f919"
    assert weight[0, 1].item() == pytest.approx(-0.00023148001, rel=1e-7)
    assert weight[1, 0].item() == pytest.approx(0.31604737, rel=1e-7)
    assert weight[255, 127].item() == pytest.approx(0.43456513, rel=1e-7)
    rounded = weight.to(torch.bfloat16)
    assert digest(rounded) == "5321d082afa2287b8b391e8626fa5ff3e886cece73905e4c0aa9f01faf4c3099"


def test_nvfp4_with_a_global_scale_exact_in_bf16_is_the_same_by_every_path(digest: Digest) -> None:
    packed, scales = nvfp4_vector()

    weight = dequantise_nvfp4(packed, scales, torch.tensor([0.00146484375]), shape=(256, 128))

    assert (
        digest(weight.to(torch.bfloat16))
        == "5cd18ebd827065c2d460d8f122cb46d4a5577d9001c9b2ca98384c11fd75ab62"
    )


def test_every_packed_byte_decodes_with_the_high_nibble_first() -> None:
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values += [-value for value in values]

    decoded = unpack_e2m1(torch.arange(256, dtype=torch.uint8).view(256, 1))

    wanted = torch.tensor([[values[byte >> 4], values[byte & 15]] for byte in range(256)])
    assert torch.equal(decoded, wanted)
    assert torch.equal(decoded.signbit(), wanted.signbit())  # -0 too


def test_nvfp4_encodes_float32(matrix: Matrix, digest: Digest) -> None:
    weight = matrix(37, 100)
    assert digest(weight) == "70643e881bf4c39c9139cfabbdeb372d58d84c83b27e0b38edd70ad181f6aaca"

    packed, scales, scale = encode_nvfp4(weight)

    assert bits(scale) == 0x3B42F3CF
    assert (packed.shape, scales.shape) == ((48, 56), (128, 8))
    assert digest(packed) == "1edf7cd300dc732ff3ef24ccaa3fe5324d7d41816c1b72b558c52428ad8c2460"
    assert digest(scales) == "e8f63b66dc0ddb40769649a61a52cfa2df4ad4f0c3f41c841d57eaed97db4bf9"


def test_nvfp4_encodes_bf16_with_a_bf16_global_scale_and_decodes_cropped(
    matrix: Matrix, digest: Digest
) -> None:
    packed, scales, scale = encode_nvfp4(matrix(37, 100).to(torch.bfloat16))

    assert bits(scale) == 0x3B430000
    assert digest(packed) == "ed436a646542b03aae3cd8d899b315e17cf561614dc396077278ad9d234cbf6e"
    assert digest(scales) == "ad7dbb59664867be305ecccfa3cc5a9188b9e1a570eda781d15d1d15e7da96cd"
    decoded = dequantise_nvfp4(packed, scales, scale, shape=(37, 100))
    assert digest(decoded) == "a82eb67704ef379d04235cdac123b255f6ce04dd6a9e48b4cf09735db24eff79"


def test_int8_convrot_decodes_exactly(digest: Digest) -> None:
    codes = ((29 * torch.arange(8 * 512) + 7) % 255 - 127).to(torch.int8).view(8, 512)
    scale = ((torch.arange(8) + 1) / 16).view(8, 1)

    weight = dequantise_int8(codes, scale, group=256)

    assert weight[0, :4].tolist() == [-5.5078125, 0.2890625, -5.8671875, -0.0703125]
    assert weight[7, 511].item() == 30.0
    assert digest(weight) == "46c6ac51a309e614098dd24e0578a7221bdddf432ad5198e41c5db51f5eeb6da"


@pytest.mark.parametrize(
    ("group", "codes_digest", "scale_digest"),
    [
        (
            256,
            "1e551d1fc67fafb5a362eca82087c044dd89f6438db05b4025cebed76f2da88a",
            "2b4330705684f49247bccc5c45bbc75bfaadb5e53150f5db3e3a7c710be0d2a2",
        ),
        (
            64,
            "68b1ed08770eed5a5d16d7846c8231fa51e882fe7370e314d58937e767bb1dca",
            "c1b9ad07fc67d625f19e9079abad9ad5c828e4941bfd10fc600a89099636e2ac",
        ),
        (
            16,
            "e067e738130b578ad7871e07ed74066cebae4f47b4f64ce64440a1f01f6d4394",
            "cdeea79c2b61815c2cc0cfdf71e768af6d39523f4acf6d665fa7155779e66ce4",
        ),
    ],
)
def test_int8_convrot_encodes(
    matrix: Matrix, digest: Digest, group: int, codes_digest: str, scale_digest: str
) -> None:
    codes, scale = encode_int8(matrix(5, 512), group=group)

    assert digest(codes) == codes_digest
    assert digest(scale) == scale_digest


def test_int4_convrot_encodes(matrix: Matrix, digest: Digest) -> None:
    packed, scale = encode_int4(matrix(5, 512), group=256)

    assert packed.view(torch.uint8).flatten()[:4].tolist() == [26, 50, 39, 225]
    assert digest(packed) == "527774d3177c322855224c54c26d72b96e9facb2d8b05f86ee7e66e4044e5d5a"
    assert digest(scale) == "bfc322f378e3b89cc617dc9414c34b7cf5d6054e8c91e71131e95c2d44488249"
    assert scale.shape == (5,)
    assert dequantise_int4(packed, scale, group=256).shape == (5, 512)


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (torch.bfloat16, "9bee3ddb1ea109755c3650f646b28175e94eb67744f8ff402a3134f89b85adce"),
        (torch.float32, "0664b3442b8c83313c5775ca3d52beef44ff1e7a001eaf10bdf3386e6562677f"),
    ],
)
def test_fp8_encodes(matrix: Matrix, digest: Digest, dtype: torch.dtype, wanted: str) -> None:
    values = matrix(37, 100).to(torch.bfloat16).to(dtype)  # rounded in both cases

    codes = encode_fp8(values, torch.tensor(0.0123))

    assert digest(codes) == wanted


def test_every_fp8_code_decodes(digest: Digest) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)

    values = dequantise_fp8(codes.view(1, 256), torch.ones(()))

    values[values.isnan()] = from_bits(0x7FC00000)  # a NaN's bits may differ
    assert digest(values) == "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2"


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        (256, "de75fba5a830070acfbfec9cf3fba8a70ef4bfc05e9e6e4dc1fa9bb994f3bc5d"),
        (64, "42759176f7fc530ed4a0ae8acbfcf1bb3c4f86fc34ab1b89e3e50a4ed44383af"),
    ],
)
def test_the_rotation_is_the_regular_hadamard_matrix(digest: Digest, group: int, wanted: str) -> None:
    rotation = rotate_groups(torch.eye(group), group)

    assert digest((rotation * group**0.5).to(torch.int8)) == wanted
    assert torch.equal(rotate_groups(rotation, group), torch.eye(group))  # its own inverse
