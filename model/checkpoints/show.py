"""What the inspector prints on a terminal. Names and texts of files are never read as markup."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from queue_schemas.inspections import Inspection, InspectionReport, NameList, Refusal
from queue_schemas.text import printable, shortened

METADATA_CHARACTERS = 100
UNITS = ("B", "kB", "MB", "GB", "TB")


def show_report(console: Console, report: InspectionReport) -> None:
    for found in report.files:
        show_inspection(console, found)


def refusal_text(refusal: Refusal) -> str:
    at = "" if refusal.offset is None else f" (at byte {refusal.offset:,})"
    return printable(f"refused: {refusal.path}: {refusal.reason}{at}")


def show_inspection(console: Console, found: Inspection) -> None:
    console.print(_text(found.path, style="bold"))
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 1))
    for name, value in _facts(found):
        facts.add_row(_text(name, style="dim"), _text(value))
    console.print(facts)
    for build in (_formats, _weights, _roles, _islands, _parts, _gpus):
        table = build(found)
        if table.row_count:
            console.print(table)
    for problem in found.problems:
        console.print(_text(f"problem: {problem}", style="red"))
    for note in found.notes:
        console.print(_text(f"note: {note}", style="yellow"))
    console.print()


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def size_text(count: int) -> str:
    """Return bytes as `12.53 GB`, in powers of 1000."""
    size, unit = float(count), 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.2f} {UNITS[unit]}"


def _facts(found: Inspection) -> Iterator[tuple[str, str]]:
    container = found.container
    yield "holds", _what(found)
    if found.tasks:
        yield "task", " or ".join(found.tasks) + (" (the file does not tell)" if len(found.tasks) > 1 else "")
    if found.layout is not None:
        yield "layout", found.layout + (f", {found.depth}" if found.depth else "")
    if found.dims:
        yield "sizes", " ".join(f"{name}={value}" for name, value in found.dims.items())
    yield "parameters", f"{found.num_parameters:,}"
    yield (
        "file",
        f"{container.size_bytes:,} bytes, {container.num_tensors:,} tensors"
        + (f", {container.trailing_bytes:,} bytes behind them" if container.trailing_bytes else ""),
    )
    yield "header", f"{container.header_bytes:,} bytes, identity {container.header_sha256}"
    yield "published", _published(found)
    if found.hash is not None:
        expected = f"; expected {', '.join(found.hash.expected)}" if found.hash.expected else ""
        yield "sha256", f"{found.hash.sha256}: {found.hash.verdict}{expected}"
    yield from _lora(found)
    for label, names in (
        ("missing", found.missing),
        ("unmatched", found.unmatched),
        ("misshapen", found.misshapen),
    ):
        if names.count:
            yield label, _few(names)
    if found.holes is not None:
        holes = found.holes
        yield (
            "holes",
            f"{size_text(holes.size_bytes)}, {holes.tensors.count} whole tensors;"
            + (f" {holes.num_zero_samples} of 16 sampled blocks are zeros"),
        )
    for key, value in found.container.metadata.items():
        yield f"metadata {shortened(key, 40)}", shortened(value, METADATA_CHARACTERS)
    yield "this runtime", "loads it" if found.runtime.loads else f"does not load it: {found.runtime.why}"


def _what(found: Inspection) -> str:
    if found.family is None:
        return "no model of H3"
    form = f"{found.family}, {found.variant or 'no described variant'}"
    return form if found.released_size or found.variant is None else f"{form} at other sizes"


def _published(found: Inspection) -> str:
    published = found.published
    if published.by_sha256 is not None:
        return f"{published.by_sha256}, by its content"
    parts = []
    if published.by_header:
        parts.append(f"the header is that of {' and '.join(published.by_header)}")
    if published.by_name is not None:
        fits = "fits" if published.name_fits else "does NOT fit: another file under its name"
        parts.append(f"the name is a published one, and the content {fits}")
    return "; ".join(parts) or "neither header nor name is a published one"


def _lora(found: Inspection) -> Iterator[tuple[str, str]]:
    lora = found.lora
    if lora is None:
        return
    yield "dialect", lora.dialect
    yield "modules", f"{lora.num_modules}: {', '.join(lora.targets)}"
    yield "ranks", ", ".join(f"{rank} x {count}" for rank, count in lora.ranks.items())
    yield "alphas", ", ".join(f"{alpha} x {count}" for alpha, count in lora.alphas.items())
    if lora.steps is not None:
        shifts = f", shifts {lora.shift_video} and {lora.shift_audio}" if lora.shift_video else ""
        yield "made for", f"{lora.steps} steps{shifts}"
    if lora.other_deltas.count:
        yield "other deltas", _few(lora.other_deltas)


def _few(names: NameList) -> str:
    shown = ", ".join(names.names[:5])
    return f"{names.count}: {shown}" + (", ..." if names.count > 5 else "")


def _formats(found: Inspection) -> Table:
    table = Table("format", "linears", "embeddings", "other", "parameters", "bytes", title="storage")
    for row in found.formats:
        counts = (row.num_linears, row.num_embeddings, row.num_others)
        table.add_row(
            _text(row.format), *map(str, counts), f"{row.num_parameters:,}", size_text(row.size_bytes)
        )
    return table


def _weights(found: Inspection) -> Table:
    table = Table("modules", "count", "format", "weight", "stored as", title="packed weights")
    for group in found.weights:
        forms = [f"{part.suffix} {part.dtype} {list(part.shape)}" for part in group.tensors]
        table.add_row(
            _text(group.modules),
            str(group.count),
            _text(group.format),
            str(list(group.shape)),
            "\n".join(forms),
        )
    return table


def _roles(found: Inspection) -> Table:
    """Say once per format what each stored tensor is and what the markers say."""
    table = Table("format", "tensor", "what it is", title="what is stored")
    seen = set()
    for group in found.weights:
        rows = [(group.format, part.suffix, part.role) for part in group.tensors]
        if group.marker is not None:
            says = ", ".join(f"{key}: {value}" for key, value in group.marker.items())
            rows.append((group.format, "marker says", shortened(says, 200)))
        for row in rows:
            if row not in seen:
                seen.add(row)
                table.add_row(*(_text(cell) for cell in row))
    return table


def _islands(found: Inspection) -> Table:
    table = Table("tensors", "dtype", "count", "bytes", title="not quantised")
    for row in found.islands[:12]:
        table.add_row(_text(row.tensors), row.dtype, str(row.count), size_text(row.size_bytes))
    rest = found.islands[12:]
    if rest:
        count, size = sum(row.count for row in rest), sum(row.size_bytes for row in rest)
        table.add_row(f"{len(rest)} smaller kinds", "", str(count), size_text(size))
    return table


def _parts(found: Inspection) -> Table:
    table = Table("part", "tensors", "parameters", "bytes", title="parts")
    for part in found.parts:
        table.add_row(
            part.name, str(part.num_tensors), f"{part.num_parameters:,}", size_text(part.size_bytes)
        )
    return table


def _gpus(found: Inspection) -> Table:
    table = Table("device", "compute capability", "how its weights are multiplied", title="this runtime")
    for use in found.runtime.gpus:
        table.add_row(use.generation, use.compute_capability, use.how)
    return table
