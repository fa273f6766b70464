#!/bin/bash
# Enters the container of demo: apptainer.
# usage: enter.sh COMMAND [ARGUMENT...]   (job.sub puts it before a command of srun: it runs on the node, once a task)

# shellcheck disable=SC2016,SC2054  # a $ in single quotes and a comma are meant as they stand
set -u
program=apptainer
image=/images/tritonserver.sif
node=${SLURMD_NODENAME:-$HOSTNAME}

fail() {
    echo "slurm_llm: node $node: $2" >&2
    exit "$1"
}
command -v "$program" >/dev/null ||
    fail 127 "there is no $program: load its module (modules.load), or set container.program in the site profile"
[[ -e $image ]] || fail 66 "there is no image $image"
sources=(/runs/demo)
for source in "${sources[@]}"; do
    [[ -e $source ]] || fail 66 "$source is to be mounted into the container, and is not there"
done
options=(
    exec
    --nv
    --pwd=/runs/demo
    --bind=/runs/demo:/runs/demo
)

# Folders of the node that are in the container at their own place.
shown=(/tmp /var/tmp /dev /proc /sys /runs/demo)
is_shown() {
    local folder
    for folder in "${shown[@]}"; do
        [[ $1/ == "$folder"/* ]] && return
    done
    return 1
}

# Folders in which the MPI library meets Slurm's daemon.
meeting="spmix_appdir_${UID}_${SLURM_JOB_ID-}.${SLURM_STEP_ID-}"
for folder in "${PMIX_SERVER_TMPDIR-}" "${SLURM_PMIX_TMPDIR:-/tmp}/$meeting" "${PALS_SPOOL_DIR-}"; do
    folder=${folder%/}
    if [[ $folder == /* && $folder != *[:[:space:]]* && -d $folder ]] && ! is_shown "$folder"; then
        options+=(--bind="$folder")
        shown+=("$folder")
    fi
done

while IFS= read -r name; do
    case $name in
        OMPI_MCA_coll_hcoll_enable)
            # A shell in the container reads the value as if in double quotes, and quotes only the quotes.
            value=${!name-}
            value=${value//\\/\\\\}
            value=${value//\$/\\\$}
            value=${value//\`/\\\`}
            export APPTAINERENV_"$name=$value"
            ;;
    esac
done < <(compgen -e)

exec "$program" "${options[@]}" "$image" "$@"
