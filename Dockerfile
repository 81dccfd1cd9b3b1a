# Rust, MPI and NCCL, with `epl-launch` and `epl-ckpt`: what a run on several hosts needs.
#
#   docker build -t epl .
#   docker run --gpus all --network host --shm-size 8g epl epl-launch --num_workers 1 --gpu_per_worker 8 -- program
#
# GPUs need the NVIDIA container toolkit on the host. Without any, the same image runs over MPI, or in threads.
# NCCL is in the image, at a version that fits its CUDA.
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential ca-certificates libclang-dev libopenmpi-dev openmpi-bin openssh-client pkg-config rustup \
    && rm -rf /var/lib/apt/lists/*

ENV RUSTUP_HOME=/opt/rustup CARGO_HOME=/opt/cargo PATH=/opt/cargo/bin:$PATH
# Ubuntu's rustup is not where one that updates itself would be; the first toolchain is the default.
RUN rustup toolchain install --no-self-update --profile minimal 1.95.0

WORKDIR /epl
COPY . .
RUN cargo install --locked --path epl-launch && cargo install --locked --path . && rm -rf target

# As root, with more processes than cores, Open MPI has to be asked.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
