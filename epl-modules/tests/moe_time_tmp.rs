use std::{sync::Arc, time::Instant};
use burn::{module::Module, tensor::{Tensor, Distribution}};
use epl_core::{testing, Pass, OneSegment, WholeModel, Weights, Loss};
use epl_modules::{moe::*, FeedForward, FeedForwardConfig, Activation};
#[derive(Module, Debug)]
struct Net { moe: Moe, ff: FeedForward }
impl WholeModel for Net { type Batch = (); fn weights(&self, _: &()) -> Weights { Weights::new() } fn forward_loss(&self, _: &()) -> Loss { Loss::new() } }
#[test]
fn time() {
    for (d, f, e, b, t) in [(128, 512, 8, 32, 32), (256, 1024, 8, 16, 64), (64, 256, 4, 64, 24)] {
    for gate in [Gate::Switch, Gate::Top2] {
    for layout in [(1, 1, 1), (2, 1, 2)] {
    testing::run(layout, |epl| {
        let net = epl.build(|p| OneSegment { model: Net {
            moe: MoeConfig::new(d, f, e).with_gate(gate).init(&p.child("moe")),
            ff: FeedForwardConfig::new(d, f).with_activation(Activation::Relu).with_bias(false).with_dropout(0.0).init(&p.child("ff")) } })?.into_inner().model;
        let b = b / layout.0;
        epl.context().begin(Pass { step: 0, training: true, samples: (0..b as u64).collect::<Vec<_>>().into(), empty: false });
        let x = Tensor::<3>::random([b, t, d], Distribution::Normal(0.0, 1.0), epl.place()).require_grad();
        let mask = TokenMask::all(b, t);
        let run = |moe: bool| { let y = if moe { let o = net.moe.forward_masked(x.clone(), &mask); o.hidden.sum() + o.auxiliary + o.z } else { net.ff.forward(x.clone()).sum() }; let g = y.backward(); x.grad(&g).unwrap(); };
        let fwd = || { let o = net.moe.forward_masked(x.clone(), &mask); let _ = o.hidden; };
        let best = |f: &dyn Fn()| (0..30).map(|_| { let s = Instant::now(); f(); s.elapsed().as_secs_f64() * 1e3 }).fold(f64::MAX, f64::min);
        let (m, w) = (best(&|| run(true)), best(&fwd));
        epl.context().world().barrier()?;
        let ff = best(&|| run(false));
        if epl.context().world().rank() == 0 { println!("d {d} f {f} E {e} tokens {} {gate:?} {layout:?}: moe {m:.2} ms (fwd {w:.2}), dense ff {ff:.2} ms", b * t); }
        Ok(())
    });
    }}}
    let _ = Arc::new(0);
}
