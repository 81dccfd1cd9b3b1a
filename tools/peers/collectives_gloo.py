"""Collectives over Gloo between local processes: what a PyTorch user gets on CPU.

    pip install torch numpy
    python collectives_gloo.py [--ranks 2] [--port 29517] [--sizes 1024,65536] [--times 15] [--warmup 3]
                               [--only all_reduce,all_to_all]

Prints a line for each collective and size: its name, the bytes of the f32 buffer that one rank gives, and the median
seconds of one call on rank 0, each call after a barrier. One rank receives as many bytes from all_reduce and
all_to_all, ranks times as many from all_gather, and one in ranks of them from reduce_scatter. Buffers are allocated
before; every result is checked once before the measurements. A collective that Gloo lacks gets `<name> unsupported`.
"""
import argparse, os, statistics, time, torch, torch.distributed as dist, torch.multiprocessing as mp

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def prepare(name, numel, rank, ranks):
    """The call, its input, its output and the blocks of the first output when block b of rank r gives r * ranks + b."""
    given = torch.arange(ranks * ranks, dtype=torch.float32).view(ranks, ranks)
    x = given[rank].repeat_interleave(numel // ranks)
    if name == "all_reduce":
        return lambda: dist.all_reduce(x), x, x, given.sum(0)
    if name == "all_gather":
        y = torch.empty(ranks * numel)
        return lambda: dist.all_gather_into_tensor(y, x), x, y, given.flatten()
    if name == "reduce_scatter":
        y = torch.empty(numel // ranks)
        return lambda: dist.reduce_scatter_tensor(y, x), x, y, given.sum(0)[rank : rank + 1]
    y = torch.empty(numel)
    return lambda: dist.all_to_all_single(y, x), x, y, given[:, rank]


def measure(name, size, rank, a):
    call, x, y, expected = prepare(name, size // 4, rank, a.ranks)
    call()
    assert (y.view(len(expected), -1) == expected[:, None]).all(), f"{name} of {size} bytes is wrong on rank {rank}"
    x.zero_()  # sums of sums would overflow
    times = []
    for _ in range(a.warmup + a.times):
        dist.barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[a.warmup :])


def run(rank, a):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=a.ranks)
    for name in a.only:
        for size in a.sizes:
            try:
                line = f"{name} {size} {measure(name, size, rank, a):.6e}"
            except RuntimeError as error:
                if "support" not in str(error):
                    raise
                line = f"{name} unsupported"
            if rank == 0:
                print(line, flush=True)
            if line.endswith("unsupported"):
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", type=int, default=29517)
    parser.add_argument("--sizes", default="1024,65536,1048576,4194304,16777216,67108864")
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--only", default=",".join(COLLECTIVES))
    a = parser.parse_args()
    a.sizes, a.only = [int(size) for size in a.sizes.split(",")], a.only.split(",")
    if a.ranks < 1 or a.times < 1 or a.warmup < 0:
        parser.error("--ranks and --times start at 1, --warmup at 0")
    if any(size <= 0 or size % (4 * a.ranks) for size in a.sizes):
        parser.error("a size must be a multiple of 4 bytes times the ranks")
    if not set(a.only) <= set(COLLECTIVES):
        parser.error(f"--only takes {','.join(COLLECTIVES)}")
    mp.spawn(run, args=(a,), nprocs=a.ranks)
