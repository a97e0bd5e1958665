"""A moto S3 service over HTTP or HTTPS whose conditional writes are atomic, as S3's are.

    python s3_server.py PORT REQUESTS_FILE [CERTIFICATE KEY]

Every request is one JSON line in REQUESTS_FILE: method, path, query and headers as they came.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def make_application(requests_file: Path) -> Callable[..., Iterable[bytes]]:
    # moto looks whether a name exists and then stores it, in two steps that threads may interleave.
    application, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with one_at_a_time:
            with requests_file.open("a") as sink:
                sink.write(json.dumps(describe(environ)) + "\n")
            answer: Iterable[bytes] = application(environ, start_response)
            return answer

    return handle


def describe(environ: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in environ if name.startswith(("HTTP_", "CONTENT_"))]
    return {
        "method": environ["REQUEST_METHOD"],
        "path": environ["PATH_INFO"],
        "query": environ["QUERY_STRING"],
        "headers": {n.removeprefix("HTTP_").replace("_", "-").lower(): environ[n] for n in names},
    }


def main() -> None:
    port, requests_file, *tls = sys.argv[1:]
    run_simple(
        "127.0.0.1",
        int(port),
        make_application(Path(requests_file)),
        threaded=True,
        ssl_context=(tls[0], tls[1]) if tls else None,
    )


if __name__ == "__main__":
    main()
