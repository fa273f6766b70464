"""From what a live cluster tells to the text of a profile for it, each value with its source; pure."""

from __future__ import annotations

import re
from datetime import date

from slurm_llm.errors import Problem, SetupError
from slurm_llm.sites.draftpartition import add_partition
from slurm_llm.sites.draftqueues import Left, Queue, build_queues
from slurm_llm.sites.drafttext import Draft, guessed, read
from slurm_llm.slurm.survey import Survey

CONFIG = "scontrol show config"
ACCOUNTS_COMMAND = "sacctmgr -nP show assoc user=$USER format=account,partition,qos"
PORT_RANGES = ("20000-29999", "10000-19999", "24000-32767", "12000-19999")
_VERSION = re.compile(r"\d\d\.\d\d(?:\.\d+)?")
_LINE = re.compile(r"[^A-Za-z0-9._-]+")

_FILTER = "a filter that may refuse options or insist on some: what it does goes into `policies`"
_REMARKS = (
    ("EnforcePartLimits", "NO", "a job that can never fit is accepted, and waits for ever"),
    ("JobRequeue", "1", "Slurm requeues jobs of lost nodes; those of slurm_llm say --no-requeue"),
    ("TopologyPlugin", "topology/block", "from Slurm 24.05 on, partitions may have `segment`"),
    ("ProctrackType", "proctrack/(?:linuxproc|pgid)", "what leaves its session may outlive its step"),
    ("PlugStackConfig", ".+", "plugins of srun, such as pyxis"),
    ("JobSubmitPlugins", ".+", _FILTER),
    ("CliFilterPlugins", ".+", _FILTER),
)
"""Key of the configuration, the values that matter, and what they mean for jobs."""

_RUNTIMES = (
    ("apptainer", "apptainer"),
    ("singularity", "singularity"),
    ("podman-hpc", "podman_hpc"),
    ("ch-run", "charliecloud"),
    ("enroot", "enroot"),
)


def site_name(survey: Survey) -> str:
    """Return a name for the profile: the cluster's own, as file names have it."""
    return _LINE.sub("-", survey.config.get("ClusterName", "")).strip("-._").lower() or "mycluster"


def draft_profile(survey: Survey, *, name: str, today: date, standalone: bool = False) -> str:
    """Return the text of a profile called `name`; `standalone` where another profile has that name.

    Raises:
        SetupError: no partition has nodes that are up.
    """
    queues, left = build_queues(survey)
    if not queues:
        why = "; ".join(f"{one.name}: {one.why}" for one in left) or "scontrol shows none"
        raise SetupError(Problem("scontrol show partition", "no partition that jobs can run in", why, "try later"))
    draft = Draft()
    _head(draft, survey, today)
    _identity(draft, survey, name, standalone)
    _slurm(draft, survey)
    _account(draft, survey)
    _partitions(draft, survey, queues, left)
    _launcher(draft, survey)
    _network(draft, survey)
    _container(draft, survey)
    _storage(draft, survey)
    _startup(draft, survey, queues)
    return draft.text()


def _head(draft: Draft, survey: Survey, today: date) -> None:
    cluster, release = survey.config.get("ClusterName") or "an unnamed cluster", survey.config.get("SLURM_VERSION")
    where = f"{cluster}, Slurm {release or 'of unknown release'}, on {survey.host} as {survey.user}"
    draft.remark(0, f"Drafted by `slurm-llm site init` on {today}: {where}.")
    draft.remark(0, "Behind each value stands the command that told it. What is guessed, no command told: check it.")
    for command, why in survey.failures.items():
        draft.remark(0, f"Not told by `{command}`: {why}")
    draft.remark(0, f'When a job has run with it: verified: {{state: run, date: "{today}", slurm: "{release or "…"}"}}')


def _identity(draft: Draft, survey: Survey, name: str, standalone: bool) -> None:
    draft.key(0, "schema_version", value=1)
    draft.key(0, "name", "what --site takes: the file is called the same, with .yaml", name)
    cluster = survey.config.get("ClusterName")
    if cluster:
        draft.key(0, "description", read(CONFIG, "ClusterName"), f"Slurm cluster {cluster}")
    if standalone:
        draft.key(0, "standalone", "another profile has this name: this one takes its place, whole", True)
    pattern = re.sub(r"\d+", r"\\d+", re.escape(survey.host).replace(r"\-", "-"))
    draft.remark(0, f"For `site detect`, guessed from this host's name: match: {{hostnames: ['{pattern}']}}")


def _slurm(draft: Draft, survey: Survey) -> None:
    draft.blank()
    version = _VERSION.match(survey.config.get("SLURM_VERSION", ""))
    wait = survey.config.get("KillWait", "").split()[:1]
    if version or wait:
        draft.key(0, "slurm")
    if version:
        draft.key(1, "version", read(CONFIG, "SLURM_VERSION"), version[0])
    if wait and wait[0].isdecimal() and int(wait[0]):
        draft.key(1, "kill_wait_s", read(CONFIG, "KillWait"), int(wait[0]))
    elif version:
        draft.key(1, "kill_wait_s", guessed("Slurm's own default"), 30)
    for key, pattern, meaning in _REMARKS:
        value = survey.config.get(key, "")
        if re.fullmatch(pattern, value):
            draft.remark(0, f"{key}={value}: {meaning}")


def _account(draft: Draft, survey: Survey) -> None:
    enforced = "associations" in survey.config.get("AccountingStorageEnforce", "").lower()
    accounts = list(dict.fromkeys(one.account for one in survey.associations))
    draft.blank()
    draft.key(0, "account")
    if not enforced:
        why = read(CONFIG, f"AccountingStorageEnforce={survey.config.get('AccountingStorageEnforce') or '(null)'}")
        draft.key(1, "required", why if survey.config else guessed("nothing was read"), False)
        return
    told = read(CONFIG, "AccountingStorageEnforce=associations")
    if survey.default_account:
        draft.key(1, "required", f"{told}; jobs that name none get their user's default one", False)
        draft.remark(1, f"Your default account: {survey.default_account}; yours: {', '.join(accounts) or 'not told'}")
    elif accounts:
        draft.key(1, "required", f"{told}; you have no default account", True)
        draft.remark(1, f"Your accounts: {', '.join(accounts)}")
    else:
        draft.key(1, "required", guessed("associations are enforced, and yours were not told"), False)
    draft.key(1, "list_command", "shown to users who name none; never run", ACCOUNTS_COMMAND)


def _partitions(draft: Draft, survey: Survey, queues: list[Queue], left: list[Left]) -> None:
    draft.blank()
    default = next((one for one in queues if one.rules.get("Default").upper() == "YES"), None)
    with_gpus = next((one for one in queues if one.shape.gpu.count), None)
    if default is not None and (default.shape.gpu.count or with_gpus is None):
        draft.key(0, "default_partition", read("scontrol show partition", "Default=YES"), default.name)
    else:
        first = with_gpus or queues[0]
        why = f"Slurm's own, {default.name}, has no GPUs" if default else "Slurm names none that is up"
        draft.key(0, "default_partition", guessed(why), first.name)
    draft.key(0, "partitions")
    for one in left:
        draft.remark(1, f"Left out: {one.name}, {one.why}")
    for queue in queues:
        add_partition(draft, survey, queue)


def _launcher(draft: Draft, survey: Survey) -> None:
    draft.blank()
    listed = ", ".join(survey.mpi_types) or "nothing"
    if "ibrun" in survey.programs:
        draft.key(0, "launcher")
        draft.key(1, "command", guessed("ibrun is on PATH, as at sites where MPI is started by it"), "ibrun")
        return
    own = survey.config.get("MpiDefault", "")
    chosen = _mpi_type(survey)
    if chosen is None:
        draft.remark(0, f"launcher.mpi is not known: `srun --mpi=list` names {listed}. Engines that need MPI need it.")
        return
    draft.key(0, "launcher")
    if chosen == own:
        draft.key(1, "mpi", read(CONFIG, f"MpiDefault; srun --mpi=list names {listed}"), chosen)
    else:
        draft.key(1, "mpi", guessed(f"srun --mpi=list names {listed}, MpiDefault is {own or 'not set'}"), chosen)


def _mpi_type(survey: Survey) -> str | None:
    own, known = survey.config.get("MpiDefault", ""), survey.mpi_types
    if own and own != "none":
        return own
    versions = sorted((one for one in known if one.startswith("pmix_v")), reverse=True)
    wanted = ("pmix", *versions, "cray_shasta", "pmi2")
    return next((one for one in wanted if one in known), None)


def _network(draft: Draft, survey: Survey) -> None:
    draft.blank()
    draft.key(0, "network")
    switch = survey.config.get("SwitchType", "")
    if "slingshot" in switch:
        draft.key(1, "fabric", read(CONFIG, f"SwitchType={switch}"), "slingshot")
    else:
        draft.remark(1, "fabric (infiniband, roce, slingshot, efa, gib, ethernet) and interface: no command tells")
    draft.key(1, "internet", guessed("whether compute nodes reach the internet, no command tells"), "direct")
    taken = [_range(survey.config.get(key, "")) for key in ("SrunPortRange", "MpiParams")]
    free = next((text for text in PORT_RANGES if not any(_overlap(text, one) for one in taken)), PORT_RANGES[0])
    draft.key(1, "ports", guessed("below the kernel's ephemeral ports, beside SrunPortRange and MpiParams"), free)


def _container(draft: Draft, survey: Survey) -> None:
    draft.blank()
    found = _runtime(survey)
    if found is None:
        draft.remark(0, "container: srun has no option of a container plugin, and no runtime is on PATH here.")
        draft.remark(0, "Where one comes with a module, set container.runtime and load it in modules.load.")
        return
    runtime, why = found
    draft.key(0, "container")
    draft.key(1, "runtime", why, runtime)


def _runtime(survey: Survey) -> tuple[str, str] | None:
    if "environment" in survey.srun_options:
        return "cscs_ce", read("srun --help", "--environment")
    if "container-image" in survey.srun_options:
        return "pyxis", read("srun --help", "--container-image")
    if "image" in survey.srun_options or "shifter" in survey.programs:
        seen = read("srun --help", "--image") if "image" in survey.srun_options else guessed("shifter is on PATH here")
        return "shifter", seen
    for program, runtime in _RUNTIMES:
        if program in survey.programs:
            return runtime, guessed(f"{program} is on PATH of this host, and so perhaps on the nodes")
    return None


def _storage(draft: Draft, survey: Survey) -> None:
    draft.blank()
    temporary = survey.config.get("TmpFS", "")
    is_plain = bool(re.fullmatch(r"/[A-Za-z0-9._/-]*", temporary)) and temporary != "/tmp"
    if survey.variables or is_plain:
        draft.key(0, "storage")
    if survey.variables:
        name = survey.variables[0]
        draft.key(1, "logs", guessed(f"${name} is set here; all nodes must share it"), f"${name}/slurm_llm")
    else:
        draft.remark(0, "storage.logs: run directories go where jobs are submitted; all nodes must share that folder.")
    if is_plain:
        draft.key(1, "local", read(CONFIG, "TmpFS"), temporary)


def _startup(draft: Draft, survey: Survey, queues: list[Queue]) -> None:
    seconds = survey.config.get("ResumeTimeout", "").split()[:1]
    if any(queue.shape.boots for queue in queues) and seconds and seconds[0].isdecimal():
        draft.blank()
        draft.key(0, "startup")
        draft.key(1, "boot_s", read(CONFIG, "ResumeTimeout; nodes boot when a job needs them"), int(seconds[0]))


def _range(text: str) -> tuple[int, int]:
    match = re.search(r"(\d+)-(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _overlap(text: str, other: tuple[int, int]) -> bool:
    low, high = _range(text)
    return low <= other[1] and high >= other[0]
