//! The mesh against literal examples, and against its own definition.

#![allow(clippy::unwrap_used)]

use epl_comm::local;
use epl_core::Epl;
use epl_core::config::{Config, Layers};
use epl_core::topology::cluster::{Axis, Cluster, ClusterError, Mesh, MeshRequest, MeshSizes, RankOrder};
use proptest::prelude::*;

const EPL: RankOrder = RankOrder::DataPipelineTensor;
const LIBAI: RankOrder = RankOrder::PipelineDataTensor;

fn mesh(data: usize, pipeline: usize, tensor: usize, expert: usize, order: RankOrder) -> Mesh {
    Mesh::new(MeshSizes::new(data, pipeline, tensor, expert).unwrap(), order)
}

/// The ranks of each replica of a mesh without tensor split, stage by stage.
fn replicas(mesh: &Mesh) -> Vec<Vec<usize>> {
    mesh.groups(Axis::Pipeline)
}

#[test]
fn epl_eight_devices_in_two_stages() {
    let mesh = mesh(4, 2, 1, 1, EPL);
    assert_eq!(replicas(&mesh), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(mesh.groups(Axis::Data), [[0, 2, 4, 6], [1, 3, 5, 7]]);
}

#[test]
fn epl_devices_across_workers_first() {
    let cluster = Cluster::new(vec![4, 4], 0).unwrap();
    let config = Config::new().with("cluster.device_place_prefer_intra_node", false).unwrap();
    let sizes = MeshSizes::new(4, 2, 1, 1).unwrap();
    let across = Mesh::over(&cluster, sizes, EPL, false).unwrap();
    assert_eq!(replicas(&across), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    // The members of a group stand in the order of their coordinates, not of their ranks.
    let all = Mesh::on_cluster(&cluster, &config).unwrap();
    assert_eq!(all.group(Axis::Data, 0), [0, 4, 1, 5, 2, 6, 3, 7]);
    assert_eq!(all.coordinate(4).data, 1);
    let inside = Mesh::over(&cluster, sizes, EPL, true).unwrap();
    assert_eq!(replicas(&inside), [[0, 1], [2, 3], [4, 5], [6, 7]]);
}

#[test]
fn libai_two_of_everything() {
    let mesh = mesh(2, 2, 2, 1, LIBAI);
    // Stage 0 is {0, 1, 2, 3}, stage 1 is {4, 5, 6, 7}.
    let stages: Vec<_> = (0..8).map(|rank| mesh.coordinate(rank).pipeline).collect();
    assert_eq!(stages, [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(mesh.groups(Axis::Data), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(mesh.groups(Axis::Tensor), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(mesh.groups(Axis::Pipeline), [[0, 4], [1, 5], [2, 6], [3, 7]]);
}

#[test]
fn libai_data_two_tensor_four() {
    for order in [EPL, LIBAI] {
        let mesh = mesh(2, 1, 4, 1, order);
        assert_eq!(mesh.groups(Axis::Tensor), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(mesh.groups(Axis::Data), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    }
}

#[test]
fn epl_two_of_everything() {
    let mesh = mesh(2, 2, 2, 1, EPL);
    assert_eq!(mesh.groups(Axis::Tensor), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(mesh.groups(Axis::Pipeline), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(mesh.groups(Axis::Data), [[0, 4], [1, 5], [2, 6], [3, 7]]);
}

#[test]
fn neighbouring_data_ranks_form_expert_groups() {
    let flat = mesh(4, 1, 1, 2, EPL);
    assert_eq!(flat.groups(Axis::Expert), [[0, 1], [2, 3]]);
    assert_eq!(flat.groups(Axis::ExpertData), [[0, 2], [1, 3]]);
    assert_eq!(flat.groups(Axis::Data), [[0, 1, 2, 3]]);
    // With a tensor axis below, neighbours on the data axis are two ranks apart.
    let split = mesh(4, 1, 2, 2, EPL);
    assert_eq!(split.groups(Axis::Expert), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(split.groups(Axis::ExpertData), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    // With EPL's order, a replica's stages stand between.
    let staged = mesh(4, 2, 1, 2, EPL);
    assert_eq!(staged.groups(Axis::Expert), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    let staged = mesh(4, 2, 1, 2, LIBAI);
    assert_eq!(staged.groups(Axis::Expert), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(staged.groups(Axis::ExpertData), [[0, 2], [1, 3], [4, 6], [5, 7]]);
}

#[test]
fn expert_alone_means_as_many_replicas() {
    let request = MeshRequest { expert: Some(2), ..MeshRequest::default() };
    let mesh = Mesh::new(request.resolve().unwrap(), EPL);
    assert_eq!((mesh.world_size(), mesh.size(Axis::Data), mesh.size(Axis::ExpertData)), (2, 2, 1));
    let config = Config::new().with("dist.expert_parallel_size", 2).unwrap();
    assert_eq!(Mesh::from_config(&config).unwrap(), mesh);
}

#[test]
fn rows_are_divided_over_as_many_replicas_as_there_are() {
    let with = |weights: &str| {
        let said = ["dist.data_parallel_size=2".to_string(), format!("io.row_weights={weights}")];
        Layers::new().command_line(said).unwrap().resolve().unwrap()
    };
    assert_eq!(Mesh::from_config(&with("2,1")).unwrap().row_weights().unwrap(), Some(&[2, 1][..]));
    assert!(Mesh::from_config(&with("2,1")).unwrap().to_string().contains(", rows 2 : 1\n"));
    for weights in ["2", "[]", "0,0", "1,1,1"] {
        let error = Mesh::from_config(&with(weights)).unwrap().row_weights().unwrap_err().to_string();
        assert!(error.contains("of 2 replicas; give a number for each"), "{error}");
    }
    let sliced = ["dist.data_parallel_size=2", "io.row_weights=2,1", "io.slicing=true"].map(String::from);
    let error = Layers::new().command_line(sliced).unwrap().resolve().unwrap_err().to_string();
    assert!(error.contains("io.row_weights") && error.contains("io.slicing = false"), "{error}");
}

#[test]
fn a_cluster_must_fit() {
    let cluster = Cluster::local(6).unwrap();
    let config = Config::new().with("dist.tensor_parallel_size", 4).unwrap();
    assert_eq!(
        Mesh::on_cluster(&cluster, &config).unwrap_err().to_string(),
        "6 ranks do not divide into replicas of pipeline 1 × tensor 4 = 4 ranks; \
         use 4 or 8 ranks, or sizes whose product divides 6"
    );
    let config = config.with("dist.data_parallel_size", 2).unwrap();
    assert_eq!(
        Mesh::on_cluster(&cluster, &config).unwrap_err(),
        ClusterError::RanksDisagree { data: 2, pipeline: 1, tensor: 4, product: 8, ranks: 6 }
    );
}

#[test]
fn the_drawing() {
    assert_eq!(
        mesh(4, 1, 2, 2, EPL).to_string(),
        "8 ranks = data 4 × pipeline 1 × tensor 2, expert 2 in data, order data,pipeline,tensor\n  \
         data 0  expert 0  [0 1]\n  \
         data 1  expert 1  [2 3]\n  \
         data 2  expert 0  [4 5]\n  \
         data 3  expert 1  [6 7]"
    );
    assert_eq!(
        mesh(2, 2, 2, 1, LIBAI).to_string(),
        "8 ranks = data 2 × pipeline 2 × tensor 2, expert 1 in data, order pipeline,data,tensor\n  \
         data 0  [0 1]  [4 5]\n  \
         data 1  [2 3]  [6 7]"
    );
    let large = mesh(64, 1, 16, 1, EPL).to_string();
    assert_eq!(large.lines().count(), 10);
    assert!(large.contains("\n  data 0  [0 1 2 3 4 5 6 7 … 8 more]\n"), "{large}");
    assert!(large.ends_with("\n  … 56 more replicas"), "{large}");
}

fn any_mesh() -> impl Strategy<Value = Mesh> {
    let sizes = (1usize..5, 1usize..4, 1usize..4, 1usize..4);
    (sizes, any::<bool>(), any::<bool>()).prop_map(|((expert_data, expert, pipeline, tensor), epl, inside)| {
        let sizes = MeshSizes::new(expert_data * expert, pipeline, tensor, expert).unwrap();
        // Two workers where the ranks allow it, of unequal size.
        let world = sizes.world();
        let workers = if world > 2 { vec![world / 3, world - world / 3] } else { vec![world] };
        let cluster = Cluster::new(workers, 0).unwrap();
        Mesh::over(&cluster, sizes, if epl { EPL } else { LIBAI }, inside).unwrap()
    })
}

proptest! {
    #[test]
    fn groups_are_what_differs_along_one_axis(mesh in any_mesh()) {
        for axis in Axis::ALL {
            let groups = mesh.groups(axis);
            let mut all = groups.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..mesh.world_size()).collect::<Vec<_>>(), "every rank is in one group");
            for (color, group) in groups.iter().enumerate() {
                prop_assert_eq!(group.len(), mesh.size(axis));
                for (place, rank) in group.iter().enumerate() {
                    let coordinate = mesh.coordinate(*rank);
                    prop_assert_eq!(coordinate.along(axis), place);
                    prop_assert_eq!(mesh.color(axis, *rank), color);
                    prop_assert_eq!(&mesh.group(axis, *rank), group);
                    let first = mesh.coordinate(group[0]);
                    for other in [Axis::Pipeline, Axis::Tensor, Axis::Expert, Axis::ExpertData] {
                        let inside = other == axis
                            || axis == Axis::Data && matches!(other, Axis::Expert | Axis::ExpertData);
                        prop_assert!(inside || first.along(other) == coordinate.along(other));
                    }
                }
            }
        }
    }

    #[test]
    fn coordinates_are_consistent(mesh in any_mesh()) {
        for rank in 0..mesh.world_size() {
            let at = mesh.coordinate(rank);
            prop_assert_eq!(at.data, at.expert_data * mesh.size(Axis::Expert) + at.expert);
            prop_assert_eq!(mesh.group(Axis::Tensor, rank)[at.tensor], rank);
        }
    }
}

#[test]
fn a_group_of_other_ranks_is_refused() {
    let config = Config::new().with("dist.data_parallel_size", 4).unwrap();
    let mesh = Mesh::from_config(&config).unwrap();
    let ended = local::run(2, |world| Epl::new(config.clone(), mesh.clone(), world, None).map(drop));
    let told = "a group of 2 ranks, for a cluster of 2 and a mesh of 4; make all three of the same ranks";
    assert_eq!(ended.unwrap_err().1.to_string(), told);
}
