#!/bin/bash
# Enters the container of demo: shifter.
# usage: enter.sh COMMAND [ARGUMENT...]   (job.sub puts it before a command of srun: it runs on the node, once a task)

# shellcheck disable=SC2016,SC2054  # a $ in single quotes and a comma are meant as they stand
set -u
program=shifter
node=${SLURMD_NODENAME:-$HOSTNAME}

fail() {
    echo "slurm_llm: node $node: $2" >&2
    exit "$1"
}
command -v "$program" >/dev/null ||
    fail 127 "there is no $program: load its module (modules.load), or set container.program in the site profile"
options=(
    --workdir=/runs/demo
)

while IFS= read -r name; do
    case $name in
        HF_HOME | NCCL_SOCKET_IFNAME | GLOO_SOCKET_IFNAME | MPICH_GPU_SUPPORT_ENABLED)
            [[ -z ${!name-} ]] || options+=(--env="$name=${!name}")
            ;;
    esac
done < <(compgen -e)

exec "$program" "${options[@]}" "$@"
