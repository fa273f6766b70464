#!/bin/bash
# Builds the container image of the tests: Debian 12 with Open MPI, PMIx and mpi4py, and the Triton of the wheel.
# usage: image.sh PYTHON   (as root; PYTHON has the wheel and slurm_llm) - prints the image's folder
#
# A built image is kept, by the hash of this script, and used again: IMAGES (/var/lib/slurm_llm) says where.
# It is built aside and renamed when it is whole, so an interrupted build leaves nothing that would be used.

set -euo pipefail
umask 022

python=$1
images=${IMAGES:-/var/lib/slurm_llm}
release=bookworm
mirror=${MIRROR:-http://deb.debian.org/debian}
# The stub of Triton's Python backend links to libpython.
packages=python3,libpython3.11,python3-numpy,python3-mpi4py,libopenmpi3,libpmix2

hash=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)
image=$images/image-$hash

mkdir -p "$images"
exec 9>"$images/image.lock"
flock 9
for name in debootstrap charliecloud-runtime; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' && continue
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$name" >&2
done
if [[ ! -d $image ]]; then
    for old in "$images"/image-*; do
        [[ ! -d $old ]] || rm -rf --one-file-system "$old"
    done
    new=$(mktemp -d "$images/image-new.XXXXXX")
    trap 'rm -rf --one-file-system "$new"' EXIT
    chmod 755 "$new"
    debootstrap --variant=minbase --include="$packages" "$release" "$new" "$mirror" >"$images/image.log" 2>&1 || {
        tail -n 20 "$images/image.log" >&2
        exit 1
    }
    # What only an installation needs.
    rm -rf "$new"/var/cache/apt/archives/*.deb "$new"/var/lib/apt/lists/* "$new"/usr/share/{doc,man,locale}/*

    # Where NVIDIA's images have it. The wheel's files lie apart, and the stub is that of the image's Python.
    "$python" - <<'PYTHON' >"$new/links"
from slurm_llm.tritonhome import wheel_links

links = wheel_links((3, 11))
assert links, "the nvidia-pytriton wheel is not installed"
for link, target in links.items():
    print(link, target, sep="\t")
PYTHON
    while IFS=$'\t' read -r link target; do
        mkdir -p "$(dirname "$new/opt/tritonserver/$link")"
        cp -rL "$target" "$new/opt/tritonserver/$link"
    done <"$new/links"
    rm "$new/links"
    # Mount points: ch-run makes none in an image that it only reads.
    mkdir "$new"/mnt/{0..9}
    echo "the image of slurm_llm's tests, $hash" >"$new/etc/slurm_llm-image"
    mv -T "$new" "$image"
    trap - EXIT
fi
echo "$image"
