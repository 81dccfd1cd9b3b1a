//! What a trace holds.

use burn::tensor::{DType, Device, Shape, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{EventKind, Operation, Rank, ReduceOp, Trace};

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
