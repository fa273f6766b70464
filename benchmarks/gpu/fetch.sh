#!/bin/bash
# Packs what `one_gpu.sh` needs besides this checkout: Slurm with PMIx, a trimmed Triton, Python wheels.
# usage: PYTHON=VENV/bin/python fetch.sh BUNDLE.tar.xz   (on Debian 12 with a network, after `make install`, whose Python
# environment VENV is, and one `devcluster up`)
set -euo pipefail
bundle=$(realpath -m "${1:?usage: fetch.sh BUNDLE.tar.xz}")
python=${PYTHON:?the Python of the environment that make install has set up}
libs=/usr/lib/x86_64-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/slurm/{bin,lib,plugins,pmix} "$work/site"

# 1. Slurm's programs and plugins. Behind the names of Debian's alternatives are files that end in -wlm.
for program in /usr/sbin/{munged,slurmctld,slurmd,slurmstepd} /usr/bin/{munge,sbatch,srun,scancel,squeue,sinfo,scontrol,sacct}; do
    cp -L "$program" "$work/slurm/bin/${program##*/}" 2>/dev/null || cp -L "$program-wlm" "$work/slurm/bin/${program##*/}"
done
cp -a "$libs"/slurm-wlm/*.so* "$work/slurm/plugins/"
rm -f "$work"/slurm/plugins/{*mysql*,openapi*,rest_*,*lua*,*cray*}
cp -L "$libs/pmix2/lib/libpmix.so" "$work/slurm/lib/libpmix.so.2"
cp -a "$libs"/pmix2/lib/pmix/*.so "$work/slurm/pmix/"

# 2. What those are linked to, but for the C library, which the other machine has.
find "$work/slurm" -type f -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*|libpmix|libslurmfull)\.so' |
    while read -r library; do cp -L "$library" "$work/slurm/lib/"; done

# 3. Triton of the wheel: the server, its libraries, the Python backend with the stub of the other machine's Python.
package=$("$python" -c 'import importlib.util as u; print(next(iter(u.find_spec("pytriton").submodule_search_locations)))')
server=tritonserver
mkdir -p "$work/site/pytriton/$server/backends"
cp -a "$package/$server/bin" "$work/site/pytriton/$server/"
cp -a "$package/$server/backends/python" "$work/site/pytriton/$server/backends/"
mkdir -p "$work/site/pytriton/$server/python_backend_stubs"
cp -a "$package/$server/python_backend_stubs/3.12" "$work/site/pytriton/$server/python_backend_stubs/"
cp -a "${package%/*}/nvidia_pytriton.libs" "$work/site/"

# 4. Python packages: what ours needs, and a numpy for Triton's stub, which is built against numpy 1.
"$python" -m pip install --quiet --no-compile --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --target "$work/site" click httpx jinja2 pydantic pyyaml rich 'numpy<2'
find "$work/site" -type d \( -name __pycache__ -o -path '*/numpy/*/tests' \) -prune -exec rm -rf {} +

tar -C "$work" -c . | xz -T0 -9 >"$bundle"
ls -l "$bundle"
