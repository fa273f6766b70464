"""What real jobs on the devcluster left behind (Slurm 22.05.8, Triton 2.51): journals and parts of logs, a file a run.

Names of nodes and folders were replaced, tables and parts of long logs left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.observe.run_dirs import RunDir

FOLDER = Path(__file__).parent / "captures"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def sections(name: str) -> dict[str, str]:
    """Return file name → text of a capture; `journal` holds the records of all writers."""
    parts = re.split(r"(?m)^=== (.+)\n", (FOLDER / f"{name}.txt").read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def lay_out(run: RunDir, name: str) -> RunDir:
    """Write a capture into a run directory, as its newest attempt."""
    run.submitted()
    for file, text in sections(name).items():
        if file == "slurm.out":
            run.paths.output(run.job_id).write_text(text, encoding="utf-8")
        elif file == "journal":
            run.log("unused", "").unlink()
            folder = run.job_paths.attempt(run.attempt).journal
            folder.mkdir(exist_ok=True)
            (folder / "all.jsonl").write_text(text, encoding="utf-8")
        else:
            run.log(file, text)
    return run
