"""Make one film from pictures, clips and sounds, and say what each of them became.

    python examples/reference_film.py '<Picture 1> runs as in <Video 1>' subject.png motion.mp4

Without files it draws a picture and plays a tone of its own. Files are checked before anything is uploaded,
and uploaded once, whatever the number of films. The film is small, so that a CPU with h3-tiny makes it in
seconds. Exit codes: 0; 1 when it did not succeed; 2 and 3, with one sentence, as of `h3`.
"""

import argparse
import math
import struct
import sys
import wave
import zlib
from pathlib import Path

from client import H3Client
from client.session import EXPECTED_ERRORS
from queue_schemas.events import JobStatus

PROMPT = "<Picture 1> glows to the sound of <Audio 1>"
SMALL = {"width": 192, "height": 128, "frames": 39, "steps": 4, "seed": 7}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a film from pictures, clips and sounds.")
    parser.add_argument(
        "prompt", nargs="?", default=PROMPT, help="may name <Picture 1>, <Video 1>, <Audio 1>"
    )
    parser.add_argument("files", nargs="*", type=Path, help="the references, in order")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0", help="the fleet's queue")
    parser.add_argument("--storage", default="outputs/store", help="where its nodes write")
    given = parser.parse_args()
    try:
        files = given.files or make_files(Path("outputs/references"))
        return make_film(H3Client(redis_url=given.redis, storage_url=given.storage), given.prompt, files)
    except EXPECTED_ERRORS as error:
        print(error, file=sys.stderr)
        return error.code.exit_code


def make_film(h3: H3Client, prompt: str, files: list[Path]) -> int:
    run = h3.submit({**SMALL, "prompt": prompt, "references": files})
    for note in run.notes:
        print(f"note: {note}", file=sys.stderr)
    for status in h3.follow(run):
        if status.status.terminal and status.status is not JobStatus.SUCCEEDED:
            print(status.error.message if status.error else status.status, file=sys.stderr)
            return 1
    result = h3.result(run)
    assert result is not None  # it has ended
    for receipt in result.manifest.references:
        rows = receipt.text_tokens + receipt.tokens
        print(f"{receipt.label} of {receipt.place}: {rows} rows; {' '.join(receipt.changes)}")
    print(result.video)
    return 0


def make_files(folder: Path) -> list[Path]:
    """Write a picture and two seconds of sound, by nothing but the standard library."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, tone = folder / "glow.png", folder / "tone.wav"
    width, height = 192, 128
    rows = b"".join(
        b"\0" + bytes(value for x in range(width) for value in (x, y, 255 - x)) for y in range(height)
    )
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks))
    with wave.open(str(tone), "wb") as file:
        file.setparams((1, 2, 32_000, 0, "NONE", ""))
        samples = (round(8_000 * math.sin(n * 2 * math.pi * 440 / 32_000)) for n in range(64_000))
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return [picture, tone]


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


if __name__ == "__main__":
    sys.exit(main())
