"""What stands before the instances: several on one node, a load balancer, the OpenAI-compatible front end's command."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import User, wait_for
from tests.cluster.test_main_job import ask, small

pytestmark = pytest.mark.cluster

FRONT_END = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
# The options of triton-inference-server/server, python/openai/openai_frontend/main.py.
parser.add_argument("--model-repository", required=True)
parser.add_argument("--tokenizer")
parser.add_argument("--backend", choices=["vllm", "tensorrtllm"])
parser.add_argument("--enable-kserve-frontends", action="store_true", required=True)
for name in ("--kserve-http-port", "--kserve-grpc-port", "--openai-port"):
    parser.add_argument(name, type=int, required=True)
given = parser.parse_args()
place = pathlib.Path(given.model_repository).parent
print("front end", given.backend, given.tokenizer, flush=True)
server = str(place / "triton/bin/tritonserver")
ports = [("http", given.kserve_http_port), ("grpc", given.kserve_grpc_port), ("metrics", given.openai_port)]
options = [f"--{name}-port={port}" for name, port in ports]
options += ["--model-repository=" + given.model_repository, f"--backend-directory={place}/triton/backends"]
os.execv(server, [server, "--disable-auto-complete-config", *options])
"""
"""Stands in for NVIDIA's front end, whose Python bindings of Triton are in its images alone: it takes the same options
and starts a real tritonserver on the ports that it is given."""


def test_two_instances_share_a_node_behind_a_balancer(user: User) -> None:
    """Each has ports and a step of its own; the balancer's address answers, and goes when the run does."""
    run = user.submit(small("pair", replicas=2, balancer="haproxy", resources={"nodes": 1, "time": "00:05:00"}))
    run.wait_ready()
    endpoint = json.loads((run.job / "endpoint.0.json").read_text())
    urls = {one["url"] for one in endpoint["instances"]}
    assert len({url.rpartition(":")[0] for url in urls}) == 1
    assert len(urls | {endpoint["balancer"]["url"]}) == 3
    texts = {ask(url, "same?")["text_output"] for url in (*urls, endpoint["balancer"]["url"])}
    assert len(texts) == 1
    told = " ".join(run.cli("status").stdout.split())
    assert f"{endpoint['balancer']['url']} model tensorrt_llm (haproxy before 2 instances)" in told
    run.cli("cancel")
    assert run.wait_ended()["state"] == "COMPLETED"
    # What it had is gone from every node: the fixture looks for processes and files that stay.


def test_the_openai_front_end_is_started_in_place_of_the_leaders_server(user: User) -> None:
    """It gets its options and ports, workers stay tritonservers, and the endpoint names its address."""
    program = user.folder / "front end.py"
    program.write_text(FRONT_END)
    program.chmod(0o644)
    triton = {"openai_frontend": str(program), "tokenizer": "/models/tiny"}
    spec = small("openai", frontend="openai", triton=triton, resources={"nodes": 2, "time": "00:05:00"})
    run = user.submit(spec)
    (one,) = run.wait_ready()["instances"]
    assert one["openai"] == one["metrics"].replace("/metrics", "/v1")
    assert ask(one["url"], "hello")["text_output"]
    log = (run.attempt / "rank-0.log").read_text()
    assert "front end tensorrtllm /models/tiny" in log
    assert one["openai"] in run.cli("status").stdout
    run.cli("cancel")
    assert run.wait_ended()["state"] == "COMPLETED"


def test_a_front_end_that_is_not_there_is_told(user: User) -> None:
    """The rank's log and the cause name the key that says where it is."""
    run = user.submit(small("missing", frontend="openai", resources={"nodes": 1, "time": "00:05:00"}))
    assert run.wait_ended()["state"] == "FAILED"
    wait_for("the cause is told", lambda: "set triton.openai_frontend in the spec" in run.output())
