"""What users reach of an attempt: the leaders' addresses, a load balancer before them, and the file that says so."""

import json
import os
import time
from typing import Any, Dict, List, Optional

from . import balancer, interfaces, journal, keys, ports, probe, processes

SETTLE_S = 0.3
"""Slurm ends the balancer with all else: whoever asked for the end is to be heard first."""


class Front:
    """The front of one attempt; `open` is called once every instance has answered, and `value` is the endpoint file."""

    def __init__(self, plan: Dict[str, Any], attempt_dir: str) -> None:
        self.plan = plan
        self.attempt_dir = attempt_dir
        self.missed_at: Optional[float] = None
        self.openai = plan.get("frontend") is not None
        self.value: Dict[str, Any] = {}
        self.exporter = ""
        """Address of the run's own metrics page."""
        self.asked: Optional[Dict[str, Any]] = plan.get("balancer")
        self.balancer = None if self.asked is None else balancer.Balancer(str(self.asked["program"]), attempt_dir)

    def lacks(self) -> str:
        """Return what this node lacks for it, before anything is started; empty when nothing."""
        return "" if self.balancer is None else self.balancer.lacks()

    def open(self, leaders: List[probe.Leader]) -> str:
        """Start the balancer where one is asked for and write the endpoint file; return what went wrong."""
        try:
            if self.balancer is not None and self.asked is not None:
                self.balancer.start(leaders, self._draw(self.asked))
        except (OSError, ValueError) as error:
            return "the load balancer cannot be started: %s" % error
        attempt = self.attempt_dir.rpartition("-")[2]
        path = os.path.join(os.path.dirname(self.attempt_dir), "endpoint.%s.json" % attempt)
        self.value = self._value(int(attempt), leaders)
        try:
            journal.write_once(path, json.dumps(self.value, indent=1) + "\n")
        except OSError as error:
            return "cannot write %s: %s" % (path, error)
        return ""

    def ended(self) -> str:
        """Return one sentence when the balancer has ended by itself."""
        status = None if self.balancer is None else self.balancer.ended()
        if self.balancer is None or status is None:
            return ""
        self.missed_at = self.missed_at or time.monotonic()
        if time.monotonic() - self.missed_at < SETTLE_S:
            return ""
        log = os.path.join(self.attempt_dir, "balancer.log")
        return "the load balancer (%s) ended with status %d: see %s" % (self.balancer.program, status, log)

    def close(self) -> None:
        """End the balancer."""
        if self.balancer is not None:
            self.balancer.stop()

    def _draw(self, asked: Dict[str, Any]) -> balancer.Ports:
        """Draw ports on this node; instances draw from their own places in the range, this from one after theirs."""
        given, count = self.plan["ports"], len(self.plan["instances"])
        seed = int(os.environ.get("SLURM_JOB_ID", "0")) * (count + 1) + count
        http, grpc, openai = ports.draw(given["low"], given["high"], seed, [int(asked["port"] or 0), 0, 0])
        return balancer.Ports(http, grpc, openai if self.openai else 0, bind_address(self.plan))

    def _common(self) -> Dict[str, Any]:
        """Return what every address has: where the key lies that inference needs, if it needs one."""
        path = keys.path_of(self.attempt_dir)
        return {"key_file": path} if os.path.exists(path) else {}

    def _value(self, attempt: int, leaders: List[probe.Leader]) -> Dict[str, Any]:
        value: Dict[str, Any] = {
            "attempt": attempt,
            "job_id": os.environ.get("SLURM_JOB_ID", ""),
            "model": self.plan["server"]["model_name"],
            "ready": round(time.time(), 3),
            "instances": [dict(_instance(leader, self.openai), **self._common()) for leader in leaders],
        }
        if self.exporter:
            value["exporter"] = self.exporter
        if self.balancer is not None and self.balancer.ports is not None:
            own = self.balancer.ports
            host = own.address or processes.node_name()
            value["balancer"] = {
                "program": self.balancer.program,
                "url": "http://%s:%d" % (host, own.http),
                "grpc": "%s:%d" % (host, own.grpc),
            }
            value["balancer"].update(self._common())
            if self.openai:
                value["balancer"]["openai"] = "http://%s:%d/v1" % (host, own.openai)
        return value


def bind_address(plan: Dict[str, Any]) -> str:
    """Return the address of this node that the job's own servers listen on, as the site wants it; empty for all.

    Raises:
        ValueError: the site's interface has no IPv4 address here.
    """
    bind = plan.get("access", {}).get("bind", "all")
    if bind == "loopback":
        return "127.0.0.1"
    address = interfaces.ipv4(str(plan["interface"])) if bind == "interface" else ""
    if bind == "interface" and not address:
        raise ValueError("interface %s has no IPv4 address here (network.interface)" % plan["interface"])
    return address


def _instance(leader: probe.Leader, openai: bool) -> Dict[str, Any]:
    value = {
        "instance": leader.instance,
        "url": "http://%s:%d" % (leader.host, leader.http),
        "grpc": "%s:%d" % (leader.host, leader.grpc),
        "metrics": "http://%s:%d/metrics" % (leader.host, leader.metrics),
    }
    if openai:
        # The OpenAI-compatible front end serves both its API and metrics on the third port.
        value["openai"] = "http://%s:%d/v1" % (leader.host, leader.metrics)
    return value
