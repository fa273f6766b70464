"""What an end means, and what to do, where the logs hold no known error. Texts only."""

import re
from typing import Any, Dict, NamedTuple, Optional


class Advice(NamedTuple):
    """What has happened, and what to do."""

    means: str
    remedy: str


_LOGS = "Read that rank's log (`slurm-llm logs RUN --rank N`)."
_REPORT = "`slurm-llm bundle RUN` makes an archive for a ticket."

BY_KIND: Dict[str, Advice] = {
    "SIGKILL": Advice(
        "Somebody or something sent SIGKILL: a person, or the kernel for want of memory; no log says who.",
        "Look at the memory of that rank (`slurm-llm health RUN`) and ask for more with `resources.mem_per_node`; the"
        " admins see the kernel's own words in dmesg of that node.",
    ),
    "SIGTERM": Advice(
        "Something outside of the job told that process to end; the job itself had asked for nothing.",
        "Ask who or what sends signals on that node: a clean-up of the site, another job's epilog, a person.",
    ),
    "SIGSEGV": Advice("The process crashed.", _LOGS + " " + _REPORT),
    "SIGBUS": Advice(
        "The process touched memory that could not be backed: mostly a full /dev/shm, or a file that was cut off.",
        "Check /dev/shm on that node; raise `preflight.dev_shm_mib`.",
    ),
    "SIGABRT": Advice("The process gave up by itself (abort).", _LOGS + " " + _REPORT),
    "SIGILL": Advice(
        "The program was built for another CPU than the node has.",
        "Use an image for this CPU; where nodes differ, choose them with `constraint`.",
    ),
    "SIGXCPU": Advice("The limit of CPU time was reached.", "Ask the admins about `ulimit -t` on the compute nodes."),
    "exit 0": Advice(
        "A server that ends by itself has failed, also when it says 0: nobody had asked it to end.",
        "Look for what ends it in its log; a `step_prologue` that calls exit is one reason.",
    ),
    "exit 126": Advice("A program was found but could not be run.", "Check its rights, and that it is for this CPU."),
    "exit 127": Advice("A program was not found.", "Check `triton.server`, `container.image` and `step_prologue`."),
    "exit": Advice("The engine gave up by itself; its own last words are the best evidence.", _LOGS + " " + _REPORT),
    "unseen": Advice(
        "The process was gone before anybody saw how.",
        "Look at the step's own log (`slurm-llm logs RUN --source srun`) and at the last lines of that rank.",
    ),
    "hang": Advice(
        "The run made no progress within its limits: one rank waits, spins or is stopped, and others wait for it.",
        "Look at the rank that stands out (`slurm-llm health RUN`, `slurm-llm logs RUN --rank N`). Where starts merely"
        " take longer, raise `timeouts.stall_s` or `timeouts.ready_s`.",
    ),
    "hang serving": Advice(
        "The model had served and answers no more: one rank waits, spins or is stopped, and others wait for it.",
        "Look at the rank that stands out (`slurm-llm health RUN`, `slurm-llm logs RUN --rank N`). Where answers merely"
        " take longer, raise `timeouts.answer_s`; where the server is busy or not ready for longer,"
        " `timeouts.unready_s`.",
    ),
    "not-ready": Advice(
        "The model did not serve within the time that a start may take.",
        "See what the start was about (`slurm-llm logs RUN`, `slurm-llm health RUN`); where it merely takes longer,"
        " raise `timeouts.ready_s`.",
    ),
    "shm": Advice(
        "Too little of that node's /dev/shm is free: what another run or user has left there holds the rest.",
        "Tell the admins, or submit again with the node in `exclude_nodes`; lower `preflight.dev_shm_mib` where ranks"
        " need less.",
    ),
    "node": Advice(
        "A node is gone, and everything on it.",
        "Submit again with it in `exclude_nodes`, and tell the admins.",
    ),
    "launch": Advice(
        "The step could not be started, so no engine has run.",
        "Read what srun says; `slurm-llm site check SITE --run` tries such a step without a server.",
    ),
    "preflight": Advice(
        "The check before the start failed; nothing was loaded.",
        "Correct what the line says; `slurm-llm site check SITE --run` shows what ranks see.",
    ),
    "step": Advice(
        "Somebody or something ended the whole step, as `scancel` of a step does; no rank is at fault.",
        "Ask who cancels steps of this job: a person, a clean-up of the site, or Slurm for want of memory.",
    ),
    "agents": Advice(
        "The node agents' step was lost, and nobody would have seen a rank die any more: the job ended the servers.",
        "Look at agents.log (`slurm-llm logs RUN --source agents`): Slurm or a person ended that step.",
    ),
    "agent": Advice(
        "The agent of that node had ended while the node lived on, so nobody saw how its ranks ended; the rank that was"
        " seen to end may only have suffered from one of them.",
        "Read the logs of that node's ranks (`slurm-llm logs RUN --rank N`); ask who or what ends processes there.",
    ),
    "time": Advice(
        "The job's time was up before the model served.",
        "Ask for more with `resources.time`, or look for what makes loading slow (`slurm-llm logs RUN`).",
    ),
    "time serving": Advice(
        "The job served until its time was up.",
        "Ask for more with `resources.time`; with `service` in the spec a job submits its own successor ahead of its"
        " end and serves on until that one answers (docs/service.md).",
    ),
    "staging": Advice(
        "A node could not have its copy of the weights, so no rank was started.",
        "Make room on that node's disk, or name another with `staging.to`; without `staging` the weights are read where"
        " they are. More words are in staging.log (`slurm-llm logs RUN --source staging`).",
    ),
    "client": Advice(
        "The server was well; the command that the job runs beside it failed, and the job ends with it.",
        "Read what it printed (`slurm-llm logs RUN --source client`).",
    ),
    "idle": Advice(
        "Nobody had asked the model for so long, and the spec has such a server end by itself.",
        "Submit it again when it is needed; `service.idle_stop_s` says how long it waits for requests.",
    ),
    "preempted": Advice(
        "Slurm took the nodes for a job of higher priority.",
        "Use a partition or `qos` that is not preempted.",
    ),
    "unknown": Advice(
        "What is there does not say why.",
        "Read the step's log (`slurm-llm logs RUN --source srun`). " + _REPORT,
    ),
}


_COMMAND = re.compile(r"`slurm-llm [^`]*`")


def filled(text: str, run: str, rank: Optional[int], site: str = "SITE") -> str:
    """Return a remedy with a run, a rank and a site in the commands that it shows; without a rank, for all ranks."""

    def command(match: Any) -> str:
        shown = re.sub(r"\bRUN\b", run, match.group(0))
        shown = re.sub(r"\bSITE\b", site, shown)
        return shown.replace(" --rank N", "" if rank is None else " --rank %d" % rank)

    return _COMMAND.sub(command, text)


def advice(kind: str, how: Optional[str], phase: str = "") -> Optional[Advice]:
    """Return advice on an end of `kind` in a phase, given how a process ended (`exit 3`, `signal SIGKILL`, None)."""
    if kind in ("exit", "exit0", "signal", "raise", "unseen"):
        if how is None:
            return BY_KIND["unseen"]
        if how.startswith("signal "):
            return BY_KIND.get(how[len("signal ") :], BY_KIND["SIGABRT"])
        return BY_KIND.get(how, BY_KIND["exit"])
    return BY_KIND.get("%s %s" % (kind, phase)) or BY_KIND.get(kind)


def stop_advice(state: str, cause: str) -> Optional[Advice]:
    """Return advice on a stop that was asked for: by the time limit, or for want of requests; None on others."""
    if cause.startswith("idle for "):
        return BY_KIND["idle"]
    return BY_KIND["time serving"] if state == "TIMED_OUT" and "take over" not in cause else None
