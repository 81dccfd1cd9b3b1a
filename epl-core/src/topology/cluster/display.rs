//! Draws a mesh.

use std::fmt;

use super::axis::Axis;
use super::mesh::Mesh;

/// Rows and columns beyond these are left out of the drawing.
const ROWS: usize = 8;
const COLUMNS: usize = 8;

/// One row a replica, one column a stage, the ranks of a tensor group in brackets:
///
/// ```text
/// 8 ranks = data 4 × pipeline 1 × tensor 2, expert 2 in data, order data,pipeline,tensor
///   data 0  expert 0  [0 1]
///   data 1  expert 1  [2 3]
///   data 2  expert 0  [4 5]
///   data 3  expert 1  [6 7]
/// ```
///
/// Where stages have different widths, the ranks of a stage in brackets:
///
/// ```text
/// 6 ranks = 2 replicas × 2 stages of data 4 × tensor 1, data 2 × tensor 1, order data,pipeline,tensor
///   replica 0  [0 1]  [2]
///   replica 1  [3 4]  [5]
/// ```
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_bridged() {
            return bridged(self, f);
        }
        let [data, pipeline, tensor, expert] =
            [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Expert].map(|axis| self.size(axis));
        let world = self.world_size();
        write!(f, "{world} ranks = data {data} × pipeline {pipeline} × tensor {tensor}, ")?;
        write!(f, "expert {expert} in data, order {}", self.order())?;
        if let Ok(Some(weights)) = self.row_weights() {
            let weights: Vec<String> = weights.iter().take(ROWS).map(usize::to_string).collect();
            let more = if data > ROWS { " : …" } else { "" };
            write!(f, ", rows {}{more}", weights.join(" : "))?;
        }
        let first = self.group(Axis::Pipeline, self.group(Axis::Data, self.first())[0]);
        let columns: Vec<_> = first.iter().take(COLUMNS).map(|rank| self.group(Axis::Data, *rank)).collect();
        for replica in 0..data.min(ROWS) {
            write!(f, "\n  data {replica}")?;
            if expert > 1 {
                write!(f, "  expert {}", self.coordinate(columns[0][replica]).expert)?;
            }
            for column in &columns {
                write!(f, "  [{}]", listed(&self.group(Axis::Tensor, column[replica])))?;
            }
            if pipeline > COLUMNS {
                write!(f, "  … {} more stages", pipeline - COLUMNS)?;
            }
        }
        if data > ROWS {
            write!(f, "\n  … {} more replicas", data - ROWS)?;
        }
        Ok(())
    }
}

fn bridged(mesh: &Mesh, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (replicas, widths) = (mesh.replicas(), mesh.widths());
    write!(f, "{} ranks = {replicas} replica{} × ", mesh.world_size(), if replicas == 1 { "" } else { "s" })?;
    let sizes = (0..mesh.stages()).map(|stage| mesh.sizes_in(stage));
    let sizes = sizes.map(|sizes| format!("data {} × tensor {}", sizes.along(Axis::Data), sizes.along(Axis::Tensor)));
    write!(f, "{} stages of {}, order {}", widths.len(), sizes.collect::<Vec<_>>().join(", "), mesh.order())?;
    for (replica, ranks) in mesh.groups(Axis::Pipeline).iter().take(ROWS).enumerate() {
        write!(f, "\n  replica {replica}")?;
        for width in widths.iter().take(COLUMNS) {
            write!(f, "  [{}]", listed(&ranks[width.members.clone()]))?;
        }
        if widths.len() > COLUMNS {
            write!(f, "  … {} more stages", widths.len() - COLUMNS)?;
        }
    }
    if replicas > ROWS {
        write!(f, "\n  … {} more replicas", replicas - ROWS)?;
    }
    Ok(())
}

fn listed(ranks: &[usize]) -> String {
    let mut shown: Vec<_> = ranks.iter().take(COLUMNS).map(usize::to_string).collect();
    if ranks.len() > COLUMNS {
        shown.push(format!("… {} more", ranks.len() - COLUMNS));
    }
    shown.join(" ")
}
