//! Which groups of a mesh lie inside one worker.

use std::fmt;

use super::axis::Axis;
use super::mesh::Mesh;
use super::workers::Cluster;

/// Workers, and the axes by how far what their groups exchange travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    workers: usize,
    hosts: usize,
    ranks: usize,
    in_worker: Vec<Axis>,
    in_host: Vec<Axis>,
    across: Vec<Axis>,
}

impl Placement {
    /// Where the groups of a mesh lie.
    pub fn of(cluster: &Cluster, mesh: &Mesh) -> Self {
        let (worker, host) = (cluster.workers_of_ranks(), cluster.hosts_of_ranks());
        let lie_in_one = |axis: &Axis, place: &[usize]| {
            mesh.groups(*axis).iter().all(|group| group.windows(2).all(|pair| place[pair[0]] == place[pair[1]]))
        };
        let axes = [Axis::Tensor, Axis::Expert, Axis::Pipeline, Axis::Data];
        let used = axes.into_iter().filter(|axis| mesh.size(*axis) > 1);
        let (in_worker, farther): (Vec<_>, Vec<_>) = used.partition(|axis| lie_in_one(axis, &worker));
        let (in_host, across) = farther.into_iter().partition(|axis| lie_in_one(axis, &host));
        let (workers, hosts, ranks) = (cluster.worker_num(), cluster.host_num(), cluster.total_gpu_num());
        Self { workers, hosts, ranks, in_worker, in_host, across }
    }
}

/// `worker_num 4, total_gpu_num 8 on 2 hosts; groups inside a worker: tensor; inside a host: expert; across hosts: data`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |axes: &[Axis]| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "worker_num {}, total_gpu_num {}", self.workers, self.ranks)?;
        if self.workers == 1 {
            return Ok(());
        }
        write!(f, " on {} host{}", self.hosts, if self.hosts == 1 { "" } else { "s" })?;
        for (place, axes) in [
            ("groups inside a worker", &self.in_worker),
            ("inside a host", &self.in_host),
            ("across hosts", &self.across),
        ] {
            if !axes.is_empty() {
                write!(f, "; {place}: {}", listed(axes))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn shown(workers: &[usize], hosts: &[usize], options: &[(&str, usize)]) -> String {
        let config = options.iter().fold(Config::new(), |config, (name, value)| config.with(name, *value).unwrap());
        let cluster = Cluster::new(workers.to_vec(), 0).unwrap().with_hosts(hosts.to_vec()).unwrap();
        Placement::of(&cluster, &Mesh::on_cluster(&cluster, &config).unwrap()).to_string()
    }

    #[test]
    fn groups_of_neighbours_stay_inside_a_worker_and_a_host() {
        let (tensor, expert) = (("dist.tensor_parallel_size", 2), ("dist.expert_parallel_size", 2));
        for (workers, hosts, options, expected) in [
            (&[4][..], &[0][..], &[tensor][..], "worker_num 1, total_gpu_num 4"),
            (
                &[2, 2],
                &[0, 1],
                &[tensor],
                "worker_num 2, total_gpu_num 4 on 2 hosts; groups inside a worker: tensor; across hosts: data",
            ),
            (&[1, 1], &[0, 1], &[tensor], "worker_num 2, total_gpu_num 2 on 2 hosts; across hosts: tensor"),
            (&[1, 1], &[0, 0], &[tensor], "worker_num 2, total_gpu_num 2 on 1 host; inside a host: tensor"),
            // Dealt out in turn: still neighbours.
            (
                &[1, 1, 1, 1],
                &[0, 1, 0, 1],
                &[tensor],
                "worker_num 4, total_gpu_num 4 on 2 hosts; inside a host: tensor; across hosts: data",
            ),
            (
                &[2, 2, 2, 2],
                &[0, 1, 1, 0],
                &[tensor, expert],
                "worker_num 4, total_gpu_num 8 on 2 hosts; groups inside a worker: tensor; inside a host: expert; across \
                 hosts: data",
            ),
        ] {
            assert_eq!(shown(workers, hosts, options), expected);
        }
    }
}
