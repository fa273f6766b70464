"""Faults: their grammar, what they do to a process, when they come, and that they stay where they belong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.process import Completed, run
from slurm_llm.rehearsal.engine import Leader, start_engine
from slurm_llm.rehearsal.faults import (
    HANGS,
    OOM_MIB,
    PROCESSES,
    SIGNALS,
    Fault,
    join_faults,
    misfits,
    parse_faults,
    read_fault,
)
from slurm_llm.rehearsal.strikes import Strikes, http_port, own_rank, strikes_of
from slurm_llm.rehearsal.texts import Request
from slurm_llm.rehearsal.world import RehearsalError
from tests.rehearsal.test_mpi import engine, mpirun
from tests.rehearsal.test_triton import PROMPT, TEXT, Step, await_true, children
from tests.rehearsal.test_world import Ear

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 20
WRONG_SHAPE = "a tensor has the wrong shape"


@pytest.mark.parametrize(
    ("text", "fault", "back"),
    [
        ("rank=5,at=load,kind=exit:3", Fault(5, "load", "exit", "3"), "rank=5,at=load,kind=exit:3"),
        (" kind=exit0 , at=start,rank=0", Fault(0, "start", "exit", "0"), "rank=0,at=start,kind=exit:0"),
        ("rank=1,at=mpi,kind=signal:SEGV", Fault(1, "mpi", "signal", "SEGV"), "rank=1,at=mpi,kind=signal:SEGV"),
        ("rank=1,at=serve,kind=hang", Fault(1, "serve", "hang", "sleep"), "rank=1,at=serve,kind=hang:sleep"),
        ("rank=1,at=load,kind=oom", Fault(1, "load", "oom", str(OOM_MIB)), f"rank=1,at=load,kind=oom:{OOM_MIB}"),
        ("rank=1,at=load,kind=raise", Fault(1, "load", "raise"), "rank=1,at=load,kind=raise"),
        (
            "rank=1,at=serve,kind=slow:0.5,after=10",
            Fault(1, "serve", "slow", "0.5", after_s=10.0),
            "rank=1,at=serve,kind=slow:0.5,after=10",
        ),
        (
            "rank=1,at=load,kind=hang:stop,who=server",
            Fault(1, "load", "hang", "stop", who="server"),
            "rank=1,at=load,kind=hang:stop,who=server",
        ),
        (
            "rank=1,at=load,attempt=2,kind=raise",
            Fault(1, "load", "raise", attempt=2),
            "rank=1,at=load,kind=raise,attempt=2",
        ),
        (
            "rank=1,at=load,kind=raise,attempt=all",
            Fault(1, "load", "raise", attempt=None),
            "rank=1,at=load,kind=raise,attempt=all",
        ),
        ("rank=1,at=load,kind=raise,attempt=0", Fault(1, "load", "raise"), "rank=1,at=load,kind=raise"),
    ],
)
def test_a_text_is_read_and_written(text: str, fault: Fault, back: str) -> None:
    """Order and blanks are free, what is left out is filled in."""
    assert read_fault(text) == (fault, [])
    assert str(fault) == back


seconds = st.integers(1, 10**7).map(lambda thousandths: thousandths / 1000)
what = st.one_of(
    st.tuples(st.just("exit"), st.integers(0, 255).map(str)),
    st.tuples(st.just("signal"), st.sampled_from(SIGNALS)),
    st.tuples(st.just("hang"), st.sampled_from(HANGS)),
    st.tuples(st.just("oom"), st.integers(1, 1 << 20).map(str)),
    st.tuples(st.just("slow"), st.integers(1, 1000).map(str)),
    st.just(("raise", "")),
)
faults = st.one_of(
    st.builds(
        lambda rank, at, pair: Fault(rank, at, pair[0], pair[1]),
        st.integers(0, 9999),
        st.sampled_from(("start", "mpi", "load", "serve")),
        what,
    ),
    st.builds(
        lambda rank, pair, after: Fault(rank, "serve", pair[0], pair[1], after_s=after),
        st.integers(0, 9),
        what,
        st.integers(0, 10**5),
    ),
    st.builds(
        lambda name, who, attempt: Fault(1, "load", "signal", name, who=who, attempt=attempt),
        st.sampled_from(SIGNALS),
        st.sampled_from(PROCESSES),
        st.one_of(st.none(), st.integers(0, 99)),
    ),
)


@given(st.lists(faults, max_size=4))
def test_faults_survive_the_way_into_the_configuration(many: list[Fault]) -> None:
    """What planning writes, the rank reads; no character of it means anything inside a quoted text."""
    text = join_faults(many)
    assert parse_faults(text) == tuple(many)
    assert not set(text) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=,:;.+-")


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("", ["'' is not KEY=VALUE (rank=N,at=PLACE,kind=KIND)"]),
        ("rank=1,at=load", ["no kind in 'rank=1,at=load' (rank=N,at=PLACE,kind=KIND)"]),
        ("rank=1,at=load,knd=raise", ["unknown key 'knd' (rank, at, kind, after, who, attempt)"]),
        ("rank=1,rank=2,at=load,kind=raise", ["rank is there twice (each key once)"]),
        ("rank=-1,at=load,kind=raise", ["rank is '-1' (a number from 0)"]),
        ("rank=1,at=loading,kind=raise", ["unknown place 'loading' (start, mpi, load, serve)"]),
        ("rank=1,at=load,kind=raise,who=rank", ["unknown process 'rank' (stub, server)"]),
        (
            "rank=1,at=load,kind=rise",
            ["unknown kind 'rise' (exit, exit0, signal, raise, hang, oom, slow, noport)"],
        ),
        ("rank=1,at=load,kind=raise:x", ["kind is 'raise:x' (raise alone)"]),
        ("rank=1,at=load,kind=exit0:1", ["kind is 'exit0:1' (exit0 alone)"]),
        ("rank=1,at=load,kind=exit", ["kind is 'exit' (exit:N with N from 0 to 255)"]),
        ("rank=1,at=load,kind=exit:256", ["kind is 'exit:256' (exit:N with N from 0 to 255)"]),
        ("rank=1,at=load,kind=exit:-1", ["kind is 'exit:-1' (exit:N with N from 0 to 255)"]),
        ("rank=1,at=load,kind=signal", ["kind is 'signal' (signal:KILL|SEGV|BUS|ABRT|TERM|STOP)"]),
        ("rank=1,at=load,kind=signal:9", ["kind is 'signal:9' (signal:KILL|SEGV|BUS|ABRT|TERM|STOP)"]),
        ("rank=1,at=load,kind=hang:", ["kind is 'hang:' (hang:sleep|spin|stop)"]),
        ("rank=1,at=load,kind=oom:0", ["kind is 'oom:0' (oom:MIB with MIB from 1)"]),
        ("rank=1,at=load,kind=slow:0", ["kind is 'slow:0' (slow:SECONDS, more than 0)"]),
        ("rank=1,at=load,kind=slow:-1", ["kind is 'slow:-1' (slow:SECONDS, more than 0)"]),
        (
            "rank=x,at=y,kind=z",
            [
                "rank is 'x' (a number from 0)",
                "unknown place 'y' (start, mpi, load, serve)",
                "unknown kind 'z' (exit, exit0, signal, raise, hang, oom, slow, noport)",
            ],
        ),
        ("rank=1,at=serve,kind=raise,after=soon", ["after is 'soon' (a number of seconds)"]),
        ("rank=1,at=load,kind=raise,attempt=first", ["attempt is 'first' (a number from 0, or all)"]),
        ("rank=1,at=load,kind=raise,attempt=-1", ["attempt is '-1' (a number from 0, or all)"]),
        (
            "rank=1,at=load,kind=raise,after=3",
            ["after with at=load (after counts from the end of loading: at=serve)"],
        ),
        (
            "rank=0,at=serve,kind=noport",
            ["noport with at=serve (Triton's port is open by then: start, mpi or load)"],
        ),
        (
            "rank=1,at=load,kind=hang,who=server",
            ["hang with who=server (to a server one can only do signal:NAME and hang:stop)"],
        ),
        (
            "rank=1,at=load,kind=exit:1,who=server",
            ["exit with who=server (to a server one can only do signal:NAME and hang:stop)"],
        ),
    ],
)
def test_what_is_wrong_with_a_text_is_told_at_once(text: str, complaints: list[str]) -> None:
    """Every fault of the text stands there once, with what is allowed, at planning and in a rank alike."""
    fault, found = read_fault(text)
    assert fault is None
    assert [f"{one.what} ({one.allowed})" for one in found] == complaints
    if text:
        with pytest.raises(ValueError, match="fault: ") as caught:
            parse_faults(text)
        assert str(caught.value) == "; ".join(f"fault: {one}" for one in complaints)


@pytest.mark.parametrize(
    ("text", "world", "replicas", "complaints"),
    [
        ("rank=7,at=load,kind=raise", 8, 1, []),
        ("rank=8,at=load,kind=raise", 8, 1, ["rank 8 of a job with 8 ranks (0 to 7)"]),
        ("rank=8,at=load,kind=raise", 8, 2, []),
        ("rank=1,at=load,kind=raise", 1, 1, ["rank 1 of a job with 1 rank (0 to 0)"]),
        ("rank=0,at=load,kind=noport", 4, 1, []),
        ("rank=4,at=load,kind=noport", 4, 2, []),
        ("rank=5,at=load,kind=noport", 4, 2, ["noport on rank 5, a worker (a leader has the port: rank 0, 4)"]),
        ("rank=0,at=mpi,kind=raise", 1, 1, ["at=mpi in a world of one rank (it needs no MPI: start, load or serve)"]),
    ],
)
def test_a_fault_must_fit_the_job(text: str, world: int, replicas: int, complaints: list[str]) -> None:
    """Ranks are counted over all replicas; the first of each is its leader."""
    fault, _ = read_fault(text)
    assert fault is not None
    assert [f"{one.what} ({one.allowed})" for one in misfits(fault, world, replicas)] == complaints


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"PMIX_RANK": "2"}, 2),
        ({"LLMRUN_RANK": "5", "OMPI_COMM_WORLD_RANK": "1"}, 5),
        ({"LLMRUN_RANK": "", "OMPI_COMM_WORLD_RANK": "1"}, 1),
    ],
)
def test_a_process_knows_its_rank_before_mpi(environ: dict[str, str], rank: int) -> None:
    """The rank over all replicas wins over the rank in the instance."""
    assert own_rank(environ) == rank


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["tritonserver", "--http-port=18080", "--grpc-port=1"], 18080),
        (["tritonserver", "--http-port", "18081"], 18081),
        (["tritonserver"], 8000),
    ],
)
def test_the_port_is_read_from_the_servers_command_line(words: list[str], port: int) -> None:
    """Both ways to write it."""
    assert http_port(words) == port


def program(text: str, before: str = "") -> list[str]:
    """Return a program that is rank 1, reaches `start`, and says how that went."""
    lines = (
        "import os, signal, sys",
        "from slurm_llm.rehearsal.strikes import strikes_of",
        "from slurm_llm.rehearsal.world import RehearsalError",
        before or "pass",
        "try:",
        f"    strikes_of({text!r}, {{'LLMRUN_RANK': '1'}}).reach('start')",
        "except RehearsalError as error:",
        "    sys.exit(f'raised: {error}')",
        "print('went on')",
    )
    return [sys.executable, "-c", "\n".join(lines)]


def ended(text: str, before: str = "") -> Completed:
    """Return how that program ended."""
    return run(program(text, before), env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout_s=TIMEOUT_S)


DEAF = "for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda *_: None)"
NO_CORE = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"


@pytest.mark.parametrize(
    ("text", "before", "code"),
    [
        ("rank=1,at=start,kind=exit:3", "", 3),
        ("rank=1,at=start,kind=exit0", "", 0),
        ("rank=1,at=start,kind=signal:KILL", "", -signal.SIGKILL),
        ("rank=1,at=start,kind=signal:SEGV", NO_CORE, -signal.SIGSEGV),
        ("rank=1,at=start,kind=signal:ABRT", NO_CORE, -signal.SIGABRT),
        ("rank=1,at=start,kind=signal:TERM", DEAF, -signal.SIGTERM),
        ("rank=0,at=start,kind=exit:3;rank=1,at=start,kind=exit:4", "", 4),
    ],
)
def test_a_process_ends_as_it_was_told_and_says_nothing(text: str, before: str, code: int) -> None:
    """The status is the only trace, also where the process ignores the signal, as Triton's stub does."""
    done = ended(text, before)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("text", ["", "rank=0,at=start,kind=exit:3", "rank=1,at=load,kind=exit:3"])
def test_other_ranks_and_places_are_not_touched(text: str) -> None:
    """No fault, another rank's, another place's: the process goes on."""
    assert (ended(text).returncode, ended(text).stdout) == (0, "went on\n")


@pytest.mark.parametrize(
    ("text", "tag", "raises"),
    [
        ("rank=1,at=start,kind=raise", "", True),
        ("rank=1,at=start,kind=raise", "77.0", True),
        ("rank=1,at=start,kind=raise", "77.1", False),
        ("rank=1,at=start,kind=raise,attempt=1", "77.0", False),
        ("rank=1,at=start,kind=raise,attempt=1", "77.1", True),
        ("rank=1,at=start,kind=raise,attempt=all", "77.12", True),
    ],
)
def test_a_server_that_is_started_again_is_well(text: str, tag: str, raises: bool) -> None:
    """By itself a fault happens in the first attempt only; the attempt stands in the mark of the rank's processes."""
    strikes = strikes_of(text, {"LLMRUN_RANK": "1", "LLMRUN_TAG": tag})
    if raises:
        with pytest.raises(RehearsalError, match=WRONG_SHAPE):
            strikes.reach("start")
    else:
        strikes.reach("start")


@pytest.mark.parametrize(
    ("text", "before", "error"),
    [
        ("rank=1,at=start,kind=raise", "", WRONG_SHAPE),
        ("rank=1,at=start,kind=oom:100", "", "cannot allocate 67108864 bytes"),
        (
            "rank=1,at=start,kind=oom:1000000",
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))",
            "cannot allocate 67108864 bytes",
        ),
        ("rank=1,at=start", "", "no kind in 'rank=1,at=start'"),
        ("rank=1,at=start,kind=hang:stop,who=server", "", "no tritonserver is above this process"),
    ],
)
def test_a_process_fails_as_an_engine_does(text: str, before: str, error: str) -> None:
    """By the engine's own exception: no traceback names what brought it about."""
    done = ended(text, before)
    assert (done.returncode, done.stdout) == (1, "")
    assert error in done.stderr


def resources(pid: int) -> tuple[str, float, float]:
    """Return a process's state, CPU seconds and resident MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    return fields[0], (int(fields[11]) + int(fields[12])) / ticks, int(fields[21]) * page / 2**20


def spins(pid: int) -> bool:
    """Whether the process uses the CPU half a second long or more."""
    return resources(pid)[1] > 1.0


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        ("hang:stop", lambda pid: resources(pid)[0] == "T"),
        ("signal:STOP", lambda pid: resources(pid)[0] == "T"),
        ("hang:spin", spins),
        ("oom:600", lambda pid: resources(pid)[2] > 400),
    ],
)
def test_a_process_shows_what_is_wrong_with_it(kind: str, sign: Callable[[int], bool]) -> None:
    """Stopped, at the CPU, or full of memory that it has touched: what an observer can see."""
    with subprocess.Popen(
        program(f"rank=1,at=start,kind={kind}"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            await_true(lambda: sign(child.pid), kind)
        finally:
            child.kill()


def test_a_process_that_sleeps_uses_nothing() -> None:
    """It is there, and stays there."""
    with subprocess.Popen(
        program("rank=1,at=start,kind=hang"), env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL
    ) as child:
        try:
            await_true(lambda: Path(f"/proc/{child.pid}/wchan").read_text().startswith("futex"), "asleep")
            used = resources(child.pid)[1]
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(1)
            assert resources(child.pid)[1] - used < 0.1
        finally:
            child.kill()


def leader(fault: str) -> Leader:
    """Return the leader of a world of one with a fault."""
    made = start_engine({"fault": f"rank=0,{fault}", "finish_s": "1"}, lambda line: None)
    assert made is not None
    return made


def ask(engine: Leader) -> Ear:
    """Ask for a text."""
    ear = Ear()
    engine.submit(Request("", PROMPT.encode(), ear))
    return ear


def test_a_leader_fails_from_the_request_after_the_probe_on() -> None:
    """The generation that proves readiness is answered; every later request is refused out of the model's method."""
    engine = leader("at=serve,kind=raise")
    assert ask(engine).done.wait(TIMEOUT_S)
    for _ in range(2):
        with pytest.raises(RehearsalError, match=WRONG_SHAPE):
            ask(engine)
    engine.close(TIMEOUT_S)


def test_a_leader_hangs_with_its_requests_unanswered() -> None:
    """The request is taken, and nothing comes of it; closing gives up in time."""
    engine = leader("at=serve,kind=hang")
    assert ask(engine).done.wait(TIMEOUT_S)
    assert not ask(engine).done.wait(0.5)
    begun = time.monotonic()
    engine.close(0.2)
    assert time.monotonic() - begun < 5


def test_a_slow_leader_writes_the_same_text_later() -> None:
    """Each step takes so much longer, and nothing else changes."""
    engine = leader("at=serve,kind=slow:0.05")
    fast = ask(engine)
    assert fast.done.wait(TIMEOUT_S)
    begun = time.monotonic()
    slow = ask(engine)
    assert slow.done.wait(TIMEOUT_S)
    assert (slow.text, fast.text) == (TEXT, TEXT)
    assert time.monotonic() - begun > 15 * 0.05
    engine.close(TIMEOUT_S)


def test_a_fault_may_come_by_itself() -> None:
    """With `after` the clock decides and no request is needed."""
    engine = leader("at=serve,kind=raise,after=0.3")
    assert ask(engine).done.wait(TIMEOUT_S)
    assert ask(engine).done.wait(TIMEOUT_S)

    def refuses() -> bool:
        try:
            ask(engine).done.wait(TIMEOUT_S)
        except RehearsalError:
            return True
        return False

    await_true(refuses, "refused")
    engine.close(TIMEOUT_S)


@pytest.mark.parametrize(("starts", "at"), [((1, 0, 0, 1), 3), ((2,), 0), ((0, 1, 2), 2)])
def test_a_worker_counts_the_requests_that_reach_it(starts: tuple[int, ...], at: int) -> None:
    """Steps that go on with a text are no request; the first one is the probe."""
    worker = strikes_of("rank=1,at=serve,kind=raise", {"LLMRUN_RANK": "1"})
    for number in starts[:at]:
        worker.worker_steps(number)
    with pytest.raises(RehearsalError, match=WRONG_SHAPE):
        worker.worker_steps(starts[at])


def test_a_worker_that_waits_for_work_may_fail_by_itself() -> None:
    """The wait ends with the clock; without such a fault there is no second wait at all."""
    worker = strikes_of("rank=1,at=serve,kind=raise,after=0.1", {"LLMRUN_RANK": "1"})
    worker.loaded(leader=False)
    with pytest.raises(RehearsalError, match=WRONG_SHAPE):
        worker.worker_waits(lambda: False)
    Strikes().worker_waits(lambda: False)


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("rank=1,at=start,kind=exit:3", 3),
        ("rank=1,at=mpi,kind=exit:4", 4),
        ("rank=2,at=load,kind=exit:5", 5),
        ("rank=2,at=serve,kind=exit:6", 6),
        ("rank=0,at=serve,kind=exit:7", 7),
        ("rank=1,at=serve,kind=exit:8,after=0", 8),
    ],
)
def test_the_rank_that_is_meant_ends(fault: str, code: int, tmp_path: Path) -> None:
    """In every phase of a real MPI world it is that rank, with that status, and no log tells of a fault."""
    done = mpirun((3, engine(tensor_parallel_size=3, fault=fault)), scratch=tmp_path)
    assert done.returncode == code, done
    assert "fault" not in done.stderr.replace("default", "")


@pytest.mark.rehearsal
def test_a_slow_worker_changes_nothing_but_the_time() -> None:
    """Steps of all ranks wait for it, and the texts are the same."""
    fault = "rank=1,at=load,kind=slow:0.2;rank=1,at=serve,kind=slow:0.01"
    done = mpirun((2, engine(tensor_parallel_size=2, fault=fault)))
    assert done.returncode == 0, done.stderr
    assert f'"{TEXT}"' in done.stdout


def log_of(step: Step) -> str:
    """Return what ranks wrote, without Triton's tables."""
    return "\n".join(line for line in step.log.splitlines() if not line.startswith(("|", "+")))


@pytest.mark.rehearsal
def test_a_port_that_is_taken_stops_the_leader(tmp_path: Path) -> None:
    """Triton itself complains of its own port, after loading."""
    step = Step(tmp_path, 1, {"fault": "rank=0,at=load,kind=noport"})
    try:
        assert step.process.wait(TIMEOUT_S) != 0
        assert f"Socket '0.0.0.0:{step.http}' already in use" in step.log
    finally:
        step.end()


@pytest.mark.rehearsal
def test_a_stopped_server_is_the_one_above_its_stub(tmp_path: Path) -> None:
    """Stub and server are told apart: here the worker's server stops, and its stub does not."""
    step = Step(tmp_path, 2, {"tensor_parallel_size": "2", "fault": "rank=1,at=load,kind=hang:stop,who=server"})
    try:
        await_true(step.ready, "ready")
        _, worker = step.servers()
        await_true(lambda: resources(worker)[0] == "T", "stopped")
        assert [resources(stub)[0] for stub in children(worker)] != ["T"]
        assert step.generate(text_input=PROMPT)[1]["text_output"] == TEXT
    finally:
        step.end()


@pytest.mark.rehearsal
def test_an_exception_leaves_the_models_methods(tmp_path: Path) -> None:
    """Out of initialize the load fails, out of execute the request does; the model's file is all that is named."""
    step = Step(tmp_path / "load", 1, {"fault": "rank=0,at=load,kind=raise"})
    try:
        assert step.process.wait(TIMEOUT_S) != 0
        assert f"TritonModelException: rehearsal: {WRONG_SHAPE}" in step.log
        assert "strikes" not in log_of(step)
    finally:
        step.end()
    step = Step(tmp_path / "serve", 1, {"fault": "rank=0,at=serve,kind=raise"})
    try:
        await_true(step.ready, "ready")
        assert step.generate(text_input=PROMPT)[0] == 200
        status, answer = step.generate(text_input=PROMPT)
        assert (status, WRONG_SHAPE in str(answer["error"])) == (400, True)
        assert "strikes" not in log_of(step)
    finally:
        step.end()
