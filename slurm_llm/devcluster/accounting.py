"""Slurm's accounting: a MariaDB of its own, slurmdbd, and the ordinary user's association."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from slurm_llm.devcluster.config import ClusterSpec, Machine, Paths, slurmdbd_conf
from slurm_llm.devcluster.daemons import SEARCH_PATH, Daemon, Daemons, listens
from slurm_llm.devcluster.shape import Quality
from slurm_llm.errors import SetupError, SlurmError
from slurm_llm.process import run

NORMAL = "normal"
MARIADB, SLURMDBD = "mariadbd", "slurmdbd"


def ensure_accounting(spec: ClusterSpec, machine: Machine, daemons: Daemons) -> None:
    """Start the database and slurmdbd unless they run, and register the cluster, its accounts and its user."""
    paths = Paths(spec.state)
    password = _password(paths)
    write_private(paths.slurmdbd_conf, slurmdbd_conf(spec, machine, password), "slurm")
    if daemons.running(MARIADB) is None:
        _install_database(paths)
        _start_database(paths, machine, daemons, password)
    if daemons.running(SLURMDBD) is None:
        env = {"SLURM_CONF": str(paths.slurmdbd_conf)}
        dbd = daemons.start(Daemon(SLURMDBD, ("slurmdbd", "-D")), env)
        daemons.wait(SLURMDBD, lambda: listens(dbd, machine.dbd_port))
    _register(spec, paths)


def _password(paths: Paths) -> str:
    path = paths.etc / "storage.password"
    if not path.exists():
        write_private(path, secrets.token_hex(16), "root")
    return path.read_text()


def _install_database(paths: Paths) -> None:
    if paths.mariadb.exists():
        return
    # Made beside and renamed, so that half a database is never taken for a whole one.
    fresh = paths.mariadb.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    shutil.chown(fresh, "mysql", "mysql")
    argv = ("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={fresh}", "--skip-test-db")
    done = run(argv, env={**os.environ, "PATH": SEARCH_PATH}, timeout_s=300)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise SetupError(f"mariadb-install-db: failed\n{tail}")
    fresh.rename(paths.mariadb)


def _start_database(paths: Paths, machine: Machine, daemons: Daemons, password: str) -> None:
    setup = paths.mariadb / "slurm.sql"
    statements = (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;",
        f"CREATE OR REPLACE USER 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';",
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';",
    )
    write_private(setup, "\n".join(statements) + "\n", "mysql")
    argv = (
        "mariadbd",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={paths.mariadb}",
        f"--socket={paths.mariadb}/mariadb.socket",
        f"--pid-file={paths.mariadb}/mariadbd.pid",
        "--bind-address=127.0.0.1",
        f"--port={machine.sql_port}",
        "--skip-name-resolve",
        f"--init-file={setup}",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=32M",
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-lock-wait-timeout=900",
    )
    pid = daemons.start(Daemon(MARIADB, argv))
    daemons.wait(MARIADB, lambda: listens(pid, machine.sql_port))


def _register(spec: ClusterSpec, paths: Paths) -> None:
    """Add cluster, QOS, accounts and user, or change them; root is registered by Slurm itself."""
    shape = spec.shape
    cluster = f"cluster={shape.name}"
    # An earlier shape may have given limits to the QOS that jobs have who name none.
    plain = () if spec.own_shape is None or NORMAL in {one.name for one in shape.qualities} else (Quality(NORMAL),)
    qualities = (*plain, *shape.qualities)
    _sacctmgr(paths, "add", "cluster", shape.name)
    for quality in qualities:
        _sacctmgr(paths, "add", "qos", quality.name)
        # Of an earlier cluster of this database the QOS of that name may have other limits; -1 takes one away.
        limits = (f"MaxWall={quality.max_time or -1}", f"MaxTRESPerJob=node={quality.max_nodes or -1}")
        _sacctmgr(paths, "modify", "qos", quality.name, "set", *limits, "Flags=DenyOnLimit")
    for account in shape.accounts:
        _sacctmgr(paths, "add", "account", account, cluster, f"description={account}", "organization=slurm_llm")
        _sacctmgr(paths, "add", "user", spec.user, f"account={account}", cluster)
    own = dict.fromkeys((NORMAL, *(quality.name for quality in qualities)))
    _sacctmgr(paths, "modify", "user", "where", f"name={spec.user}", cluster, "set", f"qos={','.join(own)}")


def _sacctmgr(paths: Paths, *words: str) -> None:
    """Run sacctmgr; what exists already is no failure."""
    env = {"PATH": SEARCH_PATH, "LC_ALL": "C", "SLURM_CONF": str(paths.slurm_conf)}
    done = run(["sacctmgr", "--immediate", "--noheader", "--parsable2", *words], env=env)
    told = done.stdout + done.stderr
    if done.returncode and not any(text in told for text in ("already exist", "Nothing new added", "Nothing modified")):
        raise SlurmError(
            f"sacctmgr {' '.join(words)}",
            done.argv,
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
        )


def write_private(path: Path, text: str, owner: str) -> None:
    """Write a file that only its owner can read, never readable by others in between."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(text)
    shutil.chown(fresh, owner, owner)
    fresh.rename(path)
