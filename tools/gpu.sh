#!/usr/bin/env bash
# Builds the programs that are to be run on a machine with an NVIDIA GPU, on one that has none, into a folder to be carried
# there:
#
#   tools/gpu.sh [FOLDER]        # default: target/gpu-programs; on the other machine then FOLDER/gpu-run.sh
#   tools/gpu.sh --check         # only checks that they compile
#
# Kernels are made by NVRTC on that machine (feature `cuda-cpp`). LLVM, which a crate's build script would download, is never
# called, so its symbols may be missing.
set -euo pipefail
cd "$(dirname "$0")/.."

export DOCS_RS=1
features=(--workspace --features cuda-cpp)
if [ "${1:-}" = --check ]; then
    exec cargo check "${features[@]}" --test cuda --test layouts --example moe_t5 --bench against_torch
fi

folder=${1:-target/gpu-programs}
export CARGO_TARGET_DIR=target/gpu
export RUSTFLAGS="-C link-arg=-Wl,--unresolved-symbols=ignore-all -C link-arg=-Wl,-z,lazy -C relro-level=off"
# Cargo says where each program is. An example that `cargo test` is asked for by name would be a test of it.
options=(--release "${features[@]}" --message-format=json-render-diagnostics)
built=$(cargo test "${options[@]}" --no-run --test cuda --test layouts --bench against_torch)
built+=$'\n'$(cargo build "${options[@]}" --example moe_t5)
mkdir -p "$folder"
for name in cuda layouts moe_t5 against_torch; do
    program=$(printf '%s\n' "$built" | sed -n "s/.*\"target\":{[^}]*\"name\":\"$name\".*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1)
    strip -o "$folder/$name" "$program"
done
cp tools/gpu-run.sh tools/peers/moe_t5_torch.py "$folder/"
ls -l "$folder"
