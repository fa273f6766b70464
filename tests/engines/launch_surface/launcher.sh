#!/bin/bash
# Behaves as trtllm-llmapi-launch is documented to; table.py says what and where that is from.
# usage: launcher.sh EDITION COMMAND...   (new/, old/ and oldest/ hold a trtllm-llmapi-launch of each edition)
edition=$1
shift
here=$(dirname "${BASH_SOURCE[0]}")
rank=${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMI_ID:-0}}}}
export tllm_mpi_size=${SLURM_NTASKS:-${OMPI_COMM_WORLD_SIZE:-1}}
export TLLM_SPAWN_PROXY_PROCESS=1
if ((rank > 0)); then
    exec python3 "$here/node.py" worker
fi
if [[ $edition == new ]]; then
    export TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=${TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR:-ipc://$(mktemp -u)}
else
    TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=tcp://127.0.0.1:$(python3 "$here/node.py" port)
    export TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR
fi
TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
export TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY
(
    for name in $(compgen -e); do
        case $name in
        OMPI_* | PMIX_* | PMI_* | SLURM_* | MPI_* | UCX_* | I_MPI_* | HYDRA_* | KMP_* | MPICH_* | MV2_* | CRAY_*)
            unset "$name"
            ;;
        esac
    done
    if [[ $edition == new ]]; then
        "$@"
    else
        words="$*"
        # shellcheck disable=SC2086  # the old editions split their command again
        $words
    fi
    code=$?
    [[ $edition == oldest ]] || python3 "$here/node.py" stop
    exit "$code"
) &
task=$!
python3 "$here/node.py" leader
leader=$?
if [[ $edition == new ]]; then
    wait "$task"
    code=$?
    ((code == 0)) || exit "$code"
fi
exit "$leader"
