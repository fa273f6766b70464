"""How to reach a run that serves, made ready to hand on: addresses, a curl line, an ssh tunnel, variables. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slurm_llm.dialects import example
from slurm_llm.errors import InputError, NotReady, Problem
from slurm_llm.observe.text import clean

if TYPE_CHECKING:
    from slurm_llm.observe.facts import Endpoint
    from slurm_llm.observe.status import RunStatus

LOCAL_PORT, LOCAL_OPENAI_PORT = 8000, 8001
"""Ports on the laptop: Triton's own for HTTP, and the next one."""
LOGIN_NODE = "LOGIN_NODE"
"""Stands for a login node whose name cannot be guessed."""
SOMETIMES = ("SLURM_LLM_OPENAI", "SLURM_LLM_KEY_FILE", "SLURM_LLM_EXPORTER")
"""Variables that not every run has."""
UNANSWERED = "Slurm did not answer, and its files tell no more"


@dataclass(frozen=True)
class Tunnel:
    """An `ssh` line for a laptop, and what is reached there then; `guessed` says whose name it has."""

    command: str
    url: str
    openai: str
    guessed: str


def serving(status: RunStatus) -> tuple[Endpoint, ...]:
    """Return where the run is served: the balancer first, where there is one.

    Raises:
        NotReady: it serves nothing; the message says how it is and why.
    """
    if status.endpoints:
        return status.endpoints
    what = f"serves nothing: it is {status.state.value}"
    why = status.cause or (status.pending.text if status.pending else "" if status.slurm_answered else UNANSWERED)
    verb = "status" if status.ended or status.job_id is None else "wait"
    raise NotReady(Problem(f"run {status.run_id}", what, clean(why).rstrip("."), f"slurm-llm {verb} {status.run_id}"))


def choose(status: RunStatus, instance: int | None) -> Endpoint:
    """Return the endpoint that is meant: the balancer, or the first instance, unless one is named.

    Raises:
        NotReady: the run does not serve; InputError: it has no such instance.
    """
    endpoints = serving(status)
    for one in endpoints:
        if instance in (None, one.instance):
            return one
    known = [one.instance for one in endpoints if one.instance is not None]
    raise no_such(status.run_id, "instance", instance, 1 + max(known))


def no_such(run_id: str, kind: str, number: int | None, count: int) -> InputError:
    """Return the error that a run of `count` instances or ranks has none of that number."""
    there = f"there is {kind} 0 alone" if count == 1 else f"there are {kind}s 0 to {count - 1}"
    return InputError(Problem(f"run {run_id}", f"has no {kind} {number}", there))


def variables(status: RunStatus) -> dict[str, str]:
    """Return the run in variables, as a bench finds them too: the balancer's or the first instance's addresses.

    A balancer has no metrics page: that of the first instance stands for it.

    Raises:
        NotReady: it serves nothing.
    """
    endpoints = serving(status)
    first = endpoints[0]
    return {
        "SLURM_LLM_URL": first.url,
        "SLURM_LLM_URLS": " ".join(one.url for one in endpoints),
        "SLURM_LLM_GRPC": first.grpc,
        "SLURM_LLM_METRICS": next((one.metrics for one in endpoints if one.metrics), ""),
        "SLURM_LLM_MODEL": status.model,
        "SLURM_LLM_RUN": status.directory,
        "SLURM_LLM_JOB": str(status.job_id),
    } | _present(SLURM_LLM_OPENAI=first.openai, SLURM_LLM_KEY_FILE=first.key_file, SLURM_LLM_EXPORTER=first.exporter)


def _present(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def shell_lines(values: Mapping[str, str]) -> str:
    """Return lines for a shell's `eval`, each value quoted; what another run has left there and this one lacks goes."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    missing = [name for name in SOMETIMES if name not in values]
    return "\n".join([*lines, *([f"unset {' '.join(missing)}"] if missing else [])])


def curl(url: str, model: str, engine: str, key_file: str = "") -> tuple[str, ...]:
    """Return the lines of one curl command that asks for a text as the engine wants it, past any proxy.

    curl reads the header that a key is from its file, so that the key is in no command line.
    """
    body = shlex.quote(json.dumps(example(engine)))
    key = (f"  -H {shlex.quote(f'@{key_file}')} \\",) if key_file else ()
    # --noproxy: sites export http_proxy, and a proxy cannot reach a compute node.
    return ("curl -s --noproxy '*' \\", *key, f"  {url}/v2/models/{model}/generate \\", f"  -d {body}")


def curl_of(status: RunStatus) -> tuple[str, ...]:
    """Return the lines of `curl` for a run that serves: for its balancer or first instance, with its key."""
    first = serving(status)[0]
    return curl(first.url, status.model, status.engine, first.key_file)


def is_inward(endpoint: Endpoint) -> bool:
    """Return whether the server listens on its node's loopback alone, as a site can want it."""
    return urlsplit(endpoint.url).hostname in ("127.0.0.1", "localhost", "::1")


def tunnel(endpoint: Endpoint, user: str, host: str, in_job: bool, port: int = LOCAL_PORT) -> Tunnel:
    """Return the ssh line that makes `endpoint` reachable at `port` of a laptop; `host` is this machine's name.

    In a job this machine is a compute node, so the login node's name is left to be filled in.
    """
    second = port % 65535 + 1
    forwards = [f"-L {port}:{_place(endpoint.url)}"]
    if endpoint.openai:
        forwards.append(f"-L {second}:{_place(endpoint.openai)}")
    login = LOGIN_NODE if in_job or not host else host
    guessed = (
        f"put the login node's name for {LOGIN_NODE}"
        if login == LOGIN_NODE
        else (f"{host} is this machine's own name for itself: put the one that you log in to")
    )
    return Tunnel(
        command=" ".join(("ssh -N", *forwards, shlex.quote(f"{user}@{login}" if user else login))),
        url=f"http://localhost:{port}",
        openai=f"http://localhost:{second}/v1" if endpoint.openai else "",
        guessed=guessed,
    )


def ends_at(status: RunStatus, now: float) -> float | None:
    """Return when Slurm ends the job, seconds since the epoch; None where it did not say or there is no limit."""
    return None if status.time_left_s is None else now + status.time_left_s


def endpoint_to_json(status: RunStatus, reach: Tunnel, now: float) -> str:
    """Return all of it as JSON."""
    endpoints = serving(status)
    value = {
        "run_id": status.run_id,
        "job_id": status.job_id,
        "state": status.state.value,
        "url": endpoints[0].url,
        "model": status.model,
        "engine": status.engine,
        "balancer": endpoints[0].balancer,
        "openai": endpoints[0].openai,
        "exporter": endpoints[0].exporter,
        "instances": [asdict(one) for one in endpoints if one.instance is not None],
        "ends_at": ends_at(status, now),
        "time_left_s": status.time_left_s,
        "curl": " ".join(line.rstrip("\\").strip() for line in curl_of(status)),
        "tunnel": asdict(reach),
        "variables": variables(status),
        "notes": list(status.notes),
    }
    return json.dumps(value, indent=1, ensure_ascii=False)


def _place(url: str) -> str:
    return urlsplit(url).netloc
