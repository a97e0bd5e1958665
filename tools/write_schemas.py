"""Write the JSON Schema files of the wire contract to docs/schemas."""

from pathlib import Path

from queue_schemas.json_schemas import json_schemas

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in json_schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/schemas/{name}")
