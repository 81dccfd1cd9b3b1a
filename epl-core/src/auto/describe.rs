//! The cluster that is here, described by what it does: for plans of larger ones of its kind.

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::calibrate;
use super::rates::{copy, seconds_of};
use super::speeds::relative;
use super::together::{of_each, together};
use crate::config::AmpLevel;
use crate::cost::{DeviceClass, Machine, Network, NetworkLink};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::model::precision::HalfPrecision;
use crate::offload::is_host;
use crate::probe::measure::median;
use crate::system::memory;

/// How often a product is timed; the first does not count.
const REPEATS: usize = 6;
/// Bytes between which a link's bandwidth is measured.
const LARGE: [u64; 2] = [1 << 21, 1 << 23];

impl Epl {
    /// This world's devices and links, as measured: what large products and a device's memory reach, in the type in which segments
    /// compute, and what sums over ranks of a host, and over hosts, take. With larger counts it describes clusters that are not there.
    /// Devices whose speeds differ by a quarter are of different classes. Collective; it takes some seconds.
    ///
    /// With one host the link to others is not known: it is said to be that inside. With one rank on each host it is the other way round.
    ///
    /// ```no_run
    /// # use epl_core::{Config, launch};
    /// let machines = launch(&Config::new().with("cluster.ranks", 2)?, |epl| epl.describe())?;
    /// println!("{}", machines[0].to_toml()); // the same on all ranks
    /// # Ok::<_, epl_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When a device has memory of its own, and `offload.device_bytes` does not say how much; in a world of one rank, which has no
    /// links; where hosts have unlike numbers of ranks; when a peer fails.
    pub fn describe(&self) -> Result<Machine> {
        let world = self.world();
        if world.size() == 1 || world.is_dry() {
            return Err(Error::invalid(
                "one rank alone, or ranks that are only thought of, have no links that could be measured; give cluster.ranks, or start \
                 several processes",
            ));
        }
        let hosts = self.ranks_of_hosts();
        if let Some(other) = hosts.iter().find(|ranks| ranks.len() != hosts[0].len()) {
            return Err(Error::invalid(format!(
                "there are hosts of {} ranks and of {}, whose cards cannot be told from what they send; start as many on each",
                hosts[0].len(),
                other.len()
            )));
        }
        let device = self.place().device().clone().inner();
        let bytes = together(world, self.bytes(&device), "say how much memory it has")??;
        let network = Network::measured(self.cluster().hosts_of_ranks(), calibrate::calls(self)?);
        world.barrier()?;
        let measured = self.flops(&device).and_then(|flops| Ok((flops, 3.0 / copy(&device)?)));
        let (flops, bytes_per_s) = together(world, measured, "measure its device, and says why")??;
        Machine::measured(&self.devices([bytes, flops, bytes_per_s])?, self.links(&network))
    }

    /// The bytes of a rank's device.
    fn bytes(&self, device: &Device) -> Result<f64> {
        let ranks = self.cluster().ranks_on_host() as u64;
        let bytes = match (self.config().offload.device_bytes, is_host(device)) {
            (Some(bytes), _) => Some(bytes),
            (None, true) => memory().map(|bytes| bytes / ranks),
            (None, false) => None,
        };
        bytes.map(|bytes| bytes as f64).ok_or_else(|| {
            Error::invalid(format!("it is not known how many bytes {device:?} has; give them as offload.device_bytes"))
        })
    }

    /// Floating-point operations a second of a large product.
    fn flops(&self, device: &Device) -> Result<f64> {
        let width: usize = if is_host(device) { 1024 } else { 8192 };
        let amp = &self.config().amp;
        let dtype = if amp.level == AmpLevel::O1 { HalfPrecision::new(amp.dtype).dtype() } else { DType::F32 };
        let values = TensorData::ones::<f32, _>([width, width]).convert_dtype(dtype);
        let matrix = Tensor::<2>::from_data(values, (device, dtype));
        let mut seconds = Vec::new();
        for _ in 0..REPEATS {
            seconds.push(seconds_of(device, || {
                let _ = matrix.clone().matmul(matrix.clone());
                Ok(())
            })?);
        }
        Ok(2.0 * (width as f64).powi(3) / median(seconds[1..].to_vec()))
    }

    /// By host, the devices of its ranks: those that are nearly alike as the slowest of them. Collective.
    fn devices(&self, own: [f64; 3]) -> Result<Vec<Vec<DeviceClass>>> {
        let all = of_each(self.world(), own)?;
        let speeds = relative(&all.iter().map(|[_, flops, _]| 1.0 / flops).collect::<Vec<_>>());
        let device = |rank: usize| {
            let alike = || (0..speeds.len()).filter(|other| speeds[*other] == speeds[rank]);
            let least = |number: usize| alike().map(|other| all[other][number]).fold(f64::INFINITY, f64::min);
            DeviceClass { memory_gb: least(0) / 1e9, tflops: least(1) / 1e12, memory_gb_per_s: least(2) / 1e9 }
        };
        Ok(self.ranks_of_hosts().into_iter().map(|ranks| ranks.into_iter().map(device).collect()).collect())
    }

    fn ranks_of_hosts(&self) -> Vec<Vec<usize>> {
        let mut hosts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (rank, host) in self.cluster().hosts_of_ranks().into_iter().enumerate() {
            hosts.entry(host).or_default().push(rank);
        }
        hosts.into_values().collect()
    }

    /// Inside a host, and between hosts, of all cards of one together.
    fn links(&self, network: &Network) -> [NetworkLink; 2] {
        let hosts = self.ranks_of_hosts();
        let firsts: Vec<usize> = hosts.iter().map(|ranks| ranks[0]).collect();
        let inside = (hosts[0].len() > 1).then(|| network.link(&hosts[0], LARGE));
        // While it was measured as many groups left a host as it has ranks.
        let outside = (firsts.len() > 1)
            .then(|| network.link(&firsts, LARGE))
            .map(|link| NetworkLink { bandwidth: link.bandwidth * hosts[0].len() as f64, ..link });
        let nothing = NetworkLink { latency: 0.0, bandwidth: 0.0 };
        let known = inside.or(outside).unwrap_or(nothing);
        [inside.unwrap_or(known), outside.unwrap_or(known)]
    }
}
