"""Fresh interpreters in which torch cannot be imported: what must work without it does."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors", "diffusers"):
            raise ImportError(f"{name} is blocked by this test")
sys.meta_path.insert(0, Blocked())
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def loaded_by(*modules: str) -> set[str]:
    """Return the top-level packages that importing the modules loads, with torch blocked."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("modules", "foreign"),
    [
        (["queue_schemas.json_schemas"], {"redis", "rq", "boto3", "numpy"}),
        (
            ["broker.submit", "broker.states", "broker.nodes"],
            {"boto3", "storage", "client", "worker", "model"},
        ),
        (["storage.uri"], {"redis", "rq", "broker", "client", "worker"}),
        (["benchmarks.records"], {"redis", "rq", "broker"}),
        (["client.client", "client.cli", "client.demo", "client.collect"], {"worker", "model"}),
        (["worker.puller", "worker.tasks", "worker.supervisor", "worker.cli"], {"client", "tools", "model"}),
        (["model", "worker"], {"redis", "rq", "pydantic"}),
        (["model.synthetic.command"], {"redis", "rq", "boto3", "numpy"}),
    ],
)
def test_a_package_imports_without_torch_and_without_what_its_layer_excludes(
    modules: list[str], foreign: set[str]
) -> None:
    assert loaded_by(*modules) & foreign == set()


def test_media_imports_without_torch() -> None:
    pytest.importorskip("av")
    loaded = loaded_by("media.encode", "media.probe")

    assert loaded & {"redis", "rq", "boto3", "client", "worker", "model"} == set()


def test_importing_the_client_loads_nothing_heavy_and_gives_the_class_when_asked() -> None:
    assert loaded_by("client") & {"redis", "rq", "pydantic", "typer", "rich"} == set()

    from client import H3Client
    from client.client import H3Client as defined

    assert H3Client is defined


def test_the_commands_help_needs_no_queue() -> None:
    assert loaded_by("client.cli") & {"rq", "redis", "worker"} == set()
