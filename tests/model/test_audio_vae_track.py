"""From waveform to track: exact length, loudness, refusals."""

import pytest
import torch

from model.audio_vae import AudioDecoder, decode_waveform, fit_length, limit_loudness
from model.config import TINY, AudioVaeConfig
from model.errors import OutputRejectedError
from queue_schemas.geometry import AUDIO_HOP_SAMPLES, audio_latents, track_samples

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = AudioVaeConfig(
    latent_channels=4, latent_dim=8, decoder_dim=8, decoder_rates=(2,), decoder_kernel_sizes=(4,)
)


@pytest.fixture
def decoder() -> AudioDecoder:
    generator = torch.Generator().manual_seed(0)
    decoder = AudioDecoder(SMALL)
    decoder.load_state_dict(
        {k: torch.randn(v.shape, generator=generator) * 0.3 for k, v in decoder.state_dict().items()}
    )
    return decoder


@pytest.mark.parametrize("frames", range(5, 363, 17))
def test_a_track_of_any_film_is_as_long_as_the_film(frames: int) -> None:
    waveform = torch.ones(2, AUDIO_HOP_SAMPLES * audio_latents(frames))

    track = fit_length(waveform, track_samples(frames))

    assert track.shape == (2, round(frames * 32_000 / 24))
    assert track.sum() / 2 == min(waveform.shape[1], track.shape[1])


def test_a_short_waveform_is_filled_with_silence_at_its_end() -> None:
    track = fit_length(torch.ones(2, 3), 5)

    assert track.tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]] * 2


def test_a_waveform_that_misses_a_whole_latent_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        fit_length(torch.ones(2, 800), 1600)


def test_the_loudness_rule_measures_both_channels_together() -> None:
    generator = torch.Generator().manual_seed(0)
    waveform = torch.randn(2, 1000, generator=generator) * torch.tensor([[0.4], [0.0]])

    limited = limit_loudness(waveform)

    assert (5 * limited.std()).item() == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(limit_loudness(torch.zeros(2, 10)), torch.zeros(2, 10))


def test_a_waveform_never_leaves_minus_one_to_one(decoder: AudioDecoder) -> None:
    loud = 50 * torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(1))

    waveform = decode_waveform(decoder, loud)

    assert waveform.shape == (2, 40)
    assert waveform.abs().max() == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_that_are_not_finite_are_never_made_into_sound(decoder: AudioDecoder, value: float) -> None:
    latents = torch.zeros(2, 4, 6)
    latents[1, 2, 3] = value

    with pytest.raises(OutputRejectedError, match="audio samples"):
        decode_waveform(decoder, latents)


def test_sound_is_decoded_in_float32_whatever_surrounds_the_call(decoder: AudioDecoder) -> None:
    latents = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(2))
    precision = torch.backends.cudnn.conv.fp32_precision

    plain = decode_waveform(decoder, latents)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        surrounded = decode_waveform(decoder, latents)

    assert torch.equal(plain, surrounded)
    assert torch.backends.cudnn.conv.fp32_precision == precision


@pytest.mark.parametrize("shape", [(1, 2, 4, 6), (2, 5, 6), (4, 6)])
def test_audio_latents_of_another_shape_are_refused(decoder: AudioDecoder, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="audio latents must be"):
        decode_waveform(decoder, torch.zeros(shape))


def test_the_tiny_checkpoint_decodes_a_demo_track() -> None:
    generator = torch.Generator().manual_seed(3)
    decoder = AudioDecoder(TINY.audio_vae)
    decoder.load_state_dict(
        {k: torch.randn(v.shape, generator=generator) * 0.1 for k, v in decoder.state_dict().items()}
    )

    waveform = decode_waveform(decoder, torch.randn(2, 32, 3, generator=generator))

    assert waveform.shape == (2, 2400)
    assert waveform.std() > 0
