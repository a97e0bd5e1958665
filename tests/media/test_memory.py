"""Large pictures and long clips in bounded memory, by real files in a process of their own."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import own_media
import pytest
from PIL import Image

GIB = 1024**3
PROGRAM = """
import json, sys, time
from pathlib import Path
from media.references import prepare_references
from queue_schemas.jobs import build_job

reference = {"kind": "video", "source": sys.argv[1]}
job = build_job({"prompt": "x", "frames": 362, "references": [reference]}, checkpoint="any")
start = time.monotonic()
(clip,) = prepare_references(job, {"references[0]": Path(sys.argv[1])})
seconds = time.monotonic() - start
total = sum(int(piece[0, 0, 0, 0]) for piece in clip.frames)
told = {"frames": clip.num_frames, "width": clip.width, "height": clip.height, "seconds": seconds}
status = Path("/proc/self/status").read_text()  # getrusage tells the most that the parent had, too
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({**told, "peak": peak}))
"""

PEAK = 'print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024)'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pix_fmt", "transfer"), [("yuv420p", 1), ("yuv420p10le", 16)], ids=["8 bits", "HDR"]
)
def test_fifteen_seconds_of_4k_need_less_than_a_gigabyte(tmp_path: Path, pix_fmt: str, transfer: int) -> None:
    texture = np.random.default_rng(1).integers(60, 200, (270, 480), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    deep = pix_fmt.endswith("10le")

    def pictures():
        for number in range(360):
            luma = np.roll(texture, 8 * number, axis=1)
            planes = np.concatenate([luma, np.full((1080, 3840), 128, np.uint8)])
            yield planes.astype(np.uint16) * 4 if deep else planes

    path = own_media.write_clip(
        tmp_path / "4k.mp4",
        pictures(),
        pix_fmt=pix_fmt,
        options={"preset": "ultrafast", "crf": "30", "bf": "3", "refs": "4"},
        colours={"color_trc": transfer, "color_primaries": 9 if deep else 1, "colorspace": 9 if deep else 1},
        time_base=Fraction(1, 24),
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True, timeout=600
    )

    told = json.loads(done.stdout)
    assert (told["frames"], told["width"], told["height"]) == (345, 1344, 768)
    assert told["peak"] < GIB, told
    assert 1_000_000 < path.stat().st_size < 50 * 1024 * 1024
    print(told, path.stat().st_size)  # noqa: T201 - what a person who runs it alone wants to know


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGBA", "CMYK"])
def test_the_largest_picture_needs_less_than_a_gigabyte(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "large.tif"
    Image.new(mode, (9_459, 9_459), (10, 20, 30, 40)).save(path, compression="tiff_lzw")
    program = PROGRAM.replace('"video"', '"image"').split("total =")[0]
    done = subprocess.run(
        [sys.executable, "-c", f"{program}{PEAK}", str(path)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip

    assert int(done.stdout) < GIB


@pytest.mark.slow
def test_a_clip_of_8k_needs_less_than_a_gigabyte(tmp_path: Path) -> None:
    pictures = [own_media.colour(width=7680, height=4320)] * 49
    path = own_media.write_clip(tmp_path / "8k.mp4", pictures, options={"preset": "ultrafast"})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True, timeout=600
    )

    assert json.loads(done.stdout)["peak"] < GIB
