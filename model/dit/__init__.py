"""The diffusion transformer."""

from model.dit.dtypes import parameter_dtypes
from model.dit.modulation import Modulation
from model.dit.rope import rope_table
from model.dit.transformer import H3Transformer

__all__ = ["H3Transformer", "Modulation", "parameter_dtypes", "rope_table"]
