"""What an attention backend is: one function over one packed sequence, no mask, no batch.

Shapes: S rows, H heads, d head dim.
"""

from collections.abc import Callable

from torch import Tensor

AttentionFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q, k, v), each [S, H, d] with any strides but a dense last axis, to [S, H, d] of the same dtype.

Softmax scale is d^-0.5; every row sees every row. A backend must not write into its inputs.
"""
