//! Workers, their devices, and the ranks that drive them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::{ClusterError, Result};
use crate::config::MOST_RANKS;

/// One device of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceSlot {
    /// The worker (process).
    pub worker: usize,
    /// The device's number among the worker's devices.
    pub device: usize,
}

/// The workers that exist and how many ranks each runs: one rank, one device.
///
/// Ranks are numbered worker by worker, as launchers number them:
///
/// ```text
///   worker 0          worker 1
///   ranks 0 1 2 3     ranks 4 5 6 7
/// ```
///
/// Several workers may share a host ([`with_hosts`](Self::with_hosts)); if nothing is said, each is on one of its own.
///
/// ```
/// use epl_core::Cluster;
///
/// // Four workers of two ranks, two on each host.
/// let cluster = Cluster::new(vec![2; 4], 0)?.with_hosts(vec![0, 0, 2, 2])?;
/// assert_eq!((cluster.world_size(), cluster.host_num(), cluster.ranks_of(3)), (8, 2, 6..8));
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    local_ranks: Vec<usize>,
    worker_index: usize,
    /// The first worker on the host of each.
    hosts: Vec<usize>,
}

impl Cluster {
    /// One worker: this process, with this many ranks as threads.
    ///
    /// # Errors
    ///
    /// No ranks, or too many.
    pub fn local(ranks: usize) -> Result<Self> {
        Self::new(vec![ranks], 0)
    }

    /// Workers with this many ranks each, seen from the worker with this index.
    ///
    /// # Errors
    ///
    /// No workers, a worker without ranks, too many ranks, or an index that no worker has.
    pub fn new(local_ranks: Vec<usize>, worker_index: usize) -> Result<Self> {
        if local_ranks.is_empty() {
            return Err(ClusterError::Zero { what: "the number of workers" });
        }
        if local_ranks.contains(&0) {
            return Err(ClusterError::Zero { what: "a worker's number of ranks" });
        }
        let world = local_ranks.iter().try_fold(0usize, |sum, ranks| sum.checked_add(*ranks));
        if world.is_none_or(|world| world > MOST_RANKS) {
            let data = world.unwrap_or(usize::MAX);
            return Err(ClusterError::TooManyRanks { data, pipeline: 1, tensor: 1, most: MOST_RANKS });
        }
        if worker_index >= local_ranks.len() {
            return Err(ClusterError::NoSuchWorker { worker: worker_index, workers: local_ranks.len() });
        }
        let hosts = (0..local_ranks.len()).collect();
        Ok(Self { local_ranks, worker_index, hosts })
    }

    /// These workers on hosts, each of which is given by the number of the first worker there.
    ///
    /// # Errors
    ///
    /// Not a host for each worker, or one that is not the number of its first worker.
    pub fn with_hosts(self, hosts: Vec<usize>) -> Result<Self> {
        let is_first = |(worker, host): (usize, &usize)| *host <= worker && hosts[*host] == *host;
        if hosts.len() != self.local_ranks.len() || !hosts.iter().enumerate().all(is_first) {
            return Err(ClusterError::NoHosts { hosts, workers: self.local_ranks.len() });
        }
        Ok(Self { hosts, ..self })
    }

    /// These ranks alone, on the same hosts.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn among(&self, ranks: &[usize]) -> Result<Self> {
        let of = |worker: usize| ranks.iter().filter(|rank| self.ranks_of(worker).contains(rank)).count();
        let (mut local_ranks, mut hosts, mut first) = (Vec::new(), Vec::new(), BTreeMap::new());
        for worker in 0..self.worker_num() {
            if of(worker) > 0 {
                hosts.push(*first.entry(self.hosts[worker]).or_insert(local_ranks.len()));
                local_ranks.push(of(worker));
            }
        }
        Self::new(local_ranks, 0)?.with_hosts(hosts)
    }

    /// Hosts.
    pub fn host_num(&self) -> usize {
        self.hosts.iter().enumerate().filter(|(worker, host)| worker == *host).count()
    }

    /// The first worker on the host of a worker; none where it does not exist.
    pub fn host_of(&self, worker: usize) -> Option<usize> {
        self.hosts.get(worker).copied()
    }

    /// Ranks of all workers.
    pub fn world_size(&self) -> usize {
        self.local_ranks.iter().sum()
    }

    /// Devices of all workers, under EPL's name: the same number, since a rank drives one device.
    pub fn total_gpu_num(&self) -> usize {
        self.world_size()
    }

    /// Workers.
    pub fn worker_num(&self) -> usize {
        self.local_ranks.len()
    }

    /// The worker that this process is.
    pub fn worker_index(&self) -> usize {
        self.worker_index
    }

    /// The ranks of a worker; none where it does not exist.
    pub fn ranks_of(&self, worker: usize) -> Range<usize> {
        let first = self.local_ranks.iter().take(worker).sum();
        first..first + self.local_ranks.get(worker).copied().unwrap_or(0)
    }

    /// The ranks of this process.
    pub fn local_ranks(&self) -> Range<usize> {
        self.ranks_of(self.worker_index)
    }

    /// How many ranks are on the host of this process, in all its workers: they share its cores.
    pub fn ranks_on_host(&self) -> usize {
        let is_here = |worker: &usize| self.hosts[*worker] == self.hosts[self.worker_index];
        (0..self.worker_num()).filter(is_here).map(|worker| self.local_ranks[worker]).sum()
    }

    /// The device that a rank drives; none where the rank does not exist.
    pub fn device_of(&self, rank: usize) -> Option<DeviceSlot> {
        let mut first = 0;
        for (worker, ranks) in self.local_ranks.iter().enumerate() {
            if rank < first + ranks {
                return Some(DeviceSlot { worker, device: rank - first });
            }
            first += ranks;
        }
        None
    }

    /// The worker of each rank.
    pub(crate) fn workers_of_ranks(&self) -> Vec<usize> {
        let ranks = self.local_ranks.iter().enumerate();
        ranks.flat_map(|(worker, ranks)| std::iter::repeat_n(worker, *ranks)).collect()
    }

    /// The host of each rank, by the number of the first worker there.
    pub(crate) fn hosts_of_ranks(&self) -> Vec<usize> {
        let ranks = self.local_ranks.iter().zip(&self.hosts);
        ranks.flat_map(|(ranks, host)| std::iter::repeat_n(*host, *ranks)).collect()
    }

    /// All ranks in the order in which a mesh takes them: host by host and worker by worker, so that a replica stays
    /// inside one, or across workers first, device 0 of every worker, then device 1.
    pub fn ranks_in_order(&self, prefer_intra_node: bool) -> Vec<usize> {
        let slots = self.local_ranks.iter().enumerate();
        let slots = slots.flat_map(|(worker, ranks)| (0..*ranks).map(move |device| DeviceSlot { worker, device }));
        let place = |slot: DeviceSlot| match prefer_intra_node {
            true => (self.hosts[slot.worker], slot.worker),
            false => (slot.device, slot.worker),
        };
        let mut places: Vec<_> = slots.enumerate().map(|(rank, slot)| (place(slot), rank)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, rank)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_worker_by_worker() {
        let cluster = Cluster::new(vec![4, 2], 1).unwrap();
        assert_eq!((cluster.world_size(), cluster.worker_num(), cluster.worker_index()), (6, 2, 1));
        assert_eq!((cluster.ranks_of(0), cluster.local_ranks(), cluster.ranks_of(2)), (0..4, 4..6, 6..6));
        assert_eq!(cluster.device_of(5), Some(DeviceSlot { worker: 1, device: 1 }));
        assert_eq!(cluster.device_of(6), None);
        assert_eq!(cluster.ranks_in_order(true), [0, 1, 2, 3, 4, 5]);
        assert_eq!(cluster.ranks_in_order(false), [0, 4, 1, 5, 2, 3]);
    }

    #[test]
    fn workers_of_one_host_are_neighbours() {
        // As an MPI launcher deals them out, one to each host in turn.
        let cluster = Cluster::new(vec![1, 2, 1, 1], 0).unwrap();
        assert_eq!((cluster.host_of(2), cluster.ranks_in_order(true)), (Some(2), vec![0, 1, 2, 3, 4]));
        let cluster = cluster.with_hosts(vec![0, 1, 0, 1]).unwrap();
        assert_eq!((cluster.host_of(2), cluster.host_of(4), cluster.host_num()), (Some(0), None, 2));
        let other = Cluster { worker_index: 3, ..cluster.clone() };
        assert_eq!((cluster.ranks_on_host(), other.ranks_on_host()), (2, 3));
        assert_eq!(cluster.ranks_in_order(true), [0, 3, 1, 2, 4]);
        assert_eq!(cluster.ranks_in_order(false), [0, 1, 3, 4, 2]);
        for hosts in [vec![0, 0, 0], vec![1, 1, 1, 1], vec![0, 2, 2, 2]] {
            let told =
                format!("hosts {hosts:?} of 4 workers; give each worker the number of the first one on its host");
            assert_eq!(cluster.clone().with_hosts(hosts).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn some_ranks_stay_on_their_hosts() {
        let cluster = Cluster::new(vec![1, 2, 1, 1], 0).unwrap().with_hosts(vec![0, 1, 0, 1]).unwrap();
        let among = cluster.among(&[1, 3, 4]).unwrap();
        assert_eq!((among.world_size(), among.worker_num(), among.hosts_of_ranks()), (3, 3, vec![0, 1, 0]));
        assert_eq!(cluster.among(&[0, 1, 2, 3, 4]).unwrap(), cluster);
        assert!(cluster.among(&[]).is_err());
    }

    #[test]
    fn impossible_clusters_are_refused() {
        for (local_ranks, worker, message) in [
            (vec![], 0, "the number of workers is 0; it must be at least 1"),
            (vec![2, 0], 0, "a worker's number of ranks is 0; it must be at least 1"),
            (vec![2, 2], 2, "worker 2 does not exist; there are 2 workers, numbered from 0"),
        ] {
            assert_eq!(Cluster::new(local_ranks, worker).unwrap_err().to_string(), message);
        }
        assert!(Cluster::new(vec![usize::MAX, 2], 0).is_err());
    }
}
