"""A whole node around the fake pipeline, as a program: `h3-worker run --embedded` without torch."""

import json
import sys
from pathlib import Path
from typing import Any

from worker.errors import exit_code_of
from worker.settings import read_settings
from worker.supervisor import NodePlan, Supervisor


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run until a signal; the first argument replaces the engine's program."""
    program = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).with_name("fake_pipeline.py"))
    settings, _ = read_settings()
    plan = NodePlan(
        settings=settings, engine_command=[sys.executable, program], embedded=True, drain_seconds=10
    )
    try:
        Supervisor(plan, on_ready=say, tell=lambda message: None).run()
    except Exception as error:
        sys.stderr.write(f"{error}\n")
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
