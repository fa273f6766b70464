#!/bin/bash
# One real GPU: a one-node Slurm with gres/gpu on the real devices, the package's own jobs on it, and checks of them.
# usage: one_gpu.sh BUNDLE.tar.xz OUT [PART...]   (as root on a machine with NVIDIA GPUs, Python 3.12 with PyTorch, mpi4py and
# transformers, and Open MPI; BUNDLE as fetch.sh makes it). Prints a row for each check; logs go to OUT.
set -euo pipefail
bundle=${1:?usage: one_gpu.sh BUNDLE.tar.xz OUT} out=${2:?usage: one_gpu.sh BUNDLE.tar.xz OUT}
source=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
base=/opt/one-gpu
user=gpuuser
python=$(command -v "${PYTHON:-python3}")
host=$(hostname -s)
gpus=$(nvidia-smi -L | wc -l)
mkdir -p "$out" "$base"
umask 022

echo "== unpack"
tar -C "$base" -xJf "$bundle"
chmod 755 "$base"
mkdir -p "$base/src" && cp -a "$source"/{slurm_llm,job_templates,site_configs,benchmarks,pyproject.toml} "$base/src/"
# numpy 1 stands before the machine's own, which PyTorch does without here.
"$python" -m venv --without-pip "$base/venv"
printf '%s\n' "$base/site" "$base/src" "$("$python" -c 'import torch; print(torch.__path__[0].rpartition("/")[0])')" \
    >"$base/venv/lib/python3.12/site-packages/one-gpu.pth"
ln -sfn "$base/venv/bin/python3" "$base/venv/bin/python"
"$base/venv/bin/python" -c 'import numpy, torch, mpi4py, pydantic; print("numpy", numpy.__version__, "torch", torch.__version__)'

echo "== Slurm"
id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
getent hosts "$host" >/dev/null || echo "127.0.0.1 $host" >>/etc/hosts
# PMIx opens the name that is compiled into Slurm's plugin; slurmd starts slurmstepd from /usr/sbin.
mkdir -p /usr/lib/x86_64-linux-gnu/pmix2/lib
ln -sfn "$base/slurm/lib/libpmix.so.2" /usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so
for program in slurmctld slurmd slurmstepd; do ln -sfn "$base/slurm/bin/$program" "/usr/sbin/$program"; done
mkdir -p "$base"/{etc,state,spool,log,munge}
chmod 700 "$base/munge" && chmod 755 "$base/log"
head -c 1024 /dev/urandom >"$base/munge/munge.key" && chmod 400 "$base/munge/munge.key"
# munged insists on folders that nobody else may write to, and clients must reach its socket.
chmod 711 "$base/munge"
devices=0
((gpus == 1)) || devices="[0-$((gpus - 1))]"
cat >"$base/etc/gres.conf" <<EOF
AutoDetect=off
NodeName=$host Name=gpu File=/dev/nvidia$devices
EOF
echo "CgroupPlugin=cgroup/v1" >"$base/etc/cgroup.conf"
cat >"$base/etc/slurm.conf" <<EOF
ClusterName=onegpu
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$base/munge/munge.socket
PluginDir=$base/slurm/plugins
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/spool
SlurmctldPidFile=$base/state/slurmctld.pid
SlurmdPidFile=$base/spool/slurmd.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdLogFile=$base/log/slurmd.log
MpiDefault=none
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=10
SchedulerParameters=sched_interval=2,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=16 Gres=gpu:$gpus State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
# The daemons alone find Debian's libraries: a job that inherited them would load Debian's PMIx into Open MPI.
daemon=(env "LD_LIBRARY_PATH=$base/slurm/lib:$base/slurm/plugins" "SLURM_CONF=$base/etc/slurm.conf"
    "PMIX_MCA_mca_base_component_path=$base/slurm/pmix")
"${daemon[@]}" "$base/slurm/bin/munged" --force --key-file "$base/munge/munge.key" --socket "$base/munge/munge.socket" \
    --pid-file "$base/munge/munged.pid" --log-file "$base/munge/munged.log" --seed-file "$base/munge/munged.seed"
"${daemon[@]}" "$base/slurm/bin/slurmctld"
"${daemon[@]}" "$base/slurm/bin/slurmd" -N "$host"
# Commands of users need these two folders only.
mkdir -p "$base/client" && cp -a "$base"/slurm/plugins/libslurmfull.so "$base"/slurm/lib/libmunge.so* "$base/client/"
for program in sbatch srun scancel squeue sinfo scontrol sacct; do
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$base/client" "$base/slurm/bin/$program" >"$base/venv/bin/$program"
    chmod 755 "$base/venv/bin/$program"
done
# shellcheck disable=SC2317  # the trap calls it
finish() {
    for file in "$base/spool/slurmd.pid" "$base/state/slurmctld.pid" "$base/munge/munged.pid"; do
        [[ ! -s $file ]] || kill "$(cat "$file")" 2>/dev/null || true
    done
    cp -a "$base/log" "$out/slurm-log" 2>/dev/null || true
}
trap finish EXIT
export SLURM_CONF="$base/etc/slurm.conf"
for _ in $(seq 40); do
    [[ $("$base/venv/bin/sinfo" -h -o %t 2>/dev/null) != idle ]] || break
    sleep 0.5
done
"$base/venv/bin/sinfo" -N -o '%N %t %G'

echo "== checks"
status=0
"$base/venv/bin/python" "$base/src/benchmarks/gpu/one_gpu.py" --base "$base" --user "$user" --out "$out" "${@:3}" || status=$?
exit "$status"
