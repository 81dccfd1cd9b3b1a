//! Where a part of the model goes: a device, the rank's context and the part's path.

use core::ops::Deref;
use std::hash::{DefaultHasher, Hash, Hasher};

use burn::module::{Param, ParamId};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use epl_comm::shard_range;

use crate::cluster::Axis;
use crate::context::{Context, Sharding};

/// Where a part of the model goes.
///
/// It derefs to Burn's [`Device`], so that it can be handed to the `init` of any Burn layer; the layers of
/// `epl-modules` also read the groups and the path from it.
#[derive(Clone, Debug)]
pub struct Place {
    device: Device,
    context: Context,
    path: String,
}

impl Deref for Place {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl Place {
    /// The root of a model on a device.
    pub fn new(device: Device, context: Context) -> Self {
        Self { device, context, path: String::new() }
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device of this part.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The path of this part, such as `encoder.layers.0`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The place of a part of this part.
    pub fn child(&self, name: &str) -> Place {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Place { path, ..self.clone() }
    }

    /// The identity of a layer for random masks: the same in every layout, different for any two layers.
    pub fn layer_key(&self, kind: &str) -> u64 {
        let path = format!("{}/{kind}", self.path);
        let number = self.context.layer_number(&path);
        stable_hash(&(path, number))
    }

    /// A number for the path of this part: the same in every layout and at every call.
    pub fn path_key(&self) -> u64 {
        stable_hash(&("path", &self.path))
    }

    /// A parameter that every rank holds whole.
    ///
    /// Its values come from (seed, path in the module), whatever the layout.
    pub fn param<const D: usize>(&self, shape: [usize; D], initializer: Initializer) -> Param<Tensor<D>> {
        self.split_param(shape, &[], initializer)
    }

    /// A parameter of which this rank holds a slice: every `(axis, dim)` cuts `dim` over the group of `axis`.
    ///
    /// It is drawn whole from (seed, path in the module) and cut at once, by [`shard_range`]. `shape` is the
    /// whole shape. Fans are read from the last two dims, or from the only one.
    pub fn split_param<const D: usize>(
        &self,
        shape: [usize; D],
        cuts: &[(Axis, usize)],
        initializer: Initializer,
    ) -> Param<Tensor<D>> {
        let fans = match D {
            0 => (1, 1),
            1 => (shape[0], shape[0]),
            _ => (shape[D - 2], shape[D - 1]),
        };
        self.split_param_with_fans(shape, cuts, initializer, fans)
    }

    /// [`split_param`](Self::split_param) with the fan-in and fan-out that the initializer is to assume.
    pub fn split_param_with_fans<const D: usize>(
        &self,
        shape: [usize; D],
        cuts: &[(Axis, usize)],
        initializer: Initializer,
        (fan_in, fan_out): (usize, usize),
    ) -> Param<Tensor<D>> {
        if let Some((axis, _)) = cuts.iter().find(|(axis, _)| !matches!(axis, Axis::Tensor | Axis::Expert)) {
            epl_comm::unwind(epl_comm::Error::invalid(format!(
                "a parameter of `{}` is to be divided over the {axis} axis; layers divide over tensor or expert",
                self.path
            )));
        }
        let mut ranges = shape.map(|extent| 0..extent);
        for &(axis, dim) in cuts {
            let group = self.context.axis(axis);
            ranges[dim] = shard_range(shape[dim], group.size(), group.rank());
        }
        let mine = ranges.clone().map(|range| range.len());
        let whole_shape = shape;
        let draw = move |device: &Device, require_grad: bool| {
            let plain = device.clone().without_autodiff();
            let whole = initializer.init_with::<D, _>(whole_shape, Some(fan_in), Some(fan_out), &plain).into_value();
            let whole = whole.inner();
            // Through the host, so that the slice does not keep the whole alive.
            let data = if mine == whole_shape { whole.into_data() } else { whole.slice(ranges).into_data() };
            Tensor::from_data(data, device).set_require_grad(require_grad)
        };
        let id = ParamId::new();
        let sharding = Sharding { path: self.path.clone(), shape: shape.to_vec(), cuts: cuts.to_vec() };
        self.context.declare_sharding(id, sharding);
        Param::uninitialized(id, draw, self.device.clone(), true, mine.into())
    }
}

/// A hash that does not change between runs, processes or ranks.
pub(crate) fn stable_hash(value: &impl Hash) -> u64 {
    // `DefaultHasher::new()` has fixed keys.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
