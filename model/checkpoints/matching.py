"""A file against the registry of published ones: by header, by name, by the hash of all of it."""

from model.checkpoints.header import Header
from queue_schemas.inspections import FileHash, Published
from queue_schemas.published import PublishedFile, PublishedFiles


def match_published(
    header: Header, *, variant: str | None, released_size: bool, registry: PublishedFiles
) -> Published:
    """Say which published files this may be, without its content."""
    named = registry.named(header.path.name)
    fits = None
    if named is not None:
        same_header = named.header_sha256 in (None, header.sha256)
        fits = same_header and released_size and named.variant in (None, variant)
    return Published(
        by_header=tuple(file.name for file in registry.with_header(header.sha256)),
        by_name=None if named is None else named.name,
        name_fits=fits,
    )


def match_hash(
    header: Header, sha256: str, registry: PublishedFiles
) -> tuple[FileHash, PublishedFile | None]:
    """Compare a whole file's hash; `mismatch` where one was published for its header or name."""
    found = registry.with_sha256(sha256)
    if found is not None:
        return FileHash(sha256=sha256, verdict="match"), found
    named = registry.named(header.path.name)
    meant = [*registry.with_header(header.sha256), *([named] if named is not None else [])]
    expected = tuple(sorted({file.sha256 for file in meant if file.sha256 is not None}))
    # One of the files with this header may have no published hash; then this may be that one.
    surely = bool(expected) and (named.sha256 is not None if named else all(file.sha256 for file in meant))
    return FileHash(sha256=sha256, verdict="mismatch" if surely else "unknown", expected=expected), None
