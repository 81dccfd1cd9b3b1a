//! Clusters that are described, and need not be there.
//!
//! ```toml
//! [[host]]
//! count = 8
//! devices = [{ class = "fast", count = 8 }]
//! inside = { alpha_us = 8, gb_per_s = 300 }     # from one of its devices to another: latency, bytes a second and direction
//! outside = { alpha_us = 20, gb_per_s = 50 }    # from the host to another one: all its cards together
//!
//! [class.fast]
//! memory_gb = 80
//! tflops = 150            # that large products reach
//! memory_gb_per_s = 2000
//! ```
//!
//! Several `[[host]]`s, and several classes on one, are devices that are not alike.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::devices::{ClusterDevices, DeviceTraits};
use super::network::{Network, NetworkLink};
use crate::config::MOST_RANKS;
use crate::error::{Error, Result};
use crate::topology::cluster::Cluster;

/// Hosts of devices, and what connects them. Gigabytes are 10⁹ bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    host: Vec<HostKind>,
    class: BTreeMap<String, DeviceClass>,
}

/// Hosts that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostKind {
    count: usize,
    devices: Vec<DeviceCount>,
    inside: DescribedLink,
    outside: DescribedLink,
}

/// Devices of a host that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceCount {
    class: String,
    count: usize,
}

/// A link, in the units of a description.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedLink {
    /// Microseconds until something comes.
    pub alpha_us: f64,
    /// Gigabytes a second, in each direction.
    pub gb_per_s: f64,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceClass {
    /// Gigabytes of its memory.
    pub memory_gb: f64,
    /// 10¹² floating-point operations a second that large products reach.
    pub tflops: f64,
    /// Gigabytes a second to and from its memory.
    pub memory_gb_per_s: f64,
}

impl DeviceClass {
    /// The same to three digits, as no measure is more exact.
    fn rounded(self) -> Self {
        let Self { memory_gb, tflops, memory_gb_per_s } = self;
        Self { memory_gb: rounded(memory_gb), tflops: rounded(tflops), memory_gb_per_s: rounded(memory_gb_per_s) }
    }
}

impl From<NetworkLink> for DescribedLink {
    fn from(link: NetworkLink) -> Self {
        Self { alpha_us: rounded(link.latency * 1e6), gb_per_s: rounded(link.bandwidth / 1e9) }
    }
}

fn rounded(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

fn is_above_0(number: &f64) -> bool {
    number.is_finite() && *number > 0.0
}

impl HostKind {
    /// What is wrong with its numbers, and what to give.
    fn fault(&self) -> Option<String> {
        let above = |field: String, number: String| Some(format!("{field} = {number}; give a number above 0"));
        if self.count == 0 {
            return above("count".to_string(), "0".to_string());
        }
        if self.devices.is_empty() {
            return Some("devices = []; name a class and how many of it there are".to_string());
        }
        if let Some(devices) = self.devices.iter().find(|devices| devices.count == 0) {
            return above(format!("count of its devices of class {:?}", devices.class), "0".to_string());
        }
        for (name, link) in [("inside", &self.inside), ("outside", &self.outside)] {
            if !is_above_0(&link.gb_per_s) {
                return above(format!("{name}.gb_per_s"), link.gb_per_s.to_string());
            }
            if !link.alpha_us.is_finite() || link.alpha_us < 0.0 {
                return Some(format!("{name}.alpha_us = {}; give a number of at least 0", link.alpha_us));
            }
        }
        None
    }
}

impl Machine {
    /// Reads a description.
    ///
    /// # Errors
    ///
    /// What is wrong with it: a number that is not above 0, a class that is not described, or no host.
    pub fn from_toml(text: &str) -> Result<Self> {
        let machine: Self =
            toml::from_str(text).map_err(|error| Error::invalid(format!("a cluster's description: {error}")))?;
        machine.check()?;
        Ok(machine)
    }

    /// Reads the description in a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read; as [`from_toml`](Self::from_toml).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
        Self::from_toml(&text).map_err(|error| Error::file(path, error))
    }

    /// Hosts of devices that were measured, and links: inside a host, and to others.
    ///
    /// # Errors
    ///
    /// When something measured is no number above 0.
    pub(crate) fn measured(hosts: &[Vec<DeviceClass>], [inside, outside]: [NetworkLink; 2]) -> Result<Self> {
        let mut classes: Vec<DeviceClass> = Vec::new();
        let hosts: Vec<Vec<DeviceClass>> =
            hosts.iter().map(|host| host.iter().map(|device| device.rounded()).collect()).collect();
        for device in hosts.iter().flatten() {
            classes.extend((!classes.contains(device)).then_some(*device));
        }
        let name = |device: &DeviceClass| {
            let number = classes.iter().position(|class| class == device).unwrap_or(0);
            if classes.len() == 1 { "measured".to_string() } else { format!("measured{}", number + 1) }
        };
        let alike = |devices: &[DeviceClass]| DeviceCount { class: name(&devices[0]), count: devices.len() };
        let kind = |hosts: &[Vec<DeviceClass>]| HostKind {
            count: hosts.len(),
            devices: hosts[0].chunk_by(|one, other| one == other).map(alike).collect(),
            inside: inside.into(),
            outside: outside.into(),
        };
        let host = hosts.chunk_by(|one, other| one == other).map(kind).collect();
        let machine = Self { host, class: classes.iter().map(|class| (name(class), *class)).collect() };
        machine.check()?;
        Ok(machine)
    }

    /// The description, as a file has it.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(format!("a cluster's description: {what}")));
        if self.host.is_empty() {
            return wrong("there is no [[host]]; add one".to_string());
        }
        let mut classes: Vec<&str> = Vec::new();
        for (number, host) in self.host.iter().enumerate() {
            if let Some(fault) = host.fault() {
                return wrong(format!("[[host]] {}: {fault}", number + 1));
            }
            classes.extend(host.devices.iter().map(|devices| &*devices.class));
        }
        let of_host = |host: &HostKind| {
            let devices = host.devices.iter().map(|devices| devices.count).try_fold(0, usize::checked_add);
            devices?.checked_mul(host.count)
        };
        let ranks = self.host.iter().map(of_host).try_fold(0_usize, |sum, ranks| sum.checked_add(ranks?));
        if ranks.is_none_or(|ranks| ranks > MOST_RANKS) {
            let told = ranks.map_or("as many devices as no number has".to_string(), |ranks| format!("{ranks} devices"));
            return wrong(format!("there are {told}, more than {MOST_RANKS}; give smaller counts"));
        }
        if let Some(name) = classes.iter().find(|name| !self.class.contains_key(**name)) {
            return wrong(format!(
                "there is a device of class {name:?} and no [class.{name}]; add it, or name another class"
            ));
        }
        if let Some(name) = self.class.keys().find(|name| !classes.contains(&name.as_str())) {
            return wrong(format!(
                "no host has a device of [class.{name}]; name it in a host's devices, or leave it out"
            ));
        }
        for (name, DeviceClass { memory_gb, tflops, memory_gb_per_s }) in &self.class {
            let numbers = [("memory_gb", memory_gb), ("tflops", tflops), ("memory_gb_per_s", memory_gb_per_s)];
            if let Some((field, number)) = numbers.into_iter().find(|(_, number)| !is_above_0(number)) {
                return wrong(format!("{field} = {number} of [class.{name}]; give a number above 0"));
            }
        }
        Ok(())
    }

    /// All hosts, one by one.
    fn hosts(&self) -> impl Iterator<Item = &HostKind> {
        self.host.iter().flat_map(|host| std::iter::repeat_n(host, host.count))
    }

    /// The classes of all devices, by rank.
    fn classes(&self) -> impl Iterator<Item = &DeviceClass> {
        let devices = self.hosts().flat_map(|host| &host.devices);
        devices.flat_map(|devices| std::iter::repeat_n(&self.class[&devices.class], devices.count))
    }

    /// Its devices: a worker for each host.
    ///
    /// # Errors
    ///
    /// More ranks than a mesh can have.
    pub fn cluster(&self) -> Result<Cluster> {
        let ranks = |host: &HostKind| host.devices.iter().map(|devices| devices.count).sum();
        Ok(Cluster::new(self.hosts().map(ranks).collect(), 0)?)
    }

    /// 10¹² operations a second, and gigabytes a second of memory, that each of its devices reaches at least.
    pub(crate) fn least(&self) -> [f64; 2] {
        let least = |of: fn(&DeviceClass) -> f64| self.classes().map(of).fold(f64::INFINITY, f64::min);
        [least(|class| class.tflops), least(|class| class.memory_gb_per_s)]
    }

    /// Its devices, beside the slowest of them.
    pub(crate) fn devices(&self) -> ClusterDevices {
        let [tflops, memory_gb_per_s] = self.least();
        let traits = |class: &DeviceClass| DeviceTraits {
            compute: class.tflops / tflops,
            memory: class.memory_gb_per_s / memory_gb_per_s,
            bytes: Some((class.memory_gb * 1e9) as u64),
        };
        ClusterDevices::new(self.classes().map(traits).collect())
    }

    /// What collectives take on its links: between devices of a host, and from one host to another.
    ///
    /// # Errors
    ///
    /// As [`cluster`](Self::cluster).
    pub fn network(&self) -> Result<Network> {
        let link = |link: DescribedLink| NetworkLink { latency: link.alpha_us * 1e-6, bandwidth: link.gb_per_s * 1e9 };
        let links = self.hosts().map(|host| [link(host.inside), link(host.outside)]).collect();
        Ok(Network::of_hosts(self.cluster()?.hosts_of_ranks(), links))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIBED: &str = r#"
        [[host]]
        count = 2
        devices = [{ class = "fast", count = 4 }]
        inside = { alpha_us = 8, gb_per_s = 300 }
        outside = { alpha_us = 20, gb_per_s = 50 }
        [class.fast]
        memory_gb = 80
        tflops = 150
        memory_gb_per_s = 2000
    "#;

    #[test]
    fn a_description_is_read_and_its_faults_are_told() {
        let machine = Machine::from_toml(DESCRIBED).unwrap();
        let cluster = machine.cluster().unwrap();
        assert_eq!((cluster.world_size(), cluster.worker_num(), cluster.host_num()), (8, 2, 2));
        assert_eq!(machine.least(), [150.0, 2000.0]);
        assert!(machine.devices().are_alike());
        // From one device to another of its host, and of the other one, whose four pairs share the cards.
        let network = machine.network().unwrap();
        let seconds = |to: usize| network.seconds(epl_comm::Operation::Send, 300_000_000, &[0, to]);
        assert!((seconds(1) - 1.008e-3).abs() < 1e-9 && (seconds(4) - 2.402e-2).abs() < 1e-9, "{}", seconds(4));
        for (from, to, told) in [
            ("count = 2", "count = 0", "[[host]] 1: count = 0; give a number above 0"),
            ("count = 4 }", "count = 0 }", "[[host]] 1: count of its devices of class \"fast\" = 0"),
            ("gb_per_s = 50", "gb_per_s = 0", "[[host]] 1: outside.gb_per_s = 0; give a number above 0"),
            ("count = 2", "count = 4000000000000000000", "more than"),
            ("tflops = 150", "tflops = nan", "tflops = NaN of [class.fast]"),
            ("devices = [{ class = \"fast\", count = 4 }]", "devices = []", "devices = []; name a class"),
            ("tflops = 150", "tflops = 0", "tflops = 0 of [class.fast]; give a number above 0"),
            ("class = \"fast\"", "class = \"slow\"", "no [class.slow]"),
            (
                "[class.fast]",
                "[class.none]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n[class.fast]",
                "has a device of [class.none]",
            ),
            ("alpha_us = 8", "alpha_us = -8", "inside.alpha_us = -8; give a number of at least 0"),
            ("memory_gb = 80", "memory = 80", "memory"),
        ] {
            let error = Machine::from_toml(&DESCRIBED.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        assert!(Machine::from_toml("host = []\nclass = {}").unwrap_err().to_string().contains("no [[host]]"));
    }

    #[test]
    fn what_was_measured_is_described() {
        let device = |tflops: f64| DeviceClass { memory_gb: 12.3456, tflops, memory_gb_per_s: 9.87 };
        let link = |latency: f64| NetworkLink { latency, bandwidth: 1.23456e9 };
        let hosts = [vec![device(2.0); 2], vec![device(2.0); 2], vec![device(2.0), device(1.0)]];
        let machine = Machine::measured(&hosts, [link(1.5e-6), link(2e-5)]).unwrap();
        let text = machine.to_toml();
        assert_eq!(Machine::from_toml(&text).unwrap(), machine, "{text}");
        assert!(text.contains("alpha_us = 1.5") && text.contains("gb_per_s = 1.23\n"), "{text}");
        assert_eq!((machine.host.len(), machine.host[0].count, machine.class.len()), (2, 2, 2), "{text}");
        assert_eq!(machine.class["measured2"].tflops, 1.0);
        let alike = Machine::measured(&hosts[..2], [link(0.0), link(0.0)]).unwrap();
        assert_eq!(alike.class.keys().collect::<Vec<_>>(), ["measured"]);
        let nothing = Machine::measured(&[vec![device(f64::NAN)]], [link(0.0), link(0.0)]).unwrap_err();
        assert!(nothing.to_string().contains("tflops = NaN"), "{nothing}");
    }

    #[test]
    fn hosts_and_devices_need_not_be_alike() {
        let slow = "
            [[host]]
            count = 1
            devices = [{ class = \"fast\", count = 1 }, { class = \"slow\", count = 2 }]
            inside = { alpha_us = 16, gb_per_s = 100 }
            outside = { alpha_us = 20, gb_per_s = 10 }
            [class.slow]
            memory_gb = 32
            tflops = 50
            memory_gb_per_s = 1000
        ";
        let machine = Machine::from_toml(&format!("{DESCRIBED}{slow}")).unwrap();
        let cluster = machine.cluster().unwrap();
        assert_eq!((cluster.world_size(), cluster.host_num(), cluster.ranks_of(2)), (11, 3, 8..11));
        let devices = machine.devices();
        let device = |compute: f64, memory: f64, bytes: u64| DeviceTraits { compute, memory, bytes: Some(bytes) };
        assert_eq!(devices.together(&[8]), device(3.0, 2.0, 80_000_000_000));
        assert_eq!(devices.together(&[8, 9]), device(1.0, 1.0, 32_000_000_000));
        assert_eq!(machine.least(), [50.0, 1000.0]);
        // Between hosts as fast as the slower one's cards, of which each of its three pairs has a third.
        let network = machine.network().unwrap();
        let seconds = |from: usize, to: usize| network.seconds(epl_comm::Operation::Send, 100_000_000, &[from, to]);
        assert!((seconds(0, 1) - (8e-6 + 0.1 / 300.0)).abs() < 1e-9, "{}", seconds(0, 1));
        assert!((seconds(9, 10) - 1.016e-3).abs() < 1e-9, "{}", seconds(9, 10));
        assert!((seconds(0, 10) - (20e-6 + 0.03)).abs() < 1e-9, "{}", seconds(0, 10));
    }
}
