"""What one evaluation of the transformer costs, by its rows: work for shares and times, bytes for memory.

Facts of the released architecture, both layouts (50 blocks, width 5376, 56 heads of 128, SwiGLU 14336).
Linears take 2 × 19.268e9 operations a row, exact attention 50 × 4 × 7168 a pair of rows: S rows cost
S + S² / 26,880 in units of one row's linears. One block holds 165,089 bytes a row at its fullest in bfloat16,
counted by the allocator at an eighth of the width, where all of them are an eighth.
"""

from typing import Final

PAIR_ROWS: Final = 2 * 19.268e9 / (50 * 4 * 7168)
"""Rows at which attention costs as much as the linears."""
ROW_BYTES: Final = 165_089


def step_work(rows: float) -> float:
    """Return the work of one evaluation of `rows` packed rows, in units of one row's linears."""
    return rows + rows * rows / PAIR_ROWS


def saved_share(rows: int, *, without: int) -> float:
    """Return which part of a step of `rows` rows is saved when `without` of them are left out."""
    return 1 - step_work(rows - without) / step_work(rows)


def activation_bytes(rows: int) -> int:
    """Return what one evaluation of `rows` rows holds at most beside the weights, in bfloat16."""
    return rows * ROW_BYTES
