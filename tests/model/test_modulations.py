"""AdaLN once for a schedule: the bits of each step, no weight read for a known one, memory on the host."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from model.attention import resolve_attention
from model.base import Generation
from model.checkpoints.descriptions import describe
from model.checkpoints.header import read_header
from model.config import RELEASED, RELEASED_PRUNED, TransformerConfig
from model.denoise import denoise
from model.dit import H3Transformer, Modulation
from model.dit.streaming import is_streamed, on_device
from model.errors import OutputRejectedError
from model.latents import Latents
from model.loading.models import load_transformer
from model.lora.cards import card_of
from model.lora.files import LoraFile
from model.lora.plan import plan_lora, targets_of
from model.lora.resident import ResidentLoras
from model.modulations import ModulationCache
from model.network import PackedNetwork
from model.noise import draw_noise
from model.packing import Clock, pack
from model.pipeline import H3Pipeline
from model.sigmas import SigmaPlan, plan_sigmas
from model.startup import load_pipeline
from model.synthetic.h3_tiny import write_h3_tiny
from model.synthetic.values import Values
from model.synthetic.writer import write_file
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions
from queue_schemas.geometry import LatentShape
from queue_schemas.jobs import Sampler, Schedule, build_job
from queue_schemas.loras import JobLora
from queue_schemas.published import published_files

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
VARIANTS = ["dit_full_bf16", "dit_full_int8_convrot", "dit_pruned_bf16"]
FILM = (Clock.VIDEO, Clock.AUDIO)
SHAPE = LatentShape(frames=2, height=4, width=6, audio=8)
Load = Callable[..., H3Transformer]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load a tiny file of a variant; each call gives modules of its own."""
    folder = tmp_path_factory.mktemp("transformers")

    def load(
        variant: str, *, dtype: torch.dtype = torch.float32, device: torch.device = CPU
    ) -> H3Transformer:
        path, description = folder / f"{variant}.safetensors", describe(variant, "tiny")
        if not path.exists():
            write_file(path, description, Values(description).bytes)
        return load_transformer(read_header(path), device=device, compute_dtype=dtype)

    return load


def plan_of(steps: int, conventions: Conventions = COMFYUI) -> SigmaPlan:
    return plan_sigmas(
        Schedule.SIMPLE, steps=steps, shift_video=12.0, shift_audio=3.0, conventions=conventions
    )


def generate(transformer: H3Transformer, plan: SigmaPlan, cache: ModulationCache | None) -> Latents:
    """Denoise one small film, with modulations from a cache, or each step with its own."""
    device = transformer.rope.inv_freq.device
    text = torch.randn(5, transformer.config.text_dim, generator=torch.Generator().manual_seed(1))
    network = PackedNetwork(
        transformer,
        text.to(device),
        layout=pack(5, SHAPE),
        shape=SHAPE,
        attention=resolve_attention("sdpa", device)[1],
        conventions=COMFYUI,
    )
    if cache is not None:
        network.modulations = cache.of(
            plan, clocks=network.layout.clocks_in_use, conventions=COMFYUI, loras=()
        )
    return denoise(
        network,
        noise=draw_noise(SHAPE, seed=3, conventions=COMFYUI).film.to(device),
        plan=plan,
        sampler=Sampler.EULER,
        conventions=COMFYUI,
        compute_dtype=transformer.compute_dtype,
        on_progress=lambda event: None,
        cancelled=lambda: False,
    ).latents


def equal(left: Modulation, right: Modulation) -> bool:
    pairs = zip((*left.blocks, left.final), (*right.blocks, right.final), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_film_has_the_bits_that_it_has_when_each_step_computes_its_own(
    load: Load, variant: str, dtype: torch.dtype
) -> None:
    transformer = load(variant, dtype=dtype)

    scheduled = generate(transformer, plan_of(3), ModulationCache(transformer))
    alone = generate(transformer, plan_of(3), None)

    assert torch.equal(scheduled.video, alone.video)
    assert torch.equal(scheduled.audio, alone.audio)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> H3Pipeline:
    folder = tmp_path_factory.mktemp("models")
    write_h3_tiny(folder)
    return load_pipeline(models_dir=folder, device="cpu")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_next_job_of_a_schedule_reads_no_adaln_weight(load: Load, base: H3Pipeline, variant: str) -> None:
    pipeline = H3Pipeline(
        replace(base.models, transformer=load(variant)), base.files, device=torch.device("cpu")
    )

    def film(*, steps: int, seed: int) -> Generation:
        fields = {"prompt": "a fox", "width": 64, "height": 32, "frames": 5, "checkpoint": "h3-tiny"}
        job = build_job({**fields, "steps": steps, "seed": seed})
        return pipeline.generate(job, on_progress=lambda event: None, cancelled=lambda: False)

    first, other = film(steps=2, seed=1), film(steps=2, seed=2)
    for layer in (*pipeline.models.transformer.blocks, pipeline.models.transformer.final_layer):
        layer.adaln_proj.linear.bias.fill_(torch.nan)  # it reaches every modulation

    assert np.array_equal(film(steps=2, seed=1).frames, first.frames)
    assert np.array_equal(film(steps=2, seed=2).frames, other.frames)
    with pytest.raises(OutputRejectedError):
        film(steps=3, seed=1)


def adaln_lora(path: Path, transformer: H3Transformer) -> tuple[Path, dict[str, Tensor]]:
    """Write a LoRA of all AdaLN linears of the blocks; also return what it adds to each weight."""
    generator, tensors, deltas = torch.Generator().manual_seed(4), {}, {}
    for number, block in enumerate(transformer.blocks):
        linear, name = block.adaln_proj.linear, f"blocks.{number}.adaln_proj.linear"
        down = torch.randn(2, linear.in_features, generator=generator) / 8
        up = torch.randn(linear.out_features, 2, generator=generator)
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        deltas[name] = up @ down
    save_file(tensors, path)
    return path, deltas


def mlp_lora(path: Path, transformer: H3Transformer) -> Path:
    linear, name = transformer.blocks[0].mlp.fc2, "blocks.0.mlp.fc2"
    down, up = torch.ones(1, linear.in_features), torch.ones(linear.out_features, 1)
    save_file({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, path)
    return path


def load_loras(transformer: H3Transformer, *paths: Path) -> ResidentLoras:
    loras, targets = ResidentLoras(transformer), targets_of(transformer)
    for path in paths:
        file = LoraFile(name=path.stem, header=read_header(path))
        plan = plan_lora(file.header, targets)
        loras.load(plan, card_of(file, plan, published_files()))
    return loras


def test_a_strength_of_a_lora_on_adaln_gives_modulations_of_its_own(
    load: Load, relative_l2: Callable[[Tensor, Tensor], float], tmp_path: Path
) -> None:
    transformer, merged = load("dit_full_bf16"), load("dit_full_bf16")
    in_adaln, deltas = adaln_lora(tmp_path / "light.safetensors", transformer)
    in_mlp = mlp_lora(tmp_path / "ink.safetensors", transformer)
    loras, cache = load_loras(transformer, in_adaln, in_mlp), ModulationCache(transformer)

    def with_loras(**strengths: float) -> list[Modulation]:
        loras.use([JobLora(name=name, strength=strength) for name, strength in strengths.items()])
        found = cache.of(plan_of(2), clocks=FILM, conventions=COMFYUI, loras=loras.adaln_strengths())
        return list(found.values())

    plain, half, whole = with_loras(), with_loras(light=0.5), with_loras(light=1.0)

    for name, delta in deltas.items():
        merged.get_submodule(name).weight += 0.5 * delta
    wanted = ModulationCache(merged).of(plan_of(2), clocks=FILM, conventions=COMFYUI, loras=())
    for found, expected in zip(half, wanted.values(), strict=True):
        for table, other in zip(found.blocks, expected.blocks, strict=True):
            assert relative_l2(table, other) < 1e-6
    assert not equal(whole[0], half[0])
    assert not equal(plain[0], half[0])
    # The same numbers are the same objects: nothing was computed again.
    assert with_loras(light=0.5, ink=1.0)[0] is half[0]
    assert with_loras(ink=0.3, light=0.0)[0] is plain[0]


def test_schedules_and_roundings_that_differ_are_kept_apart(load: Load) -> None:
    transformer = load("dit_full_bf16", dtype=torch.bfloat16)
    cache = ModulationCache(transformer)
    rounded_late = replace(COMFYUI, time_embed_in_compute_dtype=False)

    early = cache.of(plan_of(2), clocks=FILM, conventions=COMFYUI, loras=())
    late = cache.of(plan_of(2), clocks=FILM, conventions=rounded_late, loras=())
    own_clock = cache.of(plan_of(2, DIFFUSERS), clocks=FILM, conventions=DIFFUSERS, loras=())
    with_pictures = cache.of(plan_of(2), clocks=(*FILM, Clock.SEEN), conventions=COMFYUI, loras=())

    steps = [plan_of(2).timesteps(step) for step in range(2)]
    assert list(early) == list(late) == steps
    assert not equal(early[steps[1]], late[steps[1]])
    assert list(own_clock) != steps
    assert [len(each.final) for each in early.values()] == [1, 2]  # both streams begin at 0
    assert [len(each.final) for each in with_pictures.values()] == [2, 3]
    assert cache.of(plan_of(2), clocks=FILM, conventions=COMFYUI, loras=()) is early


def test_the_schedules_used_last_stay_within_the_limit(load: Load) -> None:
    transformer = load("dit_pruned_bf16")
    two_steps = sum(
        each.num_bytes
        for each in ModulationCache(transformer)
        .of(plan_of(2), clocks=FILM, conventions=COMFYUI, loras=())
        .values()
    )
    cache = ModulationCache(transformer, limit_bytes=3 * two_steps)

    def of(steps: int) -> object:
        found = cache.of(plan_of(steps), clocks=FILM, conventions=COMFYUI, loras=())
        assert cache.num_bytes <= 3 * two_steps
        return found

    one, two = of(1), of(2)
    assert of(1) is one
    three = of(3)  # 5 timesteps, where 2 steps have 3 and 1 has 1: 9 in all, and room for 9
    assert of(2) is two
    assert of(8) is not of(8)  # wider than the room
    assert of(3) is not three


def released_bytes(config: TransformerConfig, num_timesteps: int) -> int:
    with torch.device("meta"):
        transformer = H3Transformer(config)
        (modulation,) = transformer.modulate([torch.zeros(num_timesteps)], COMFYUI)
    return modulation.num_bytes


@pytest.mark.parametrize(
    ("config", "final_bytes"), [(RELEASED.transformer, 2), (RELEASED_PRUNED.transformer, 4)]
)
def test_a_timestep_takes_ten_megabytes_at_the_released_size(
    config: TransformerConfig, final_bytes: int
) -> None:
    assert released_bytes(config, 2) == 2 * (50 * 18 * 5376 * 2 + 2 * 5376 * final_bytes)


def test_of_the_released_layouts_the_full_ones_adaln_alone_is_kept_in_host_memory() -> None:
    with torch.device("meta"):
        full, pruned = H3Transformer(RELEASED.transformer), H3Transformer(RELEASED_PRUNED.transformer)

    streamed = {name for name, _ in full.named_modules() if is_streamed(name, full.config)}
    numbers = sum(t.numel() for name in streamed for t in full.get_submodule(name).parameters())

    assert len(streamed) == 51
    assert numbers == 50 * 260_209_152 + 2 * 5376 * 2689
    assert not any(is_streamed(name, pruned.config) for name, _ in pruned.named_modules())


@pytest.mark.parametrize("variant", ["dit_full_bf16", "dit_full_int8_convrot"])
def test_weights_elsewhere_are_computed_with_where_the_timesteps_lie_and_stay(
    load: Load, variant: str
) -> None:
    """The meta device stands for a GPU: whatever is computed there cannot come from the CPU."""
    transformer, meta = load(variant), torch.device("meta")
    for name, module in transformer.named_modules():
        if not is_streamed(name, transformer.config) and not list(module.children()):
            module.to(meta)

    (modulation,) = transformer.modulate([torch.zeros(2, device=meta)], COMFYUI)

    assert all(table.is_meta for table in (*modulation.blocks, modulation.final))
    there = {name for name, tensor in transformer.state_dict().items() if not tensor.is_meta}
    assert there == {name for name in transformer.state_dict() if "adaln_proj" in name}


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_on_a_gpu_the_full_layouts_adaln_stays_in_pinned_host_memory(
    load: Load, gpu: torch.device, variant: str
) -> None:
    torch.cuda.synchronize(gpu)
    before = torch.cuda.memory_allocated(gpu)

    transformer = load(variant, dtype=torch.bfloat16, device=gpu)

    taken = torch.cuda.memory_allocated(gpu) - before
    sizes = {True: 0, False: 0}
    for name, tensor in transformer.state_dict().items():
        streamed = is_streamed(name.rpartition(".")[0], transformer.config)
        assert tensor.is_pinned() if streamed else tensor.is_cuda
        sizes[streamed] += tensor.nbytes
    assert (sizes[True] > 0) == ("full" in variant)
    assert sizes[False] <= taken < sizes[False] + 512 * len(transformer.state_dict())  # its granularity


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["dit_full_bf16", "dit_full_int8_convrot"])
@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_on_a_gpu_streamed_weights_and_loras_make_the_film_of_resident_ones(
    load: Load, gpu: torch.device, variant: str, strength: float, tmp_path: Path
) -> None:
    streamed = load(variant, dtype=torch.bfloat16, device=gpu)
    resident = load(variant, dtype=torch.bfloat16, device=gpu).to(gpu)
    cache, (path, _) = ModulationCache(streamed), adaln_lora(tmp_path / "light.safetensors", streamed)
    for transformer in (streamed, resident):
        load_loras(transformer, path).use([JobLora(name="light", strength=strength)])

    with torch.inference_mode():
        found, again = (generate(streamed, plan_of(4), cache) for _ in range(2))
        wanted = generate(resident, plan_of(4), None)

    assert torch.equal(found.video, wanted.video)
    assert torch.equal(found.audio, wanted.audio)
    assert torch.equal(again.video, wanted.video)


@pytest.mark.gpu
def test_streaming_takes_the_memory_of_two_modules_and_waits_for_every_copy(gpu: torch.device) -> None:
    generator = torch.Generator(gpu).manual_seed(0)
    draw = [torch.randn(4096, 4096, generator=generator, device=gpu) for _ in range(9)]
    size = draw[0].nbytes
    modules = []
    for weight in draw:
        module = nn.Linear(4096, 4096, bias=False, device="meta").requires_grad_(False)
        module.weight = nn.Parameter(weight.cpu().pin_memory(), requires_grad=False)
        modules.append(module)
    x = torch.randn(3, 4096, generator=generator, device=gpu)
    wanted = [torch.nn.functional.linear(x, weight) for weight in draw]
    del draw, weight
    torch.cuda.synchronize(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)

    found = [project(x) for project in on_device(modules, gpu)]

    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert torch.cuda.max_memory_allocated(gpu) - before < 2.1 * size
