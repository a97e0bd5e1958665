"""A puller or a janitor as a program of its own, with times that a test can wait for.

Arguments: `pull` or `janitor`, and JSON that replaces fields of LeaseTimes; `link_server` in it, the path of
a certificate, lets links lead to a server of this machine. Everything else is in the environment.
"""

import json
import logging
import sys
from pathlib import Path

from broker.connection import connect
from storage.links import DEFAULT_RULES, LinkRules
from worker.janitor import run_janitor
from worker.leasing import LeaseTimes
from worker.pulling import pull_until_signal
from worker.settings import read_settings

SHORT = LeaseTimes(
    lease_seconds=1.5,
    beat_seconds=0.3,
    patience_seconds=20.0,
    cancel_poll_seconds=0.05,
    backoff_seconds=0.05,
    tick_seconds=0.3,
    due_seconds=0.05,
)


def main() -> None:
    """Run until a signal."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    settings, _ = read_settings()
    fields = {name: getattr(SHORT, name) for name in SHORT.__slots__}
    changes = json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")
    ca_file = changes.pop("link_server", None)
    times = LeaseTimes(**{**fields, **changes})
    if sys.argv[1] == "janitor":
        connection = connect(settings.redis_url)
        run_janitor(connection, storage_url=settings.storage_url, fleet=settings.fleet, times=times)
        return
    links = DEFAULT_RULES
    if ca_file is not None:
        links = LinkRules(also_allowed=frozenset({"127.0.0.1", "::1"}), ca_file=Path(ca_file))
    pull_until_signal(settings, engine_seconds=20, times=times, links=links)


if __name__ == "__main__":
    main()
