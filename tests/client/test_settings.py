"""What the environment says, and what is refused."""

import pytest

from client.errors import ClientSettingsError
from client.settings import ClientSettings, environment_without_settings
from queue_schemas.environment import EnvironmentNameError
from queue_schemas.jobs import VaeDtype


def test_nothing_set_gives_the_defaults() -> None:
    settings = ClientSettings.from_environment({"H3_FLEET": ""})

    assert settings == ClientSettings()
    assert settings.redis_url == "redis://127.0.0.1:6379/0"
    assert settings.job_defaults() == {}


def test_every_name_is_read() -> None:
    settings = ClientSettings.from_environment(
        {
            "H3_REDIS_URL": "redis://queue:6379/1",
            "H3_STORAGE_URL": "file:///films",
            "H3_FLEET": "night",
            "H3_CHECKPOINT": "h3-full",
            "H3_VAE_DTYPE": "float32",
            "H3_VAE_TILE_SIZE": "512",
        }
    )

    assert (settings.redis_url, settings.storage_url) == ("redis://queue:6379/1", "file:///films")
    assert (settings.fleet, settings.checkpoint) == ("night", "h3-full")
    assert settings.job_defaults() == {"vae_dtype": VaeDtype.FLOAT32, "vae_tile_size": 512}


def test_a_bad_value_is_an_error_that_names_it() -> None:
    with pytest.raises(ClientSettingsError, match="H3_VAE_DTYPE is 'fp16'; use float16 or float32"):
        ClientSettings.from_environment({"H3_VAE_DTYPE": "fp16"})
    for name in ("H3_VAE_TILE_SIZE", "H3_HEAD_SLICE_SIZE"):
        for value in ("-1", "0", "2.5", "big", "²"):
            with pytest.raises(ClientSettingsError, match=f"{name} is '{value}'; give a whole number"):
                ClientSettings.from_environment({name: value})
    with pytest.raises(ClientSettingsError, match="H3_HEAD_SLICE_BACKEND is 'Sage 2'; name a backend"):
        ClientSettings.from_environment({"H3_HEAD_SLICE_BACKEND": "Sage 2"})


def test_a_name_that_does_nothing_in_this_version_says_so() -> None:
    settings = ClientSettings.from_environment({"H3_HEAD_SLICE_SIZE": "8", "H3_HEAD_SLICE_BACKEND": "sage2"})

    assert [warning.partition(":")[0] for warning in settings.warnings] == [
        "H3_HEAD_SLICE_BACKEND does nothing",
        "H3_HEAD_SLICE_SIZE does nothing",
    ]


def test_an_unknown_name_is_a_warning_or_where_strict_an_error() -> None:
    assert "H3_REDIS_ULR" in ClientSettings.from_environment({"H3_REDIS_ULR": "x"}).warnings[0]
    with pytest.raises(EnvironmentNameError):
        ClientSettings.from_environment({"H3_REDIS_ULR": "x", "H3_STRICT_ENV": "1"})


def test_a_node_of_the_demo_inherits_no_setting() -> None:
    assert environment_without_settings({"H3_REDIS_URL": "x", "PATH": "/bin"}) == {"PATH": "/bin"}
