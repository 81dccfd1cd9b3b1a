//! What a trace holds.

use burn::tensor::{DType, Device, Shape, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Error, EventKind, Operation, Rank, ReduceOp, Result, Trace, local};

/// Both are the same end of the link: they may not be used side by side.
#[test]
fn links_of_a_traced_group_are_those_of_the_group() {
    let ended = local::run(2, |group| -> Result<()> {
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
        std::thread::sleep(std::time::Duration::from_millis(200));
        group.receive(x(), 0).map(drop)
    });
    assert_eq!(ended.err().map(|(rank, _)| rank.0), Some(0));
}

#[test]
fn collectives_of_all_split_off_groups_and_marks_are_recorded_in_order() {
    let trace = Trace::new();
    run_ranks(2, |world| {
        let world = world.traced(&trace);
        let group = world.split("data", 0, world.rank()).unwrap();
        let x = Tensor::<2>::ones([3, 4], (&Device::flex(), DType::F64));
        let started = group.start_all_reduce(x, ReduceOp::Max).unwrap();
        trace.mark(group.global(group.rank()), "started");
        started.wait().unwrap();
        world.barrier().unwrap();
    });
    for rank in [0, 1] {
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
