"""What `sbatch --test-only`, `scontrol show partition` and `srun --help` say, from Slurm 22.05.8 and the sources."""

from __future__ import annotations

import pytest

from slurm_llm.errors import SlurmError
from slurm_llm.process import Completed
from slurm_llm.slurm.survey import parse_srun_help
from slurm_llm.slurm.trial import Trial, parse_partition_limits, parse_trial


def said(err: str, rc: int = 0, out: str = "") -> Completed:
    """Return what a command left."""
    return Completed(("sbatch",), rc, out, err)


START = "Job 2 to start at 2026-11-30T13:25:16 using 2 processors on nodes node[1-2] in partition batch"


@pytest.mark.parametrize(
    ("completed", "expected"),
    [
        (said(f"sbatch: {START}\n"), Trial(True, START, "2026-11-30T13:25:16", "node[1-2]", "batch", 2)),
        (
            said(f"sbatch: a word of the filter\nsbatch: {START}\nsbatch:   Preempts: 11,12\n"),
            Trial(
                True,
                f"a word of the filter\n{START}\n  Preempts: 11,12",
                "2026-11-30T13:25:16",
                "node[1-2]",
                "batch",
                2,
                "11,12",
            ),
        ),
        (
            said("sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name", 1),
            Trial(False, "invalid partition specified: nope\nallocation failure: Invalid partition name"),
        ),
        (
            said("sbatch: unrecognized option '--segment=2'\n", 255),
            Trial(False, "unrecognized option '--segment=2'"),
        ),
        (said("", 1), Trial(False, "exit status 1 without a word")),
        (said("", 0, "verified by the site's own sbatch\n"), Trial(True, "verified by the site's own sbatch")),
    ],
)
def test_a_trial_is_read_by_its_exit_status(completed: Completed, expected: Trial) -> None:
    """Slurm's whole text is kept; start and nodes are those of its usual line, when there is one."""
    assert parse_trial(completed) == expected


PARTITIONS = """\
PartitionName=batch AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=1-00:00:00 MinNodes=0 State=UP TotalNodes=2
PartitionName=debug AllowGroups=ALL Default=NO MaxNodes=2 MaxTime=UNLIMITED State=DOWN TotalCPUs=16 TotalNodes=4
"""


def test_limits_of_partitions() -> None:
    """UNLIMITED is None, whatever the limit."""
    found = parse_partition_limits(said("", 0, PARTITIONS))
    assert [(one.max_nodes, one.max_time_s, one.nodes, one.state) for one in found.values()] == [
        (None, 86400, 2, "UP"),
        (2, None, 4, "DOWN"),
    ]
    with pytest.raises(SlurmError, match="no answer about the partitions"):
        parse_partition_limits(said("Unable to contact slurm controller", 1))


def test_options_of_srun_include_those_of_plugins() -> None:
    """Pyxis is known by its option; `-A, --account=name` is one option, text in between is none."""
    text = "  -A, --account=name      charge job to\n      --container-image=[USER@]IMAGE  [pyxis] the image\n"
    assert parse_srun_help(said("", 0, text)) == {"account", "container-image"}
    with pytest.raises(SlurmError, match="printed no help"):
        parse_srun_help(said("srun: error", 1))
