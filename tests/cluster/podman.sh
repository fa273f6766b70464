#!/bin/bash
# Makes Podman-HPC with rootless podman usable on the devcluster's nodes, for one test, and takes all of it away again.
# usage: podman.sh install FOLDER           as root, once a machine: Debian's podman, podman-hpc in FOLDER
#        podman.sh load FOLDER USER IMAGE   as root, in a node's namespaces: an image folder becomes $NAME for USER
#        podman.sh unload USER              as root, in a node's namespaces
#
# FOLDER/podman-hpc is the program for the site's profile. A node of the devcluster lacks what any real one has: control
# groups, a /dev/fuse for everybody, /dev/mqueue. podman keeps its storage in the node's own /tmp.

set -euo pipefail
umask 022
readonly NAME=localhost/slurm-llm-tests:1 VERSION=1.2.2
readonly PACKAGES=(podman runc uidmap fuse-overlayfs python3-venv)

install_all() {
    local folder=$1 name missing=()
    for name in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
    done
    if ((${#missing[@]})); then
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
    fi
    [[ ! -x $folder/podman-hpc ]] || return 0
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet "podman-hpc==$VERSION" >&2
    mkdir -p "$folder/modules" "$folder/venv/share/containers/oci/hooks.d"
    # crun refuses a machine with both kinds of control groups.
    printf '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >"$folder/containers.conf"
    cat >"$folder/program" <<PROGRAM
#!/bin/bash
export PATH="$folder/venv/bin:\$PATH" CONTAINERS_CONF="$folder/containers.conf" STORAGE_DRIVER=overlay
export SQUASH_DIR="/tmp/\${UID}_squash" PODMANHPC_MODULES_DIR="$folder/modules"
exec podman-hpc "\$@"
PROGRAM
    chmod 755 "$folder/program"
    mv "$folder/program" "$folder/podman-hpc"
}

load() {
    local folder=$1 user=$2 image=$3 kind
    mount -t tmpfs tmpfs /sys/fs/cgroup
    for kind in cpu cpuacct cpuset memory devices freezer blkio pids none,name=systemd; do
        mkdir "/sys/fs/cgroup/${kind#*=}"
        mount -t cgroup -o "$kind" cgroup "/sys/fs/cgroup/${kind#*=}"
    done
    mkdir -p /dev/mqueue
    mknod -m 666 /tmp/fuse c 10 229
    mount --bind /tmp/fuse /dev/fuse
    tar -C "$image" --exclude=./dev --exclude=./proc --exclude=./sys -c . |
        runuser -u "$user" -- env -C / USER="$user" "$folder/podman-hpc" import - "$NAME" >&2
    echo "$NAME"
}

unload() {
    local user=$1 id file
    id=$(id -u "$user")
    # podman keeps a process that holds its user namespace.
    while IFS= read -r file; do
        kill -KILL "$(<"$file")" 2>/dev/null || true
    done < <(find /tmp -name pause.pid -user "$user")
    rm -rf "/tmp/${id}_hpc" "/tmp/${id}_squash" "/tmp/containers-user-$id" "/tmp/podman-run-$id" "/dev/shm/libpod_rootless_lock_$id"
    ! mountpoint -q /dev/fuse || umount /dev/fuse
    rm -f /tmp/fuse
    umount -R /sys/fs/cgroup
    rmdir /dev/mqueue 2>/dev/null || true
}

case $1 in
    install) install_all "$2" ;;
    load) load "$2" "$3" "$4" ;;
    unload) unload "$2" ;;
    *) exit 2 ;;
esac
