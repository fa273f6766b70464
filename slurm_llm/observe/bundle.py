"""One archive of a run for a support ticket: what the run directory holds, cut to size, without secrets.

It reads the run directory and writes to a stream that it is given. Names of users, hosts and folders stay.
"""

from __future__ import annotations

import io
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slurm_llm import __version__
from slurm_llm.observe.redact import Redactor
from slurm_llm.rundir import JobPaths, RunPaths

TEXT_SUFFIXES = frozenset({".sub", ".sh", ".json", ".jsonl", ".yaml", ".toml", ".rc", ".pbtxt", ".log", ".out"})
CUT_SUFFIXES = frozenset({".log", ".out", ".jsonl"})
MOST_BYTES = 128 << 20
"""Of all logs together; with very many ranks each gets less than it might."""
LEAST_BYTES = 32 << 10
OTHER_BYTES = 1 << 20
"""A file that is no log and larger than this is left out: it is none of ours."""
KNOWN_FOLDERS = ("model_repository",)
RUN_HINT = "diagnosis.txt says what is known of the cause; attempt-*/ has the logs and journals of each start."


@dataclass(frozen=True)
class Member:
    """One file of the archive: its name there, and its text without secrets; `size` is that of the whole file."""

    name: str
    text: str
    size: int
    cut: bool


def archive_name(paths: RunPaths, job: JobPaths | None) -> str:
    """Return the archive's usual name: that of the run directory, with the job's id."""
    return paths.root.name + (f"-job{job.job_id}" if job else "") + ".tar.gz"


def collect(
    paths: RunPaths,
    job: JobPaths | None,
    reports: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    log_bytes: int,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Member]:
    """Yield the archive's files: `reports` (name → text), then those of the run directory and of `job`.

    Values of variables in `environ` that are named like secrets are hidden wherever they stand. A log has at most
    `log_bytes`, all together about `most_bytes`; the middle of a longer one is left out.
    """
    redactor = Redactor()
    redactor.learn(environ)
    redactor.learn_keys(paths)
    files = list(_files(paths, job))
    share = max(LEAST_BYTES, min(log_bytes, most_bytes // max(1, len(files))))
    texts = [(name, *_read(path, share)) for name, path in _small_first(files)]
    # Read twice: a value that one file names as a secret can stand bare in another.
    for _name, text, _size, _cut in texts:
        redactor.text(text)
    redactor.hidden = 0
    members = [Member(name, redactor.text(text), size, cut) for name, text, size, cut in texts]
    members += [Member(name, redactor.text(text), len(text), False) for name, text in reports.items()]
    of_job = f", job {job.job_id}" if job else ""
    yield _about(f"Run {paths.run_id}{of_job}", RUN_HINT, members, redactor.hidden)
    yield from members


def collect_texts(what: str, texts: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Member]:
    """Yield the files of an archive without a run: `texts` (name → text) without secrets; `what` says what it is of."""
    redactor = Redactor()
    redactor.learn(environ)
    members = [Member(name, redactor.text(text), len(text), False) for name, text in texts.items()]
    yield _about(what, "", members, redactor.hidden)
    yield from members


def _small_first(files: Iterable[tuple[str, Path]]) -> list[tuple[str, Path]]:
    return sorted(files, key=lambda item: (item[1].suffix in CUT_SUFFIXES, item[0]))


def _files(paths: RunPaths, job: JobPaths | None) -> Iterator[tuple[str, Path]]:
    """Yield name in the archive and path of every text file that is ours; links are never followed."""
    for path in _entries(paths.root):
        if path.suffix in TEXT_SUFFIXES and (path.suffix != ".out" or job is None or path == paths.output(job.job_id)):
            yield path.name, path
    folders = [paths.root / name for name in KNOWN_FOLDERS] + ([job.root] if job else [])
    for folder in folders:
        for path in _below(folder):
            if path.suffix in TEXT_SUFFIXES:
                yield str(path.relative_to(paths.root)), path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    except OSError:
        return []


def _below(folder: Path) -> Iterator[Path]:
    yield from _entries(folder)
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    for path in inner:
        yield from _below(path)


def _read(path: Path, share: int) -> tuple[str, int, bool]:
    """Return a file's text, its size in bytes, and whether its middle was left out."""
    try:
        size = path.stat().st_size
        if path.suffix not in CUT_SUFFIXES and size > OTHER_BYTES:
            return f"left out: {size} bytes\n", size, True
        with path.open("rb") as stream:
            if size <= share:
                return stream.read(share).decode("utf-8", "replace"), size, False
            head = stream.read(share // 4).rpartition(b"\n")[0]
            stream.seek(size - (share - share // 4))
            tail = stream.read(share).partition(b"\n")[2]
    except OSError as error:
        return f"cannot be read: {error.strerror}\n", 0, True
    left = size - len(head) - len(tail)
    text = b"%s\n\n[... %d bytes left out ...]\n\n%s" % (head, left, tail)
    return text.decode("utf-8", "replace"), size, True


def _about(what: str, hint: str, members: Iterable[Member], hidden: int) -> Member:
    lines = [
        f"{what}, collected by slurm_llm {__version__} on {platform.node()}",
        f"Python {sys.version.split()[0]} on {platform.platform()}",
        f"Places where a secret was hidden: {hidden}. Names of users, hosts and folders were left as they are.",
        "",
        *((hint, "") if hint else ()),
        "     bytes  file",
    ]
    lines += [f"{own.size:10}  {own.name}" + ("  (middle left out)" if own.cut else "") for own in members]
    return Member("README.txt", "\n".join(lines) + "\n", 0, False)


def write(members: Iterable[Member], stream: BinaryIO, folder: str) -> str:
    """Write the archive, gzipped, every file below `folder`; return one line that says what is in it."""
    count, cut, about = 0, 0, ""
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for own in members:
            data = own.text.encode("utf-8", "replace")
            info = tarfile.TarInfo(f"{folder}/{own.name}")
            info.size, info.mode = len(data), 0o600
            archive.addfile(info, io.BytesIO(data))
            count, cut = count + 1, cut + own.cut
            about = own.text if own.name == "README.txt" else about
    found = re.search(r"secret was hidden: (\d+)", about)
    hidden = found[1] if found else "0"
    return f"{count} files, {cut} of them cut, secrets hidden in {hidden} places: look at it before you send it"
