//! Which device each rank of a worker drives.

use burn::tensor::Device;

use crate::config::Config;
use crate::error::{Error, Result};

/// The devices of this worker's ranks, in their order.
pub(super) struct Devices {
    devices: Vec<Device>,
    /// Their numbers, where they are GPUs.
    gpus: Option<Vec<usize>>,
}

/// How a worker's ranks take devices.
#[derive(Clone, Copy)]
pub(super) struct Taking {
    /// How many ranks the worker has.
    pub(super) ranks: usize,
    /// The first device, as other workers of the host drive those before it.
    pub(super) first: usize,
    /// Whether several ranks may drive one device.
    pub(super) share: bool,
}

impl Devices {
    /// Burn's default device, or one GPU after the other where that is one.
    pub(super) fn of_worker(config: &Config, taking: Taking) -> Result<Self> {
        let visible = &config.cluster.run_visible_devices;
        let default = Device::default();
        match gpus(&default) {
            Some(all) => {
                let chosen = choose(all.len(), visible, taking)?;
                let devices = chosen.iter().map(|index| all[*index].clone()).collect();
                Ok(Self { devices, gpus: Some(chosen) })
            }
            None if visible.is_empty() => Ok(Self { devices: vec![default; taking.ranks], gpus: None }),
            None => Err(Error::invalid(format!(
                "cluster.run_visible_devices = {visible:?} chooses among GPUs, and this program runs on {default:?}; leave \
                     it out, or build with `--features cuda`"
            ))),
        }
    }

    /// The numbers of the GPUs; none on the host.
    pub(super) fn gpus(&self) -> Option<&[usize]> {
        self.gpus.as_deref()
    }

    /// Whether every rank has a GPU of its own.
    pub(super) fn are_gpus_apart(&self) -> bool {
        self.gpus.as_ref().is_some_and(|gpus| (1..gpus.len()).all(|at| !gpus[..at].contains(&gpus[at])))
    }

    /// The device of one of the worker's ranks, with gradients.
    pub(super) fn of(&self, rank: usize) -> Device {
        self.devices[rank].clone().autodiff()
    }
}

/// All GPUs of the kind of a device; none where it is none.
#[cfg(feature = "cuda")]
fn gpus(device: &Device) -> Option<Vec<Device>> {
    use burn::tensor::DeviceType;
    (*device == Device::cuda(0)).then(|| Device::enumerate(DeviceType::Cuda).into_vec())
}

#[cfg(not(feature = "cuda"))]
fn gpus(_device: &Device) -> Option<Vec<Device>> {
    None
}

/// Which of so many devices the ranks drive: those that are visible, one after the other.
fn choose(devices: usize, visible: &str, taking: Taking) -> Result<Vec<usize>> {
    let Taking { ranks, first, share } = taking;
    let seen: Vec<usize> = match visible {
        "" => (0..devices).collect(),
        // An option is checked when it is set.
        list => list.split(',').filter_map(|number| number.trim().parse().ok()).collect(),
    };
    if let Some(missing) = seen.iter().find(|device| **device >= devices) {
        return Err(Error::invalid(format!(
            "cluster.run_visible_devices = {visible:?}, and there is no device {missing}: this worker sees {devices}, \
             numbered from 0"
        )));
    }
    if seen.is_empty() {
        return Err(Error::invalid(
            "this worker sees no GPU; look at the driver, or set BURN_DEVICE=flex for the host",
        ));
    }
    if first + ranks > seen.len() && !share {
        return Err(Error::invalid(format!(
            "{ranks} ranks of this worker need a GPU each, from number {first} on, and it sees {}; start fewer ranks, or more \
             workers on other hosts; or, if what it sees is its own, list just that in CUDA_VISIBLE_DEVICES",
            seen.len()
        )));
    }
    Ok((first..first + ranks).map(|rank| seen[rank % seen.len()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(devices: usize, visible: &str, ranks: usize, first: usize, share: bool) -> Result<Vec<usize>, String> {
        choose(devices, visible, Taking { ranks, first, share }).map_err(|error| error.to_string())
    }

    #[test]
    fn ranks_take_one_visible_device_after_the_other() {
        assert_eq!(chosen(8, "", 4, 0, false), Ok(vec![0, 1, 2, 3]));
        assert_eq!(chosen(8, "", 2, 4, false), Ok(vec![4, 5]));
        assert_eq!(chosen(8, "0,4,7", 2, 1, false), Ok(vec![4, 7]));
        assert_eq!(chosen(1, "", 2, 0, true), Ok(vec![0, 0]), "threads of one process may share one");
    }

    #[test]
    fn what_is_not_there_is_said_with_both_numbers() {
        for (devices, visible, ranks, share, text) in [
            (2, "0,2", 1, true, "there is no device 2: this worker sees 2"),
            (2, "", 3, false, "3 ranks of this worker need a GPU each, from number 0 on, and it sees 2"),
            (0, "", 1, true, "sees no GPU"),
        ] {
            let error = chosen(devices, visible, ranks, 0, share).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn the_host_is_one_device_for_all() {
        let taking = Taking { ranks: 2, first: 0, share: true };
        assert!(Devices::of_worker(&Config::new(), taking).is_ok_and(|devices| devices.devices.len() == 2));
        let config = Config::new().with("cluster.run_visible_devices", "0,1").unwrap();
        let error = Devices::of_worker(&config, taking).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("chooses among GPUs")));
    }
}
