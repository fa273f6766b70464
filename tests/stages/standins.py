"""Programs that keep the argument contract of hf, enroot, trtllm-build and convert_checkpoint.py, and make small files.

`hf` copies from $HUB/<repo>; `enroot import` notes each call beside its product, and waits for the file $GATE.
"""

from __future__ import annotations

from pathlib import Path

HF = r"""#!/bin/bash
[[ $1 == download ]] || exit 2
repo=$2; shift 2
dir=; revision=main
for word; do
    case $word in
        --local-dir=*) dir=${word#*=} ;;
        --revision=*) revision=${word#*=} ;;
        --include=* | --exclude=*) ;;
        *) echo "unknown $word" >&2; exit 2 ;;
    esac
done
echo "token: ${HF_TOKEN:+given}"
[[ -d $HUB/$repo ]] || { echo "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. $repo" >&2; exit 1; }
if [[ -z $dir ]]; then
    model=${HF_HOME:-$HOME/.cache/huggingface}/hub/models--${repo//\//--}
    dir=$model/snapshots/abc123
    mkdir -p "$model/refs"
    printf abc123 >"$model/refs/$revision"
fi
mkdir -p "$dir"
cp -r "$HUB/$repo/." "$dir/"
"""
ENROOT = r"""#!/bin/bash
verb=$1; shift
case $verb in
    import)
        [[ $1 == -o && $3 == docker://* ]] || exit 2
        [[ ! -e $2 ]] || { echo "[ERROR] File already exists: $2" >&2; exit 1; }
        echo "$3" >>"${2%/*}/imports"
        until [[ -z ${GATE-} || -e $GATE ]]; do sleep 0.1; done
        echo image >"$2" ;;
    start)
        while [[ $1 == -* ]]; do shift; done
        [[ -e $1 ]] || { echo "[ERROR] No such file or directory: $1" >&2; exit 1; }
        shift
        exec "$@" ;;
    *) exit 2 ;;
esac
"""
BUILD = r"""#!/bin/bash
while (($#)); do
    case $1 in
        --checkpoint_dir) checkpoint=$2 ;;
        --output_dir) out=$2 ;;
        --too_large) echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"; exit 3 ;;
    esac
    shift
done
mkdir -p "$out"
cp "$checkpoint/config.json" "$out/"
echo engine >"$out/rank0.engine"
"""
CONVERT = """import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
made = pathlib.Path(given["--output_dir"])
made.mkdir()
sizes = {"tp_size": int(given["--tp_size"]), "pp_size": int(given["--pp_size"])}
(made / "config.json").write_text(json.dumps({"mapping": sizes}))
"""


def write_standins(folder: Path) -> Path:
    """Write the programs to `folder`/bin, a hub with the model org/tiny, a converter; return the programs' folder."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name, text in (("hf", HF), ("enroot", ENROOT), ("trtllm-build", BUILD)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    model = folder / "hub" / "org" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    (folder / "convert_checkpoint.py").write_text(CONVERT)
    return programs
