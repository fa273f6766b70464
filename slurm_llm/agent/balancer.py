"""One address in front of several instances: HAProxy or nginx on the job's first node, fed by the leaders' own ports.

The head starts it once every instance answers, since ports are drawn in the job, and ends it last.
"""

import os
import shutil
import signal
import subprocess
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import probe
from .ports import free

START_S, STOP_S = 5.0, 3.0
LONGEST = "1h"
"""How long a request may last without a byte: a long generation that is not streamed sends none."""


class Ports(NamedTuple):
    """Where the balancer listens; on all addresses where none is given."""

    http: int
    grpc: int
    openai: int = 0
    address: str = ""


def _kinds(ports: Ports) -> List[Tuple[str, int, Callable[[probe.Leader], int]]]:
    """Return name, own port and the leaders' port of what is balanced; the third port is the OpenAI-compatible one."""
    kinds: List[Tuple[str, int, Callable[[probe.Leader], int]]] = [
        ("http", ports.http, lambda leader: leader.http),
        ("grpc", ports.grpc, lambda leader: leader.grpc),
        ("openai", ports.openai, lambda leader: leader.metrics),
    ]
    return [kind for kind in kinds if kind[1]]


def haproxy(leaders: Sequence[probe.Leader], ports: Ports, _folder: str) -> str:
    """Return HAProxy's configuration: fewest open requests first; an instance that is not ready gets none."""
    rows = ["global", "    maxconn 8192", "    hard-stop-after %ds" % STOP_S, "defaults", "    mode http"]
    rows += ["    timeout connect 5s", "    timeout client " + LONGEST, "    timeout server " + LONGEST]
    # A request that found no connection goes to another instance; one that was sent does not, it may have begun.
    rows += ["    retries 2", "    option redispatch 1", "    retry-on conn-failure"]
    for name, port, of_leader in _kinds(ports):
        form = " proto h2" if name == "grpc" else ""
        own = "%s:%d" % (ports.address or "*", port)
        rows += ["frontend " + name, "    bind " + own + form, "    default_backend to_" + name]
        rows += ["backend to_" + name, "    balance leastconn", "    option httpchk"]
        rows += ["    http-check send meth GET uri /v2/health/ready", "    http-check expect status 200"]
        for leader in leaders:
            check = "check inter 1s fall 2 rise 1 port %d%s" % (leader.http, " check-proto h1" if form else "")
            place = "%s:%d%s" % (leader.host, of_leader(leader), form)
            rows.append("    server instance%d %s %s" % (leader.instance, place, check))
    return "\n".join(rows) + "\n"


def nginx(leaders: Sequence[probe.Leader], ports: Ports, folder: str) -> str:
    """Return nginx's configuration: fewest open requests first; an instance that refused gets none for a second."""
    rows = ["daemon off;", "pid %s/nginx.pid;" % folder, "error_log stderr warn;", "worker_processes 2;"]
    rows += ["events { worker_connections 4096; }", "http {", "    access_log off;", "    client_max_body_size 0;"]
    for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        rows.append("    %s_temp_path %s/nginx-%s;" % (kind, folder, kind))
    for name, port, of_leader in _kinds(ports):
        verb = "grpc" if name == "grpc" else "proxy"
        rows += ["    upstream to_%s {" % name, "        least_conn;"]
        for leader in leaders:
            rows.append("        server %s:%d max_fails=1 fail_timeout=1s;" % (leader.host, of_leader(leader)))
        rows += ["        keepalive 64;", "    }", "    server {"]
        place = "%s:%d" % (ports.address, port) if ports.address else str(port)
        rows.append("        listen %s%s;" % (place, " http2" if verb == "grpc" else ""))
        rows += [
            "        location / {",
            "            %s_pass %s://to_%s;" % (verb, verb.replace("proxy", "http"), name),
        ]
        rows += ["            %s_%s_timeout %s;" % (verb, what, LONGEST) for what in ("read", "send")]
        if verb == "proxy":
            rows += ["            proxy_http_version 1.1;", '            proxy_set_header Connection "";']
            rows += ["            proxy_buffering off;", "            proxy_request_buffering off;"]
        # A request that was sent may have begun: nginx repeats no POST that it has sent.
        rows += ["            %s_next_upstream error timeout;" % verb, "        }", "    }"]
    return "\n".join(rows + ["}"]) + "\n"


FORMS: Dict[str, Callable[[Sequence[probe.Leader], Ports, str], str]] = {"haproxy": haproxy, "nginx": nginx}
ARGUMENTS = {"haproxy": ["-db", "-f"], "nginx": ["-c"]}


class Balancer:
    """The balancer of one attempt; `program` is its name, looked up on PATH and where distributions put daemons."""

    def __init__(self, program: str, folder: str) -> None:
        self.program = program
        self.folder = folder
        self.ports: Optional[Ports] = None
        self._child: "Optional[subprocess.Popen[bytes]]" = None

    def lacks(self) -> str:
        """Return what is missing on this node; empty when nothing is."""
        return (
            ""
            if self._found()
            else "there is no %s on this node: load its module (modules.load), or remove `balancer`" % self.program
        )

    def start(self, leaders: List[probe.Leader], ports: Ports) -> None:
        """Write the configuration and start the program until it listens; its words go to the attempt's `balancer.log`.

        Raises:
            OSError: it cannot be started, it does not listen, or the folder cannot be written.
        """
        place = os.path.join(self.folder, self.program + ".conf")
        with open(place, "w") as stream:
            stream.write(FORMS[self.program](leaders, ports, self.folder))
        with open(os.path.join(self.folder, "balancer.log"), "ab") as log:
            argv = [str(self._found())] + ARGUMENTS[self.program] + [place]
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._child, self.ports = child, ports
        deadline = time.monotonic() + START_S
        while free(ports.http):
            if child.poll() is not None or time.monotonic() > deadline:
                raise OSError("%s does not listen: see %s" % (self.program, log.name))
            time.sleep(0.02)

    def ended(self) -> Optional[int]:
        """Return the program's exit status if it has ended by itself."""
        return None if self._child is None else self._child.poll()

    def stop(self) -> None:
        """End the program, with force after a while."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _found(self) -> Optional[str]:
        folders = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin" + os.pathsep + "/usr/local/sbin"
        return shutil.which(self.program, path=folders)
