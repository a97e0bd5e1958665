"""What the inspector says of checkpoint files: one `Inspection` per file, a `Refusal` for what is none."""

from typing import Annotated, Literal

from pydantic import Field

from queue_schemas.base import JsonFields, Lax, Told, Version1
from queue_schemas.names import TransformerTask
from queue_schemas.published import Family


class NameList(Told):
    """Tensor names; of many, the first ones."""

    count: int
    names: Lax[tuple[str, ...]]


class Container(Told):
    """The file as a container, whatever its tensors are."""

    size_bytes: int
    header_sha256: str
    """Header identity: over the 8 length bytes and the JSON text."""
    header_bytes: int
    """Of the JSON text with its padding."""
    keyset_md5: str
    """Over names and shapes, which a file of another metadata text shares."""
    num_tensors: int
    trailing_bytes: int
    metadata: dict[str, str]


class Published(Told):
    """Which published files this one may be, and how that is known."""

    by_header: Lax[tuple[str, ...]]
    """Files whose header is this one, byte for byte."""
    by_name: str | None
    """The published file of the same name; others use it for other contents."""
    by_sha256: str | None = None
    """The published file of the same content."""
    name_fits: bool | None
    """Whether the content has the form of the published file of that name; null where there is none."""


class FileHash(Told):
    """The whole file's hash against the published ones."""

    sha256: str
    verdict: Literal["match", "mismatch", "unknown"]
    """`mismatch`: a hash was published for this name or header, and this is another; `unknown`: none was."""
    expected: Lax[tuple[str, ...]] = ()


class FormatUse(Told):
    """How many weights are stored in one format."""

    format: str
    num_linears: int
    num_embeddings: int
    num_others: int
    """Convolutions, norms, biases, tables."""
    num_parameters: int
    size_bytes: int
    """Scales and markers included."""


class StoredTensor(Told):
    """One tensor of each packed weight of a group."""

    suffix: str
    dtype: str
    shape: Lax[tuple[int, ...]]
    role: str
    """What it is: packed weight, or a scale with its kind and layout."""


class WeightGroup(Told):
    """Packed weights of one name pattern that are stored alike."""

    modules: str
    """Module path; `*` stands for numbers."""
    count: int
    format: str
    shape: Lax[tuple[int, ...]]
    """Logical: rows and columns of the weight."""
    tensors: Lax[tuple[StoredTensor, ...]]
    marker: JsonFields | None
    """The fields that the `comfy_quant` text gives; null where there is none."""


class Island(Told):
    """Tensors of a quantised file that are not quantised."""

    tensors: str
    dtype: str
    count: int
    size_bytes: int


class Part(Told):
    """One part of the model."""

    name: str
    num_tensors: int
    num_parameters: int
    size_bytes: int


class LoraFacts(Told):
    """What a LoRA changes, and how it writes that down."""

    dialect: str
    num_modules: int
    ranks: dict[str, int]
    """Rank to number of modules."""
    alphas: dict[str, int]
    """Alpha to number of modules; `none` where the file has none, which means a factor of 1."""
    targets: Lax[tuple[str, ...]]
    adaln_width: int | None
    """Columns of AdaLN deltas: 2688 fits the full layout only; null without any."""
    other_deltas: NameList
    """Keys that are no pair of low-rank factors: whole differences, replaced weights, head banks."""
    steps: int | None = None
    shift_video: float | None = None
    shift_audio: float | None = None


class Holes(Told):
    """What was never written: zeros where no data lies."""

    size_bytes: int
    tensors: NameList
    """Those of 64 KiB and more that lie wholly in a hole."""
    num_zero_samples: int
    """Of 16 blocks read across the payload, how many hold nothing but zeros."""


class GpuUse(Told):
    """How the file's weights are computed with on one generation of devices."""

    generation: str
    compute_capability: str
    how: str


class RuntimeUse(Told):
    """What this version of the runtime does with the file."""

    loads: bool
    why: str
    gpus: Lax[tuple[GpuUse, ...]] = ()


class Inspection(Told):
    """One readable file."""

    path: str
    family: Family | None
    """Null: no model of H3."""
    variant: str | None
    """The described variant of exactly these names, dtypes, shapes and markers; null for any other mix."""
    released_size: bool
    """Whether the architecture's sizes are those of the release."""
    tasks: Lax[tuple[TransformerTask, ...]]
    """What it can be for: both, where nothing in the file tells."""
    layout: str | None
    """`comfyui`, `diffusers`, `original`, or `comfyui or original` where names do not tell."""
    depth: Literal["full", "pruned"] | None
    """AdaLN by time embedder or by table; null for anything but a transformer."""
    dims: dict[str, int]
    container: Container
    published: Published
    hash: FileHash | None = None
    num_parameters: int
    formats: Lax[tuple[FormatUse, ...]]
    weights: Lax[tuple[WeightGroup, ...]]
    islands: Lax[tuple[Island, ...]]
    parts: Lax[tuple[Part, ...]]
    lora: LoraFacts | None = None
    missing: NameList
    unmatched: NameList
    """Tensors that the architecture does not have."""
    misshapen: NameList
    problems: Lax[tuple[str, ...]]
    """Why a strict loader refuses the file, beside names and shapes."""
    holes: Holes | None = None
    notes: Lax[tuple[str, ...]]
    """What the header cannot tell, and what is worth knowing."""
    runtime: RuntimeUse


class Refusal(Told):
    """A path that is no readable safetensors file."""

    path: str
    reason: str
    offset: Annotated[int, Field(ge=0)] | None = None
    """Byte of the file at which that shows."""


class InspectionReport(Told):
    """Everything that was asked for."""

    schema_version: Version1 = 1
    files: Lax[tuple[Inspection, ...]]
    refused: Lax[tuple[Refusal, ...]]
