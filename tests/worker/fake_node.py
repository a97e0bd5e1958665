"""A whole node around the fake pipeline, as a program: `h3-worker run` without torch.

It starts a queue of its own unless H3_REDIS_URL names one.
"""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from worker.command import Output, reported, tell
from worker.settings import read_settings
from worker.supervisor import NodePlan, Supervisor, check_plan


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run until a signal; the first argument replaces the engine's program."""
    program = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).with_name("fake_pipeline.py"))
    settings, _ = read_settings()
    plan = NodePlan(
        settings=settings,
        engine_command=[sys.executable, program],
        embedded=not settings.redis_named,
        redis_port=None if settings.redis_named else 0,
        drain_seconds=10,
    )
    try:
        with reported(Output(as_json=True)):
            check_plan(plan)
            Supervisor(plan, on_ready=say, tell=tell).run()
    except typer.Exit as ended:
        return ended.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
