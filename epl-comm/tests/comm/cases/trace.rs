//! What a trace holds.

use burn::tensor::{DType, Device, Shape, Tensor};
use epl_comm::{Error, EventKind, Operation, Rank, ReduceOp, Result, Trace};

use crate::cases::world::World;

/// Both are the same end of the link: they may not be used side by side.
pub fn links_of_a_traced_group_are_those_of_the_group(world: &World) {
    let ended = world.ranks(2).launch(|group| -> Result<()> {
        let traced = group.traced(&Trace::new());
        let x = || Tensor::<1>::ones([3], &Device::flex());
        if group.rank() == 0 {
            group.send(x(), 1)?;
            traced.send(x(), 1)?;
            let started = group.start_send(x(), 1)?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            let side_by_side = traced.start_send(x(), 1)?.wait();
            assert!(matches!(side_by_side, Err(Error::Invalid { .. })), "{side_by_side:?}");
            let _ = started.wait();
            return Err(Error::invalid("as it must be"));
        }
        (0..2).try_for_each(|_| group.receive(x(), 0).map(drop))?;
        std::thread::sleep(std::time::Duration::from_secs(2));
        group.receive(x(), 0).map(drop)
    });
    assert!(world.failures(ended).iter().all(|(_, rank, _)| *rank == Rank(0)));
}

pub fn collectives_of_all_split_off_groups_and_marks_are_recorded_in_order(world: &World) {
    let trace = Trace::new();
    let here = world.run(2, |world| {
        let world = world.traced(&trace);
        let group = world.split("data", 0, world.rank()).unwrap();
        let x = Tensor::<2>::ones([3, 4], (&Device::flex(), DType::F64));
        let started = group.start_all_reduce(x, ReduceOp::Max).unwrap();
        trace.mark(group.global(group.rank()), "started");
        started.wait().unwrap();
        world.barrier().unwrap();
        world.rank()
    });
    for rank in here {
        let events: Vec<_> = trace.events().into_iter().filter(|event| event.rank == Rank(rank)).collect();
        assert!(events.iter().all(|event| event.begin <= event.end));
        let collectives: Vec<_> = events.iter().filter(|event| !matches!(event.kind, EventKind::Mark(_))).collect();
        let kinds: Vec<_> = collectives.iter().map(|event| event.kind.clone()).collect();
        let (operation, shape) = (Operation::AllReduce(ReduceOp::Max), Shape::new([3, 4]));
        let group = "data".to_string();
        assert_eq!(kinds[0], EventKind::Collective { group, sequence: 1, operation, dtype: DType::F64, shape });
        let EventKind::Collective { group, sequence, operation, .. } = &kinds[1] else { panic!("{kinds:?}") };
        // The split was the world's first call.
        assert_eq!((group.as_str(), *sequence, *operation), ("world", 2, Operation::Barrier));
        assert_eq!(events.iter().filter(|event| event.kind == EventKind::Mark("started".into())).count(), 1);
    }
}

pub fn spans_end_when_they_are_dropped_and_ranks_are_switched_by_themselves(world: &World) {
    let trace = Trace::new();
    let here = world.run(2, |world| {
        let own = trace.with_own_switch();
        let world = world.traced(&own);
        let rank = world.global(world.rank());
        own.switch(rank.0 == 1);
        assert_eq!(own.span(rank, || "outer".into()).is_some(), rank.0 == 1);
        let outer = own.span(rank, || "outer".into());
        world.barrier().unwrap();
        drop(own.span(rank, || "inner".into()));
        drop(outer);
        own.switch(false);
        own.mark(rank, "nobody sees");
        world.barrier().unwrap();
        rank.0
    });
    let events = trace.events();
    if !here.contains(&1) {
        assert_eq!(events.len(), 0, "{events:?}");
        return;
    }
    assert!(events.iter().all(|event| event.rank == Rank(1)), "{events:?}");
    let of = |name: &str| events.iter().rfind(|event| event.kind == EventKind::Span(name.into())).unwrap();
    let (outer, inner) = (of("outer"), of("inner"));
    assert!(outer.begin <= inner.begin && inner.end <= outer.end);
    let barriers = events.iter().filter(|event| matches!(event.kind, EventKind::Collective { .. }));
    assert!(barriers.clone().all(|barrier| outer.begin <= barrier.begin && barrier.end <= outer.end));
    assert_eq!(barriers.count(), 1);
}
