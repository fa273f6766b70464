"""A submit filter, as sites have one: job_submit.lua, which refuses jobs with some options and without others; pure."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_llm.devcluster.shape import Shape

# Fields of `job_desc` in Slurm 22.05 (job_submit_lua.c).
FIELDS = {
    "account": "account",
    "constraint": "features",
    "exclude": "exc_nodes",
    "exclusive": "shared",
    "gpus": "tres_per_job",
    "gpus-per-node": "tres_per_node",
    "gpus-per-task": "tres_per_task",
    "gres": "tres_per_node",
    "licenses": "licenses",
    "mem": "pn_min_memory",
    "nodelist": "req_nodes",
    "nodes": "min_nodes",
    "ntasks-per-node": "ntasks_per_node",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
    "time": "time_limit",
}
"""Option of sbatch → the field that tells whether a job has it."""

_SCRIPT = """-- Written by slurm_llm devcluster: what a site's own filter refuses.
local forbidden = {%s}
local required = {%s}

-- Slurm's words for "not given", in 16, 32 and 64 bits.
local unset = {[0xfffe] = true, [0xfffffffe] = true, [1.8446744073709552e19] = true}

local function given(value)
    return value ~= nil and value ~= "" and not unset[value]
end

function slurm_job_submit(job, partitions, uid)
    for option, field in pairs(forbidden) do
        if given(job[field]) then
            slurm.log_user(option .. " is refused here")
            return slurm.ERROR
        end
    end
    for option, field in pairs(required) do
        if not given(job[field]) then
            slurm.log_user(option .. " must be given here")
            return slurm.ERROR
        end
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
"""


def can_see(option: str) -> bool:
    """Tell whether a filter sees if a job has an option, as `--mem`."""
    return option.lstrip("-") in FIELDS


def filter_text(shape: Shape) -> str | None:
    """Return job_submit.lua, None where the shape neither forbids nor requires anything that a filter sees."""
    forbid, require = _table(shape.forbid), _table(shape.require)
    return _SCRIPT % (forbid, require) if forbid or require else None


def _table(options: Iterable[str]) -> str:
    return ", ".join(f'["{option}"] = "{FIELDS[option.lstrip("-")]}"' for option in options if can_see(option))
