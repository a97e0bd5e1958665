"""Attention backends: their names and their arithmetic."""

import pytest
import torch

from model.attention import available_attention, resolve_attention
from model.errors import AttentionUnavailableError

CPU = torch.device("cpu")


def test_auto_takes_the_best_backend_and_says_which() -> None:
    name, _ = resolve_attention("auto", CPU)

    assert name == available_attention(CPU)[0]
    assert "auto" not in available_attention(CPU)


def test_a_named_backend_is_that_backend() -> None:
    name, _ = resolve_attention("sdpa", CPU)

    assert name == "sdpa"


def test_a_missing_backend_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(AttentionUnavailableError, match="'sage2' is not available here; choose auto or sdpa"):
        resolve_attention("sage2", CPU)


@pytest.mark.parametrize("name", available_attention(CPU))
def test_a_backend_attends_over_all_rows_at_scale_one_over_root_d(name: str) -> None:
    draw = torch.Generator().manual_seed(2)
    qkv = torch.randn(9, 3, 4, 16, generator=draw)
    q, k, v = qkv.unbind(1)  # strided views, as the fused projection gives them
    _, attention = resolve_attention(name, CPU)

    found = attention(q, k, v)

    weights = (torch.einsum("qhd,khd->hqk", q.double(), k.double()) / 4).softmax(dim=-1)
    wanted = torch.einsum("hqk,khd->qhd", weights, v.double()).float()
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)
