#!/usr/bin/env bash
# Runs what `tools/gpu.sh` has built, on a machine with an NVIDIA GPU, in at most 25 minutes, and writes gpu.md:
#
#   FOLDER/gpu-run.sh [REPORT]        # default: gpu.md in the working folder
#
# Needs NVIDIA's driver, NVRTC with its headers, and NCCL (EPL_NCCL_LIBRARY where it is not found by the system). PyTorch is
# measured beside it where Python has it. Ends with 1 if a test failed, and with 2 where there is no GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
report=$(realpath -m "${1:-gpu.md}")

if ! nvidia-smi --query-gpu=name --format=csv,noheader >/dev/null 2>&1; then
    echo "no GPU: nvidia-smi names none" >&2
    exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# What is left of 25 minutes; each command has a limit of its own beside.
end=$((SECONDS + 1500))
failed=0

# NCCL of PyTorch's packages, where the system has none.
if [ -z "${EPL_NCCL_LIBRARY:-}" ] && ! ldconfig -p | grep 'libnccl\.so' >/dev/null; then
    found=$(python3 -c 'import nvidia.nccl as n, glob; print(glob.glob(list(n.__path__)[0] + "/lib/libnccl.so*")[0])' 2>/dev/null)
    [ -n "$found" ] && export EPL_NCCL_LIBRARY=$found
fi

say() { printf '%s\n' "$*" | tee -a "$report"; }

# limit SECONDS COMMAND…: within what is left.
limit() {
    local seconds=$1 left=$((end - SECONDS))
    shift
    [ "$left" -lt "$seconds" ] && seconds=$left
    [ "$seconds" -le 0 ] && { echo "the 25 minutes are over"; return 124; }
    timeout --kill-after=10 "$seconds" "$@"
}

# check NAME SECONDS COMMAND…: a row of the table of tests; what a failure printed is kept at the end of the report.
check() {
    local name=$1 seconds=$2 before=$SECONDS
    shift 2
    if limit "$seconds" "$@" >"$work/log" 2>&1; then
        # A program that finds no test of a name ends well, too.
        local passed
        passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$work/log" | tail -n 1)
        if [ "${passed:-0}" = 0 ]; then
            say "| $name | **nothing ran** | $((SECONDS - before)) |"
            failed=1
        else
            say "| $name | $passed passed | $((SECONDS - before)) |"
        fi
    else
        say "| $name | **failed** ($?) | $((SECONDS - before)) |"
        failed=1
        { printf '\n### %s\n\n```text\n' "$name"; tail -n 60 "$work/log"; printf '```\n'; } >>"$work/failures"
    fi
}

# measure COMMAND…: its last line, and the most memory of the device while it ran.
measure() {
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=200 >"$work/memory" 2>/dev/null &
    local watch=$!
    limit 240 "$@" >"$work/log" 2>&1
    local status=$?
    kill "$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    local peak
    peak=$(sort -n "$work/memory" | tail -n 1)
    if [ $status = 0 ]; then
        say "| \`$(basename "$1") ${*:2}\` | $(tail -n 1 "$work/log") | ${peak:-?} MiB |"
    else
        say "| \`$(basename "$1") ${*:2}\` | **failed** ($status) | ${peak:-?} MiB |"
        failed=1
        { printf '\n### %s\n\n```text\n' "$*"; tail -n 60 "$work/log"; printf '```\n'; } >>"$work/failures"
    fi
}

: >"$report"
: >"$work/failures"
say "# On a GPU"
say ""
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"
say ""
say "| tests | result | seconds |"
say "|---|---|---|"
cuda=("$here/cuda" --test-threads=1 --nocapture)
check "without what is missing" 60 "$here/cuda" --test-threads=1
for name in custom_vjp::gradients_are_those_of_the_host custom_vjp::nothing_stays_in_the_graph collectives::one_rank; do
    check "$name" 180 "${cuda[@]}" --ignored --exact "$name"
done
# Everything else that only a GPU can show, by its own list, so that a new test is not forgotten here.
for name in $("$here/cuda" --ignored --list 2>/dev/null | sed -n 's/: test$//p' | grep -v 'child_\|custom_vjp::\|collectives::one_rank$'); do
    check "$name" 180 "${cuda[@]}" --ignored --exact "$name"
done
export BURN_DEVICE=cuda
check "parity in f32, ranks through the host" 300 "$here/layouts" f32::layouts:: --test-threads=1

say ""
say "| program | result | device memory |"
say "|---|---|---|"
measure "$here/moe_t5" --data 1 --expert 1 --steps 300 --out "$work/f32"
measure "$here/moe_t5" --data 1 --expert 1 --steps 300 --set amp.level=O1 --set amp.dtype=bf16 --out "$work/bf16"
large=(--d-model 1024 --d-kv 64 --heads 16 --d-ff 4096 --layers 8 --experts 8 --vocab 32000 --batch 32 --seq 256 --steps 20)
small=(--steps 20)
for sizes in small large; do
    declare -n options=$sizes
    # The model's sizes by the same names, each behind `--set`.
    ours=()
    for ((at = 0; at < ${#options[@]}; at += 2)); do
        key=${options[at]} value=${options[at + 1]}
        case $key in
            --batch | --seq | --steps) ours+=("$key" "$value") ;;
            *) key=${key#--} && ours+=(--set "${key//-/_}=$value") ;;
        esac
    done
    for dtype in f32 bf16; do
        # TFLOP/s of an H100 or H200 (SXM, dense) in bf16. In f32 a product may be computed in TF32, so a share of what would
        # say nothing; PyTorch is measured both ways.
        peak=()
        [ $dtype = bf16 ] && peak=(--peak 989)
        measure "$here/against_torch" --only moe_t5 "${ours[@]}" --dtype $dtype "${peak[@]}"
        if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
            measure python3 "$here/moe_t5_torch.py" "${options[@]}" --device cuda --dtype $dtype
            [ $dtype = f32 ] && measure python3 "$here/moe_t5_torch.py" "${options[@]}" --device cuda --dtype tf32
        fi
    done
done

if [ -s "$work/failures" ]; then
    say ""
    say "## What failed"
    cat "$work/failures" >>"$report"
fi
echo "written to $report"
exit $failed
