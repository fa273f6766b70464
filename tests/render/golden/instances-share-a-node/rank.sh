#!/bin/bash
# Starts one rank of demo, in the container where there is one.
# usage: rank.sh INSTANCE FIRST_RANK   (job.sub calls it through srun, one task a rank)

# shellcheck disable=SC2016  # a $ in single quotes is meant as it stands
set -u
umask 077
instance=$1
task=$SLURM_PROCID
rank=$(($2 + task))
node=${SLURMD_NODENAME:-$HOSTNAME}
exec >>"$LLMRUN_ATTEMPT/rank-$rank.log" 2>&1

# One JSON line an event; the names of GPUs hold nothing that JSON would need escaped.
event() {
    local now=${EPOCHREALTIME:-}
    [[ -n $now ]] || now=$(date +%s.%N)
    # bash writes the decimal sign of the user's language.
    printf '\n{"t":%s,"kind":"%s","rank":%d,"node":"%s"%s}' "${now/[!0-9]/.}" "$1" "$rank" "$node" "${2:-}" \
        >>"$LLMRUN_ATTEMPT/journal/rank-$rank.jsonl"
}

refuse() {
    echo "slurm_llm: $2"
    event exit ",\"code\":$1"
    exit "$1"
}

gpus=${CUDA_VISIBLE_DEVICES-${ROCR_VISIBLE_DEVICES-${ZE_AFFINITY_MASK-}}}
event start ",\"gpus\":\"${gpus//[^A-Za-z0-9,.:\/_-]/}\""
printf '%(%Y-%m-%d %H:%M:%S)T slurm_llm: rank %d of instance %d on node %s, GPUs "%s"\n' -1 "$rank" "$instance" "$node" "$gpus"

# Here, where the rank runs, once more: an image, a node or the step may have set its own.
unset I_MPI_PMI_LIBRARY
export NCCL_DEBUG=WARN

# A server whose open files are all taken by connections accepts no further one.
files=$(ulimit -S -n)
[[ $files == unlimited ]] || ((files >= 65536)) || ulimit -S -n 65536 2>/dev/null || ulimit -S -n hard
# Triton's Python backend hands the repository's path to a shell: it only ever sees a plain, node-local one.
# TMPDIR is one folder for all ranks of a node: MPI and the backend put their files there, the agent removes it.
base=/tmp/llmrun-"$LLMRUN_TAG"
place="$base/$rank"
mkdir -p "$place" && [[ -O $base && ! -L $base ]] || exit 73
ln -sfn "$LLMRUN_RUN/model_repository" "$place/repository" || exit 73
export TMPDIR="${TMPDIR-$base}"
# Slurm sets /tmp where nobody has chosen a folder, and vLLM leaves its sockets there.
[[ -d $TMPDIR && $TMPDIR != /tmp ]] || export TMPDIR="$base"

# A prefix of its own for every job, attempt and rank: servers that share /dev/shm and a prefix collide before
# Triton 24.04, and the leftovers of a killed one are told apart from its neighbours' by it.
prefix="llm${LLMRUN_TAG%.*}a${LLMRUN_TAG#*.}r${rank}_"
# Open MPI's shared memory bears the same mark, so that what a killed rank leaves is known by name.
if mkdir -p "/dev/shm/${prefix}mpi" 2>/dev/null && [[ -O /dev/shm/${prefix}mpi && ! -L /dev/shm/${prefix}mpi ]]; then
    export OMPI_MCA_btl_vader_backing_directory="${OMPI_MCA_btl_vader_backing_directory-/dev/shm/${prefix}mpi}"
    export OMPI_MCA_btl_sm_backing_directory="${OMPI_MCA_btl_sm_backing_directory-/dev/shm/${prefix}mpi}"
fi

for home in '/apps/triton server' /opt/tritonserver "$LLMRUN_RUN/triton"; do
    [[ -x $home/bin/tritonserver ]] && break
done
if [[ ! -x $home/bin/tritonserver ]]; then
    refuse 127 'no bin/tritonserver in /apps/triton server, /opt/tritonserver nor in the run directory: set triton.server in the site profile'
fi
# Triton's Python stub takes the first python3 on PATH, and reads no PYTHONPATH.
PATH=/usr/bin:"$PATH"
unset PYTHONPATH PYTHONHOME
if [[ $home != /opt/tritonserver ]]; then
    # The backend's path reaches a shell too.
    ln -sfn "$home" "$place/triton" && home="$place/triton"
    export LD_LIBRARY_PATH="$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
command=("$home/bin/tritonserver" --model-repository="$place/repository")
[[ $home == /opt/tritonserver ]] || command+=(--backend-directory="$home/backends")
command+=(--backend-config="python,shm-region-prefix-name=$prefix" --exit-timeout-secs=25)
command+=(--disable-auto-complete-config)

if ((task == 0)); then
    # The leader alone serves. Its ports are drawn on its own node, now, before anything heavy is loaded.
    role=leader
    if ! ports=$(/usr/bin/python3 -I "$LLMRUN_RUN/agent" ports 20000 29999 \
        $((SLURM_JOB_ID * 4 + instance)) - - -); then
        event exit ',"code":98'
        exit 98
    fi
    read -r http grpc metrics <<<"$ports"
    # The OpenAI-compatible front end holds Triton in its own process, and serves Triton's protocols besides.
    frontend=/opt/tritonserver/python/openai/openai_frontend/main.py
    [[ -r $frontend ]] || refuse 127 "no OpenAI-compatible front end at $frontend: set triton.openai_frontend in the spec"
    command=(python3 "$frontend" --model-repository="$place/repository" --enable-kserve-frontends)
    command+=(--backend=tensorrtllm)
    command+=(--tokenizer=org/model)
    command+=(--kserve-http-port="$http" --kserve-grpc-port="$grpc" --openai-port="$metrics")
else
    # A worker never serves: no ports, and only the engine's own model.
    role=worker
    command+=(--allow-http=false --allow-grpc=false --allow-metrics=false)
    command+=(--model-control-mode=explicit)
    command+=(--load-model=tensorrt_llm)
fi

# A signal interrupts `wait`: go on until the process is really gone, then ask once more for its own status.
# 127: bash has forgotten the process; -1: bash 5.2 after a trap.
await() {
    while :; do
        wait "$1"
        code=$?
        kill -0 "$1" 2>/dev/null || break
    done
    if ((code > 128)); then
        wait "$1" 2>/dev/null
        local again=$?
        ((again < 0 || again == 127)) || code=$again
    fi
}

# The engine gets a process group of its own: what it leaves behind when it ends is ended with the group.
# A signal meant for the engine reaches it directly; here it only must not end the watch.
trap : TERM INT USR1 USR2
set -m
LLMRUN_RANK=$rank LLMRUN_ROLE=$role LLMRUN_NODE=$node "${command[@]}" &
engine=$!
set +m
await "$engine" 2>/dev/null
printf '%(%Y-%m-%d %H:%M:%S)T slurm_llm: rank %d: the engine ended with exit code %d\n' -1 "$rank" "$code"
event exit ",\"code\":$code"
kill -KILL -- "-$engine" 2>/dev/null
rm -rf "$place"
rm -rf "/dev/shm/$prefix"*
exit "$code"
