"""docs/schemas is what the code says, and says what the code does."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from queue_schemas.json_schemas import json_schemas

FOLDER = Path(__file__).parent.parent.parent / "docs" / "schemas"


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return loaded


def test_the_files_are_what_the_models_give() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert written == json_schemas(), "run: make schemas"


@pytest.mark.parametrize("name", sorted(json_schemas()))
def test_every_file_is_a_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(json_schemas()[name]))


def test_a_minimal_body_and_a_complete_job_are_valid() -> None:
    jsonschema.validate({"prompt": "a red fox"}, document("generate-request"))
    jsonschema.validate(
        {"workflow": "t2va", "prompt": "a red fox", "seed": 7, "checkpoint": "h3"}, document("job")
    )


@pytest.mark.parametrize(
    "fault",
    [{"step": 8}, {"width": 100}, {"height": 0}, {"frames": 100}, {"steps": 0}, {"seed": -1}, {"prompt": ""}],
)
def test_a_body_that_the_code_refuses_is_invalid_too(fault: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"prompt": "a red fox", **fault}, document("generate-request"))
