use burn::tensor::{Device, Tensor};
use epl_comm::{ReduceOp, testing::run_ranks};
use std::time::Instant;
fn main() {
    let ranks: usize = std::env::args().nth(1).map_or(2, |a| a.parse().unwrap());
    for numel in [1usize << 8, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24] {
        let times = run_ranks(ranks, |g| {
            let mut x = Tensor::<1>::ones([numel], &Device::flex());
            let n = if numel < 1 << 18 { 2000 } else { 30 };
            let mut t = vec![];
            for _ in 0..n {
                g.barrier().unwrap();
                let s = Instant::now();
                x = g.all_reduce(x, ReduceOp::Max).unwrap();
                t.push(s.elapsed().as_secs_f64());
            }
            t.sort_by(f64::total_cmp);
            t[t.len() / 2]
        });
        let t = times[0];
        // copy of 2*bytes over two threads
        let bytes = numel * 4;
        let mut src = vec![1u8; 2 * bytes];
        let mut dst = vec![2u8; 2 * bytes];
        let mut c = vec![];
        for _ in 0..15 {
            let bar = std::sync::Barrier::new(2);
            let (s0, s1) = src.split_at_mut(bytes);
            let (d0, d1) = dst.split_at_mut(bytes);
            let el = std::thread::scope(|s| {
                let h = s.spawn(|| { bar.wait(); let t = Instant::now(); d1.copy_from_slice(s1); t.elapsed().as_secs_f64() });
                bar.wait();
                let t = Instant::now();
                d0.copy_from_slice(s0);
                let a = t.elapsed().as_secs_f64();
                a.max(h.join().unwrap())
            });
            c.push(el);
        }
        c.sort_by(f64::total_cmp);
        let c = c[c.len() / 2];
        println!("bytes={} us={:.2} GB/s={:.2}  copy us={:.2} {:.1} GB/s ratio {:.2}", bytes, t * 1e6, bytes as f64 / t / 1e9, c * 1e6, 2.0 * bytes as f64 / c / 1e9, c / t);
    }
}
