"""Command line of the folder: one verb for each part, all arguments given by the job's scripts."""

import argparse
from typing import List

from . import conclude, head, interfaces, node, ports, preflight, survey


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
    looking = verbs.add_parser("survey")
    looking.add_argument("--folder", required=True)
    looking.add_argument("--of", required=True, choices=("batch", "node", "rank", "mpi"))
    looking.add_argument("--since", type=float)
    looking.add_argument("--rank", type=int)
    return parser


def main(argv: List[str]) -> int:
    """Run the verb that `argv` names and return its exit status."""
    given = _parser().parse_args(argv)
    if given.verb == "node":
        return node.main(
            node.Options(
                given.attempt, given.tag, given.ranks, given.local, given.stop_s, given.kill_wait_s, given.clocks
            )
        )
    if given.verb == "clean":
        return node.clean(given.tag, given.local, given.clocks)
    if given.verb == "head":
        return head.main(given.run, given.attempt)
    if given.verb == "preflight":
        return preflight.main(
            preflight.Options(
                given.ranks, given.ranks_per_node, given.gpus, given.mpi, not given.no_srun, given.interface
            )
        )
    if given.verb == "address":
        return interfaces.main(given.interface, given.family)
    if given.verb == "ports":
        return ports.main(given.low, given.high, given.seed, [ports.parse(text) for text in given.fixed])
    if given.verb == "survey":
        return survey.main(survey.Options(given.folder, given.of, given.since, given.rank))
    return conclude.main(given.attempt, given.ranks, given.codes, given.preflight)
