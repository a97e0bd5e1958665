"""`Denoiser`: one resident transformer with what is kept beside it, its LoRAs and modulations."""

from model.dit import H3Transformer
from model.dit.timesteps import TimeEmbedder
from model.lora.resident import ResidentLoras
from model.modulations import ModulationCache


class Denoiser:
    """What a job's workflow chooses."""

    def __init__(self, transformer: H3Transformer, lora_time_embedder: TimeEmbedder | None = None) -> None:
        self.transformer = transformer
        self.loras = ResidentLoras(transformer, lora_time_embedder)
        self.modulations = ModulationCache(transformer)
