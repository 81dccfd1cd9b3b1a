#!/usr/bin/env bash
# Runs what `tools/gpu.sh` has built, on a machine with an NVIDIA GPU, and writes gpu.md:
#
#   FOLDER/gpu-run.sh [REPORT [SECONDS]]        # default: gpu.md in the working folder, in at most 1500 seconds
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
# What is left of the time; each command has a limit of its own beside.
end=$((SECONDS + ${2:-1500}))
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
    [ "$seconds" -le 0 ] && { echo "the time is over"; return 124; }
    timeout --kill-after=10 "$seconds" "$@"
}

# check NAME SECONDS JOBS PROGRAM FILTER [WITHOUT]: every test of a program whose name FILTER (of grep -E) finds and WITHOUT does
# not, so many at a time, each a process of its own, as a device that has failed is lost for the process. A row of the table of
# tests; what a failure printed is kept at the end of the report.
check() {
    local name=$1 seconds=$2 jobs=$3 program=$4 filter=$5 before=$SECONDS logs
    logs=$(mktemp -d -p "$work")
    "$program" --list >"$logs/list" 2>&1
    sed -n 's/: test$//p' "$logs/list" | grep -Ev "child_${6:+|$6}" | grep -E "$filter" >"$logs/names"
    # shellcheck disable=SC2016
    limit "$seconds" xargs -a "$logs/names" -P "$jobs" -I{} bash -c '
        timeout --kill-after=10 180 "$0" --exact "$1" --include-ignored --test-threads=1 >"$2/$1.log" 2>&1
        grep -q "ok. 1 passed" "$2/$1.log" && mv "$2/$1.log" "$2/$1.ok"
        :' "$program" {} "$logs"
    local status=$? listed passed
    listed=$(wc -l <"$logs/names")
    passed=$(find "$logs" -name '*.ok' | wc -l)
    if [ "$passed" -gt 0 ] && [ "$passed" = "$listed" ]; then
        say "| $name | $passed passed | $((SECONDS - before)) |"
        return
    fi
    # A program that finds no test of a name, or is stopped before all have run, has failed, too.
    say "| $name | **$passed of $listed passed** ($status) | $((SECONDS - before)) |"
    failed=1
    [ "$listed" = 0 ] && cp "$logs/list" "$logs/no test.log"
    local file
    for file in "$logs"/*.log; do
        [ -e "$file" ] || continue
        { printf '\n### %s\n\n```text\n' "$(basename "$file" .log)"; tail -n 60 "$file"; printf '```\n'; } >>"$work/failures"
    done
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
check "without what is missing" 60 1 "$here/cuda" '^absence::'
# Two ranks on one GPU in one process need NCCL 2.30; where its version is not known they are tried.
library=${EPL_NCCL_LIBRARY:-$(ldconfig -p | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -n 1)}
version=$(python3 -c 'import ctypes, sys; n = ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(n)); print(n.value)' "${library:-libnccl.so.2}" 2>/dev/null)
shared='two_ranks_on_one_gpu|a_rank_that_fails_releases_the_other'
if [ "${version:-23000}" -lt 23000 ]; then
    say "| two ranks on one GPU, in one process | not run: needs NCCL 2.30, this is $version | 0 |"
else
    check "two ranks on one GPU, in one process" 240 1 "$here/cuda" "$shared"
fi
# One at a time: some look at the device's free memory, and two processes of one share its time already.
check "collectives, streams, processes, gradients on the device" 500 1 "$here/cuda" . "^absence::|$shared"
export BURN_DEVICE=cuda
# In f64: products of f32 are computed in TF32, whose rounding passes the bound.
check "parity of layouts in f64, ranks through the host" 300 8 "$here/layouts" '^f64::layouts::'

say ""
say "| program | result | device memory |"
say "|---|---|---|"
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
measure "$here/moe_t5" --data 1 --expert 1 --steps 300 --out "$work/f32"
measure "$here/moe_t5" --data 1 --expert 1 --steps 300 --set amp.level=O1 --set amp.dtype=bf16 --out "$work/bf16"

if [ -s "$work/failures" ]; then
    say ""
    say "## What failed"
    cat "$work/failures" >>"$report"
fi
echo "written to $report"
exit $failed
