"""NVFP4: 4-bit floats (E2M1), an E4M3 scale per 16 columns, one float32 scale for the whole matrix.

Exact: two float32 roundings per weight, the products scale · global scale and code · that, as the format
defines. Sources: the OCP E2M1 and E4M3 definitions; cuBLAS's 32 × 4 × 4 scale layout; comfy-kitchen 0.2.40.

Shapes: O rows, I columns; stored are O' and I', the next multiples of 16.
"""

import torch
from torch import Tensor

from model.quant.linear import QuantLinear

BLOCK = 16


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Decode uint8 [R, C / 2] to float32 [R, C]; the high nibble is the even column.

    A code s e e m is a float16 with those bits at the ends of its exponent and mantissa, times 2^14: no table
    to keep on every device. Minus zero keeps its sign.
    """
    codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2).to(torch.int16)
    halves = ((codes & 8) << 12 | (codes & 7) << 9).view(torch.float16)
    return halves.float().mul_(2.0**14)


def swizzle(scales: Tensor) -> Tensor:
    """Turn a plain [R, C] into the stored order: R a multiple of 128, C of 4; `unswizzle` turns it back.

    Stored are tiles of 128 rows × 4 scales, one after the other; in a tile row r's four lie at
    (r % 32) · 16 + (r / 32) · 4.
    """
    rows, columns = scales.shape
    return scales.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns)


def unswizzle(scales: Tensor) -> Tensor:
    rows, columns = scales.shape
    return scales.view(rows // 128, columns // 4, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns)


def dequantise_nvfp4(
    weight: Tensor, weight_scale: Tensor, weight_scale_2: Tensor, *, shape: tuple[int, int]
) -> Tensor:
    """Return float32 `shape` = [O, I] from the stored tensors, described at `NVFP4Linear`."""
    rows, columns = shape
    codes = unpack_e2m1(weight[:rows]).unflatten(-1, (-1, BLOCK))  # [O, I' / 16, 16]
    scales = unswizzle(weight_scale.view(torch.uint8)).view(torch.float8_e4m3fn)
    scales = scales[:rows, : codes.shape[1]].float() * weight_scale_2.reshape(-1, 1)  # [O, I' / 16]
    return codes.mul_(scales.unsqueeze(-1)).flatten(-2)[:, :columns]


class NVFP4Linear(QuantLinear):
    """Buffers, as stored:

    - `weight` uint8 [O', I' / 2]: two codes a byte, the high nibble first;
    - `weight_scale` float8_e4m3fn [O' up to 128s, I' / 16 up to 4s]: swizzled (`swizzle`), padded with zeros;
    - `weight_scale_2` float32 [], [1] or, for fused matrices that had different ones, [O, 1]: a multiplier;
    - `input_scale` float32 [] (optional): of the activations, for kernels that quantise them; unused here;
    - `pre_quant_scale` [I] (optional): AWQ; multiplies the input, in the input's dtype, before the product.
    """

    def dequantise(self) -> Tensor:
        return dequantise_nvfp4(self.weight, self.weight_scale, self.weight_scale_2, shape=self.shape)

    def forward(self, x: Tensor) -> Tensor:
        scale = self._buffers.get("pre_quant_scale")
        return super().forward(x if scale is None else x * scale.to(x.dtype))
