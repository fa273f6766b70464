#!/usr/bin/env bash
# The main job from beginning to end on the devcluster, as an ordinary user. `make demo` calls it as root with PYTHON set
# to a Python that has the package. A cluster that was up before stays up.
set -euo pipefail

python=${PYTHON:-python3}
state=${DEVCLUSTER_STATE:-/var/lib/slurm_llm/devcluster}
example=$(cd "$(dirname "$0")" && pwd)/demo.yaml

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

step "1. A real Slurm on this machine: four nodes, PMIx, accounting"
was_up=0
"$python" -m slurm_llm devcluster status --state "$state" >/dev/null 2>&1 && was_up=1
"$python" -m slurm_llm devcluster up --state "$state"
user=$("$python" -m slurm_llm devcluster status --state "$state" --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["user"])')
home=$(getent passwd "$user" | cut -d: -f6)
folder="$home/slurm llm demo"
mkdir -p "$folder"
cp "$example" "$folder/demo.yaml"
chown -R "$user" "$folder"

as_user() {
    runuser -u "$user" -- env -C "$folder" HOME="$home" SLURM_CONF="$state/etc/slurm.conf" "$python" -m slurm_llm "$@"
}
finish() {
    status=$?
    [[ $status -eq 0 ]] || as_user cancel >/dev/null 2>&1 || true
    if [[ $was_up -eq 0 ]]; then
        step "The cluster goes down again"
        "$python" -m slurm_llm devcluster down --state "$state" || status=$?
    fi
    exit "$status"
}
trap finish EXIT

step "2. What the spec asks for, and what it becomes"
cat "$folder/demo.yaml"
as_user plan demo.yaml --site devcluster

step "3. Submit, and wait until a generation is answered"
as_user submit demo.yaml --site devcluster --wait

step "4. Every rank's health"
as_user health

step "5. Text from all eight ranks"
as_user generate "Hello from the login node" --max-tokens 40
as_user generate "Hello from the login node" --max-tokens 40 --stream

step "6. The logs, all ranks merged by time"
as_user logs -n 12
as_user status

step "7. Cancel: an orderly stop that leaves nothing behind"
as_user cancel
as_user status
