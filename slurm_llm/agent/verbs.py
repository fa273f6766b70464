"""Command line of the folder: one verb for each part, all arguments given by the job's scripts.

Each verb loads its own part alone: a node agent that need not know how to diagnose is 7 MiB smaller.
"""

import argparse
from typing import Any, Callable, Dict, List


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent", description="Parts of slurm_llm that run inside the job")
    verbs = parser.add_subparsers(dest="verb")
    verbs.required = True
    for verb in ("node", "head", "conclude"):
        verbs.add_parser(verb).add_argument("--attempt", required=True)
    own = verbs.choices["node"]
    own.add_argument("--tag", required=True)
    own.add_argument("--ranks", type=int, required=True)
    own.add_argument("--local", required=True)
    own.add_argument("--stop-s", type=float, required=True)
    own.add_argument("--kill-wait-s", type=float, required=True)
    own.add_argument("--clocks", default="")
    sweeping = verbs.add_parser("clean")
    sweeping.add_argument("--tag", required=True)
    sweeping.add_argument("--local", required=True)
    sweeping.add_argument("--clocks", default="")
    verbs.choices["head"].add_argument("--run", required=True)
    closing = verbs.choices["conclude"]
    closing.add_argument("--ranks", type=int, required=True)
    closing.add_argument("--preflight", type=int, default=0)
    closing.add_argument("codes", type=int, nargs="*")
    check = verbs.add_parser("preflight")
    check.add_argument("--ranks", type=int, required=True)
    check.add_argument("--ranks-per-node", type=int, required=True)
    check.add_argument("--gpus", type=int, required=True)
    check.add_argument("--mpi", action="store_true")
    check.add_argument("--no-srun", action="store_true")
    check.add_argument("--interface", default="")
    asking = verbs.add_parser("address")
    asking.add_argument("interface")
    asking.add_argument("family", choices=("any", "ipv4"))
    drawing = verbs.add_parser("ports")
    drawing.add_argument("low", type=int)
    drawing.add_argument("high", type=int)
    drawing.add_argument("seed", type=int)
    drawing.add_argument("fixed", nargs=3)
    verbs.add_parser("gpus")
    _add_verbs_of_recovery(verbs)
    making = verbs.add_parser("repository")
    making.add_argument("--recipe", required=True)
    making.add_argument("--into", required=True)
    for verb in ("stage", "unstage"):
        verbs.add_parser(verb).add_argument("--run", required=True)
    _add_verbs_that_look(verbs)
    _add_verb_of_ray(verbs)
    _add_verbs_from_outside(verbs)
    return parser


def _add_verbs_that_look(verbs: Any) -> None:
    looking = verbs.add_parser("survey")
    looking.add_argument("--folder", required=True)
    looking.add_argument("--of", required=True, choices=("batch", "node", "rank", "mpi"))
    looking.add_argument("--since", type=float)
    looking.add_argument("--rank", type=int)
    seeing = verbs.add_parser("image")
    seeing.add_argument("--out", required=True)
    seeing.add_argument("--home", action="append", default=[])


def _add_verb_of_ray(verbs: Any) -> None:
    gathering = verbs.add_parser("ray")
    gathering.add_argument("--attempt", required=True)
    for name in ("--instance", "--rank", "--first", "--ranks", "--low", "--high", "--seed", "--gpus"):
        gathering.add_argument(name, type=int, required=True)
    gathering.add_argument("--wait-s", type=float, required=True)
    gathering.add_argument("--temp", required=True)
    gathering.add_argument("--interface", default="")
    gathering.add_argument("--taken", default="")
    gathering.add_argument("words", nargs="*")


def _add_verbs_from_outside(verbs: Any) -> None:
    verbs.add_parser("relay")
    entering = verbs.add_parser("enter")
    entering.add_argument("--run", required=True)
    entering.add_argument("--tag", required=True)
    entering.add_argument("--rank", type=int)
    entering.add_argument("words", nargs=argparse.REMAINDER)


def _add_verbs_of_recovery(verbs: Any) -> None:
    deciding = verbs.add_parser("recover")
    deciding.add_argument("--attempt", required=True)
    for name in ("--first", "--restarts", "--backoff-s", "--reset-s", "--requeues", "--need"):
        deciding.add_argument(name, type=int, required=True)
    deciding.add_argument("--excluded", default="")
    verbs.choices["node"].add_argument("--script-host", default="")
    living = verbs.add_parser("living")
    living.add_argument("--attempt", required=True)
    living.add_argument("--nodes", required=True)


def _node(given: Any) -> int:
    from . import node

    if given.script_host:
        from . import heir

        if heir.is_heir():
            heir.start(heir.Will(given.script_host, given.attempt))
    options = node.Options(
        given.attempt, given.tag, given.ranks, given.local, given.stop_s, given.kill_wait_s, given.clocks
    )
    return node.main(options)


def _clean(given: Any) -> int:
    from . import node

    return node.clean(given.tag, given.local, given.clocks)


def _head(given: Any) -> int:
    from . import head

    return head.main(given.run, given.attempt)


def _preflight(given: Any) -> int:
    from . import preflight

    options = preflight.Options(
        given.ranks, given.ranks_per_node, given.gpus, given.mpi, not given.no_srun, given.interface
    )
    return preflight.main(options)


def _address(given: Any) -> int:
    from . import interfaces

    return interfaces.main(given.interface, given.family)


def _ports(given: Any) -> int:
    from . import ports

    return ports.main(given.low, given.high, given.seed, [ports.parse(text) for text in given.fixed])


def _gpus(_given: Any) -> int:
    from . import gpuwatch

    return gpuwatch.main()


def _repository(given: Any) -> int:
    from . import repository

    return repository.main(given.recipe, given.into)


def _stage(given: Any) -> int:
    from . import staging

    return staging.main(given.run)


def _unstage(given: Any) -> int:
    from . import staging

    return staging.remove(given.run)


def _image(given: Any) -> int:
    from . import image

    return image.main(given.out, given.home)


def _ray(given: Any) -> int:
    from . import ray

    return ray.main(ray.from_words(given))


def _survey(given: Any) -> int:
    from . import survey

    return survey.main(survey.Options(given.folder, given.of, given.since, given.rank))


def _relay(_given: Any) -> int:
    from . import relay

    return relay.main()


def _enter(given: Any) -> int:
    from . import enter

    return enter.main(given.run, given.tag, given.rank, given.words)


def _recover(given: Any) -> int:
    from . import recover

    limits = recover.Limits(given.restarts, given.backoff_s, given.reset_s, given.requeues)
    return recover.main(recover.Given(given.attempt, given.first, limits, given.need, given.excluded))


def _living(given: Any) -> int:
    from . import recover

    return recover.print_living(given.attempt, given.nodes)


def _conclude(given: Any) -> int:
    from . import conclude

    return conclude.main(given.attempt, given.ranks, given.codes, given.preflight)


_VERBS: Dict[str, Callable[[Any], int]] = {
    "node": _node,
    "clean": _clean,
    "head": _head,
    "preflight": _preflight,
    "address": _address,
    "ports": _ports,
    "gpus": _gpus,
    "repository": _repository,
    "stage": _stage,
    "unstage": _unstage,
    "image": _image,
    "ray": _ray,
    "survey": _survey,
    "relay": _relay,
    "enter": _enter,
    "recover": _recover,
    "living": _living,
    "conclude": _conclude,
}


def main(argv: List[str]) -> int:
    """Run the verb that `argv` names and return its exit status."""
    given = _parser().parse_args(argv)
    return _VERBS[given.verb](given)
