#!/bin/bash
# Slurm's Epilog (slurm.conf), or one of several: removes what a job of slurm_llm left on this node when it was killed
# before its own clean-up: its shared memory, its folder on local disk, and its copies of weights. Other jobs' and other
# programs' files stay.
#
# usage: epilog.sh [FOLDER...]     FOLDER: `storage.local` of site profiles, where it is another one than below
#
# It runs as root on every node at the end of every job and never fails, for Slurm drains a node whose epilog does.
# What is removed has the job's number in its name, and is removed by the job's user, so that no name and no link that a
# user could make leads to anything else.

folders=(/tmp)

export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
trap 'exit 0' EXIT
cd / || exit 0

job=${SLURM_JOB_ID-} uid=${SLURM_JOB_UID-} gid=${SLURM_JOB_GID-65534}
[[ $job =~ ^[0-9]+$ && $uid =~ ^[1-9][0-9]*$ && $gid =~ ^[0-9]+$ ]] || exit 0

as_user() {
    timeout -k 1 20 setpriv --reuid="$uid" --regid="$gid" --clear-groups -- "$@" </dev/null >/dev/null 2>&1
}

# find looks at names and owners without following links; rm goes into no link and no other file system.
cd /dev/shm 2>/dev/null &&
    as_user find . -maxdepth 1 -uid "$uid" -regextype posix-extended -regex "\./llm${job}a[0-9]+r[0-9]+_[^/]*" \
        -exec rm -rf --one-file-system -- {} +
for folder in "${folders[@]}" "$@"; do
    cd "$folder" 2>/dev/null || continue
    as_user find . -maxdepth 1 -type d -uid "$uid" -regextype posix-extended -regex "\./llmrun-${job}\.[0-9]+" \
        -exec rm -rf --one-file-system -- {} +
    # Copies of weights: the job reads them no more, and those go that nobody keeps and no other job reads.
    # shellcheck disable=SC2016  # the inner shell is to expand them
    as_user env job="$job" uid="$uid" bash -c '
        cd "llmstage-$uid" && [[ -O . ]] || exit
        for use in *.use-"$job"; do
            name=${use%.use-*}
            [[ -f $use && -f $name.lock ]] || continue
            exec 9<>"$name.lock"
            flock -n 9 || continue
            rm -f -- "$use"
            others=("$name".use-*)
            [[ -e ${others[0]} ]] || grep -q "\"keep\": true" "$name.json" 2>/dev/null ||
                rm -rf --one-file-system -- "$name" "$name.part" "$name.json" "$name.lock"
        done'
done

# Triton's Python backend leaves empty folders in /tmp that bear no number: a user without a process here needs none.
# A young one may be of a job that starts just now.
if ! pgrep -U "$uid" >/dev/null 2>&1; then
    cd /tmp && as_user find . -maxdepth 1 -type d -uid "$uid" -name 'python_env_*' -empty -mmin +1 -delete
fi
exit 0
