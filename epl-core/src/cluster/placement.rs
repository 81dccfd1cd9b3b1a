//! Which groups of a mesh lie inside one worker.

use std::fmt;

use super::axis::Axis;
use super::mesh::Mesh;
use super::workers::Cluster;

/// Workers, and the axes whose groups stay inside one of them: what those exchange does not leave the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    workers: usize,
    ranks: usize,
    within: Vec<Axis>,
    across: Vec<Axis>,
}

impl Placement {
    /// Where the groups of a mesh lie.
    pub fn of(cluster: &Cluster, mesh: &Mesh) -> Self {
        let worker = |rank: &usize| cluster.device_of(*rank).map(|slot| slot.worker);
        let lies_in_one = |group: &Vec<usize>| group.windows(2).all(|pair| worker(&pair[0]) == worker(&pair[1]));
        let axes = [Axis::Tensor, Axis::Expert, Axis::Pipeline, Axis::Data];
        let used = axes.into_iter().filter(|axis| mesh.size(*axis) > 1);
        let (within, across) = used.partition(|axis| mesh.groups(*axis).iter().all(lies_in_one));
        Self { workers: cluster.worker_num(), ranks: cluster.total_gpu_num(), within, across }
    }

    /// The axes with a group over several workers.
    pub fn across(&self) -> &[Axis] {
        &self.across
    }
}

/// `worker_num 2, total_gpu_num 4; groups inside a worker: tensor; across workers: data`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |axes: &[Axis]| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "worker_num {}, total_gpu_num {}", self.workers, self.ranks)?;
        if self.workers == 1 {
            return Ok(());
        }
        for (where_, axes) in [("groups inside a worker", &self.within), ("across workers", &self.across)] {
            if !axes.is_empty() {
                write!(f, "; {where_}: {}", listed(axes))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn shown(workers: &[usize], options: &[(&str, usize)]) -> String {
        let config = options.iter().fold(Config::new(), |config, (name, value)| config.with(name, *value).unwrap());
        let cluster = Cluster::new(workers.to_vec(), 0).unwrap();
        Placement::of(&cluster, &Mesh::on_cluster(&cluster, &config).unwrap()).to_string()
    }

    #[test]
    fn groups_of_neighbours_stay_inside_a_worker() {
        let tensor = ("dist.tensor_parallel_size", 2);
        assert_eq!(shown(&[4], &[tensor]), "worker_num 1, total_gpu_num 4");
        assert_eq!(
            shown(&[2, 2], &[tensor]),
            "worker_num 2, total_gpu_num 4; groups inside a worker: tensor; across workers: data"
        );
        assert_eq!(shown(&[1, 1], &[tensor]), "worker_num 2, total_gpu_num 2; across workers: tensor");
        assert_eq!(
            shown(&[2, 2], &[("dist.expert_parallel_size", 2)]),
            "worker_num 2, total_gpu_num 4; groups inside a worker: expert; across workers: data"
        );
    }
}
