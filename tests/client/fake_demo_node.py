"""A node for the demo's tests: `python fake_demo_node.py REDIS_URL FOLDER MODE`; says ready and ends runs."""

import json
import os
import sys
import time
from pathlib import Path

from small_node import FakeNode  # this script's own folder comes first on its path

redis_url, folder, mode = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
(folder / "node.pid").write_text(str(os.getpid()))
if mode == "dies":
    sys.exit("no redis-server found: install one")
node = FakeNode(redis_url, folder)
node.announce("h3-tiny")
if mode == "fails":
    from client.demo import PROMPTS

    node.failing = {PROMPTS[1]}
if mode != "never-ready":
    checkpoint = "other" if mode == "other" else "h3-tiny"
    ready = {"event": "ready", "redis_url": redis_url, "checkpoint": checkpoint}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
while True:
    if mode == "dies-later" and node.queued():
        sys.exit("out of luck")
    if mode in ("works", "fails"):
        node.run_all()
    time.sleep(0.02)
