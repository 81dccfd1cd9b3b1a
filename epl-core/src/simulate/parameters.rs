//! What is gathered for segments, and when: those of a segment when it runs, those of the next one while it runs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, VecDeque};

use epl_comm::Operation;
use rustc_hash::FxHashMap;

use super::call::{Called, Members};
use super::list::{OpList, Purpose, short};
use super::pieces::{Look, looks};
use crate::plan::Plan;
use crate::schedule::Action;

/// The parameters of one rank.
pub(super) struct GatherAhead<'a> {
    plan: &'a Plan,
    gathers: bool,
    /// By segment, the numbers of what is gathered for it.
    units: Vec<Vec<usize>>,
    /// What will be asked for, in this order.
    next: VecDeque<Look>,
    /// Where each unit was started to be gathered; none: this rank keeps the whole.
    coming: FxHashMap<usize, Option<usize>>,
    /// How many see the same segment.
    seen: FxHashMap<Look, usize>,
}

impl<'a> GatherAhead<'a> {
    pub fn new(plan: &'a Plan, actions: &[Action]) -> Self {
        let (gathers, mut units) = (plan.params.gathers(), vec![Vec::new(); plan.segments.len()]);
        for (number, unit) in plan.params.gathered() {
            let uses = unit.members.iter().flat_map(|member| &plan.records()[*member].segments);
            let uses: BTreeSet<usize> = uses.copied().collect();
            uses.into_iter().for_each(|segment| units[segment].push(number));
        }
        let all = || actions.iter().flat_map(|action| looks(plan, action, &plan.recompute)).collect();
        let next = if gathers { all() } else { VecDeque::new() };
        Self { plan, gathers, units, next, coming: FxHashMap::default(), seen: FxHashMap::default() }
    }

    /// Somebody sees a segment.
    pub fn see(&mut self, ops: &mut OpList, look: Look) {
        if !self.gathers {
            return;
        }
        if self.next.front() == Some(&look) {
            self.next.pop_front();
        }
        if !self.seen.contains_key(&look) {
            self.ask(ops, look.0);
            for number in &self.units[look.0] {
                if let Some(Some(start)) = self.coming.remove(number) {
                    ops.wait(start);
                }
            }
        }
        *self.seen.entry(look).or_default() += 1;
    }

    /// Nobody sees it any more who has seen it once.
    pub fn release(&mut self, look: Look) {
        if let Entry::Occupied(mut count) = self.seen.entry(look) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// What will be asked for next is gathered.
    pub fn ahead(&mut self, ops: &mut OpList) {
        if let Some(next) = self.next.front().copied().filter(|next| !self.seen.contains_key(next)) {
            self.ask(ops, next.0);
        }
    }

    fn ask(&mut self, ops: &mut OpList, segment: usize) {
        for number in &self.units[segment] {
            let unit = self.plan.params.unit(*number);
            let is_alone = !unit.residency.is_sharded() || self.plan.ranks_over(unit.axis) == 1;
            self.coming.entry(*number).or_insert_with(|| {
                let (over, operation, dtype) = (Members::Gather(unit.axis), Operation::AllGather, unit.dtype);
                let call = Called { over, operation, dtype, elements: unit.kept_len() };
                (!is_alone).then(|| ops.start(Purpose::Unit(short(*number)), call))
            });
        }
    }
}
