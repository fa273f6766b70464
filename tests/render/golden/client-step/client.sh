#!/bin/bash
# The client of demo: the job's head starts it on the first node once the server is ready, and the
# job ends with it. The server's addresses are in SLURM_LLM_URL and its like.

# shellcheck disable=SC2016  # a $ in single quotes is meant as it stands
[[ ${1-} == started ]] || exec srun --overlap --mpi=none --nodes=1 --ntasks=1 --relative=0 --cpus-per-task=2 --gres=none --unbuffered --export=ALL \
    bash "$0" started
export X='a b'
exec bash -c 'it'"'"'s $X'
