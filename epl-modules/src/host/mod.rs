//! Loops and products over tensors that lie in host memory: the fast path of the fused layers.
//!
//! Burn runs a softmax or a norm as five to ten passes over memory, and as many nodes of the graph. On Flex a
//! tensor *is* host memory, so a layer may run the same formula as one pass over its rows. Every other backend
//! takes the layer's second path, in tensor operations; the tests compare both.
//!
//! The order of additions depends on the sizes alone: sixteen lanes along a row, blocks of rows of a fixed size.
//! It does not depend on the number of threads, nor, but for products, on the vector width of the processor.
//!
//! | file | what |
//! |---|---|
//! | `kernel` | a product on one thread, of f32, f64, f16 and bf16 |
//! | `real` | f32 and f64, and their functions |
//! | `unwritten` | memory that has no values yet |
//! | `rows` | sums along rows; tasks of some rows |
//! | `matrix` | matrices to read, and to write |
//! | `transpose` | a matrix row by row whose columns lie behind each other |
//! | `product` | products of matrices |
//! | `scatter` | rows added up by index, and back |
//! | `view` | the elements of a tensor, to read or to overwrite |

mod kernel;
mod real;
pub(crate) mod unwritten;
mod rows;
pub(crate) mod matrix;
pub(crate) mod transpose;
pub(crate) mod product;
mod scatter;
mod view;

pub(crate) use kernel::{ProductElement, ProductType, product_type};
pub(crate) use real::{HostFloat, Real, host_float};
pub(crate) use rows::{
    both, column_sums, dot, each, for_blocks, for_blocks2, map_blocks, map_rows, map_sum, max_of, new_blocks,
    new_blocks2, rows_a_task, sum_blocks, sum_neighbours, sum_of, zeroed,
};
pub(crate) use scatter::{scatter_add, scatter_add_backward};
pub(crate) use view::{Owned, View, over_first, tensor};
