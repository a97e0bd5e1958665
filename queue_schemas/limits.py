"""Every bound this system puts on what it is given, in one place.

A bound is enforced where the thing is parsed; whoever writes an error message takes the number from here.
Units end the names. Knows no schema and no geometry.
"""

PROMPT_CHARACTERS = 7_000
SIDE_PIXELS_MIN = 32
SIDE_PIXELS_MAX = 2_048
SIDE_MULTIPLE = 32
ASPECT_RATIO_MAX = 4.0
TRAINED_PIXELS_MAX = 768 * 1344
"""Canvases above this area were never trained on: accepted and flagged."""
FRAMES_MIN = 5
FRAMES_MAX = 362
TRAINED_FRAMES_MIN = 124
STEPS_MAX = 100
SHIFT_MAX = 100.0
SEED_MAX = 2**63 - 1
DRAWN_SEED_MAX = 2**53 - 1
"""Seeds that this project draws stay below 2^53, so that JavaScript keeps them exact."""
VAE_TILE_PIXELS_MIN = 96
VAE_TILE_PIXELS_MAX = 2_048
VAE_TILE_PIXELS_DEFAULT = 256
OUTPUT_NAME_CHARACTERS = 200
OUTPUT_PART_BYTES = 255
"""Of one name in a path, on every usual file system."""
NAMED_CHARACTERS = 100
"""Of the name of a checkpoint, a LoRA or a node."""
LORAS = 8
"""Of one job."""
LORA_STRENGTH_MAX = 10.0
RESIDENT_LORAS = 32
"""Of one engine; its cards travel in every answer of GET /ready."""

JOB_BYTES = 64 * 1024
BODY_BYTES = 1024 * 1024
EVENT_BYTES = 4 * 1024
RESULT_BYTES = 64 * 1024
RECORD_BYTES = 256 * 1024
"""A benchmark record holds its whole request; a prompt may take 84,000 bytes as escaped JSON."""
LOG_BYTES = 64 * 1024
"""Of one attempt's log.txt; what is over is taken from its beginning."""
LOG_TAIL_CHARACTERS = 4_000
"""Of a log that lie in a dead letter."""
SWEEP_BYTES = 32 * 1024 * 1024
SWEEP_RUNS = 100_000
PROMPTS_BYTES = 64 * 1024 * 1024
"""Of a file with one prompt per line."""
PUBLISHED_BYTES = 1024 * 1024
PUBLISHED_FILES = 2_000
"""Of the registry of published checkpoint files."""
JSON_DEPTH = 16
NUMBER_CHARACTERS = 400
"""Of one whole number in JSON; more than the largest float has."""
FAULTS_TOLD = 8
"""Of one request; a body has room for 60,000."""
FAULT_CHARACTERS = 300
NAME_CHARACTERS = 60
"""Of a field's name that a person is shown; no known one is as long."""

REFERENCES = 12
REFERENCE_IMAGES = 9
REFERENCE_VIDEOS = 3
REFERENCE_AUDIOS = 3
"""Of one job; a clip's own sound counts with its clip."""
REFERENCE_SECONDS_MIN = 2.0
REFERENCE_SECONDS_MAX = 15.0
"""Of one clip or sound, and of all clips or all sounds of a job together."""
REFERENCE_SECONDS_TOLERANCE = 0.010
SOURCE_CHARACTERS = 2_000
SHOWN_SOURCE_CHARACTERS = 200
"""Of a link in a message."""
IMAGE_BYTES = 30 * 1024 * 1024
VIDEO_BYTES = 50 * 1024 * 1024
AUDIO_BYTES = 15 * 1024 * 1024
"""Of one reference file."""
IMAGE_PIXELS = 89_478_485
"""A quarter GiB of RGB; Pillow's own bound."""
CLIP_PIXELS = 8_192 * 4_352
"""Of one frame: 8K, in whole macroblocks."""
CLIP_RATE_HZ = 1_000
"""Frames a second, on average."""
SOUND_RATE_HZ_MIN = 4_000
SOUND_RATE_HZ_MAX = 384_000
MEDIA_STREAMS = 32
"""Of one file; phones write up to eight."""
MEDIA_SAMPLES = 4_000_000
"""Entries that the tables of one file may claim; 15 s of PCM at 192 kHz have 2.9 million."""
MEDIA_EDITS = 64
"""Entries of one track's edit list."""
MEDIA_BOXES = 20_000
"""Boxes or chunks of one file that are looked at."""
MEDIA_TAGS = 4_000
"""Texts in the tags of one file."""
MEDIA_OPENING_SECONDS = 8.0
"""For libav to read one header; a usual one takes milliseconds."""
