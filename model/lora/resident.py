"""`ResidentLoras`: the LoRAs beside one transformer, and which of them apply now.

Owns the branches' memory. A job's LoRAs are named before each generation; nothing is loaded then.
"""

import logging
from collections.abc import Sequence

from model.dit import H3Transformer
from model.dit.timesteps import TimeEmbedder
from model.lora.adaln import project
from model.lora.branch import Active, LoraLinear, Strengths
from model.lora.cards import card_of
from model.lora.errors import LoraNotLoadedError, told_dropped
from model.lora.factors import read_branches
from model.lora.files import LoraFile
from model.lora.plan import ADALN, LoraPlan, plan_lora, targets_of
from queue_schemas.loras import JobLora, LoraCard
from queue_schemas.published import PublishedFiles

log = logging.getLogger(__name__)


class ResidentLoras:
    """Loads planned LoRAs beside a transformer, in order, and switches them."""

    def __init__(self, transformer: H3Transformer, time_embedder: TimeEmbedder | None = None) -> None:
        """With the time embedder of a full file, AdaLN deltas of that layout fit a pruned transformer."""
        self._transformer = transformer
        self._time_embedder = time_embedder
        self._active = Active()
        self._numbers: dict[str, int] = {}
        self._in_adaln: set[int] = set()
        self.cards: list[LoraCard] = []

    def load(self, plan: LoraPlan, card: LoraCard) -> None:
        """Read a LoRA's factors to where the linears lie that they change. Raises LoraFileError."""
        number = self._numbers[card.name] = len(self._numbers)
        projection = None
        if self._time_embedder is not None and self._transformer.config.pruned:
            projection = project(self._time_embedder, self._transformer.adaln_t_table)
        for module, branch in read_branches(plan, self._transformer, projection).items():
            self._lora_linear(module).branches[str(number)] = branch
            if module.endswith(ADALN):
                self._in_adaln.add(number)
        self.cards.append(card)

    def check(self, loras: Sequence[JobLora]) -> None:
        """Raise LoraNotLoadedError for a LoRA that is not here."""
        for lora in loras:
            if lora.name not in self._numbers:
                raise LoraNotLoadedError(lora.name, loaded=list(self._numbers))

    def use(self, loras: Sequence[JobLora]) -> None:
        """Have these apply from now on, in this order, and no others. Raises LoraNotLoadedError."""
        self.check(loras)
        self._active.strengths = tuple((self._numbers[lora.name], lora.strength) for lora in loras)

    def adaln_strengths(self) -> Strengths:
        """Return which LoRAs change the modulations now: equal answers mean equal modulations."""
        return tuple(pair for pair in self._active.strengths if pair[0] in self._in_adaln and pair[1])

    def _lora_linear(self, name: str) -> LoraLinear:
        """Return the linear's LoRA holder, which takes its place at the first LoRA."""
        found = self._transformer.get_submodule(name)
        if isinstance(found, LoraLinear):
            return found
        holder = LoraLinear(found, self._active)
        parent, _, leaf = name.rpartition(".")
        setattr(self._transformer.get_submodule(parent), leaf, holder)
        return holder


def plan_loras(
    files: Sequence[LoraFile],
    transformer: H3Transformer,
    *,
    registry: PublishedFiles,
    allow_partial: bool,
    time_embedder: TimeEmbedder | None = None,
) -> list[tuple[LoraPlan, LoraCard]]:
    """Match LoRAs with a transformer, which may be on `meta` yet, by headers alone. Raises as `plan_lora`."""
    targets, width = targets_of(transformer), None
    if time_embedder is not None and transformer.config.pruned:
        width = time_embedder.proj_out.out_features
    plans = [
        plan_lora(file.header, targets, allow_partial=allow_partial, adaln_width=width) for file in files
    ]
    for file, plan in zip(files, plans, strict=True):
        spelled = " and ".join(plan.dialects)
        log.info("LoRA %s: %d of %d tensors, %s names", file.name, plan.matched, plan.total, spelled)
        if plan.dropped:
            log.warning("LoRA %s is loaded in part: %s", file.name, told_dropped(plan.dropped))
    return [(plan, card_of(file, plan, registry)) for file, plan in zip(files, plans, strict=True)]
