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
set +u
# shellcheck disable=SC1090,SC1091
. '/opt/nccl env.sh' || refuse 1 "cannot source "'/opt/nccl env.sh'
set -u
export HF_HOME='/my scratch/hf'
export NCCL_SOCKET_IFNAME=hsn0
export GLOO_SOCKET_IFNAME=hsn0
export http_proxy=http://proxy:3128
export HTTP_PROXY=http://proxy:3128
export no_proxy=localhost,.local
export NO_PROXY=localhost,.local
export A='b c'
[[ ${LD_LIBRARY_PATH-}: == '/a b:/c':* ]] || export LD_LIBRARY_PATH='/a b:/c'"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
ulimit -S -l unlimited || echo "slurm_llm: warning: ulimit -l unlimited is not possible here, it stays $(ulimit -S -l)"
ulimit -S -n 65536 || echo "slurm_llm: warning: ulimit -n 65536 is not possible here, it stays $(ulimit -S -n)"

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

for home in /opt/tritonserver "$LLMRUN_RUN/triton"; do
    [[ -x $home/bin/tritonserver ]] && break
done
if [[ ! -x $home/bin/tritonserver ]]; then
    refuse 127 'no bin/tritonserver in /opt/tritonserver nor in the run directory: set triton.server in the site profile'
fi

echo step

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
        $((SLURM_JOB_ID * 1 + instance)) - - -); then
        event exit ',"code":98'
        exit 98
    fi
    read -r http grpc metrics <<<"$ports"
    command+=(--http-port="$http" --grpc-port="$grpc" --metrics-port="$metrics")
    # Releases before 23.11 know one of these options, or none. What the program's own text names, it knows; where
    # it is a script, its help says so.
    groups=()
    # Nobody keeps this value: what it is asked for is refused to everybody.
    secret=$(od -An -vN24 -tx1 /dev/urandom | tr -d ' \n')
    ((${#secret} == 48)) || refuse 78 "no key for model-repository,shared-memory,trace,logging"
    groups+=("model-repository,shared-memory,trace,logging:slurm-llm-closed=$secret")
    for option in --http-restricted-api --grpc-restricted-protocol; do
        if grep -qe "${option#--}" "$home/bin/tritonserver" ||
            timeout 20 "$home/bin/tritonserver" --help </dev/null 2>&1 | grep -qe "${option#--}"; then
            command+=("${groups[@]/#/$option=}")
        else
            echo "slurm_llm: this tritonserver has no $option: it closes nothing"
        fi
    done
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
