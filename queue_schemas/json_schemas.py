"""The wire contract as JSON Schema documents, for clients in other languages.

`tools/write_schemas.py` writes them to docs/schemas; a test compares. The document of a request requires only
the prompt: a missing workflow is inferred, a missing seed and checkpoint are filled.
"""

import json
from typing import Any

from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.checks import CheckReport
from queue_schemas.events import EVENT_ADAPTER
from queue_schemas.inspections import InspectionReport
from queue_schemas.jobs import JOB_ADAPTER
from queue_schemas.nodes import NodeCard
from queue_schemas.published import PublishedFiles
from queue_schemas.requests import T2VARequest
from queue_schemas.results import EngineReady, GenerateResult, Manifest, StoredReference
from queue_schemas.summaries import SweepSummary
from queue_schemas.sweeps import Sweep

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schemas() -> dict[str, str]:
    """Return file name to text of every document, each ending in a newline."""
    documents = {
        "job": JOB_ADAPTER.json_schema(),
        "generate-request": {**T2VARequest.model_json_schema(), "required": ["prompt"]},
        "event": EVENT_ADAPTER.json_schema(),
        "generate-result": GenerateResult.model_json_schema(),
        "stored-reference": StoredReference.model_json_schema(),
        "engine-ready": EngineReady.model_json_schema(),
        "manifest": Manifest.model_json_schema(),
        "benchmark-record": BenchmarkRecord.model_json_schema(),
        "sweep": Sweep.model_json_schema(),
        "sweep-summary": SweepSummary.model_json_schema(),
        "node-card": NodeCard.model_json_schema(),
        "published-files": PublishedFiles.model_json_schema(),
        "check-report": CheckReport.model_json_schema(),
        "inspection-report": InspectionReport.model_json_schema(),
    }
    return {f"{name}.schema.json": _text(name, document) for name, document in documents.items()}


def _text(name: str, document: dict[str, Any]) -> str:
    titled = {"$schema": _DIALECT, "title": name, **{k: v for k, v in document.items() if k != "title"}}
    return json.dumps(titled, indent=2, ensure_ascii=False) + "\n"
