//! How fast devices are beside the slowest of them, and how much memory they have.

/// What a device is, beside the slowest ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceTraits {
    /// How many times as fast as the slowest one it computes.
    pub compute: f64,
    /// How many times as fast it reads and writes memory, as copies and updates do.
    pub memory: f64,
    /// Bytes of it that may be used, where they are bounded.
    pub bytes: Option<u64>,
}

impl DeviceTraits {
    /// What devices are that work together on the same things: as the slowest and smallest of them.
    fn with(self, other: Self) -> Self {
        Self {
            compute: self.compute.min(other.compute),
            memory: self.memory.min(other.memory),
            bytes: self.bytes.into_iter().chain(other.bytes).min(),
        }
    }
}

/// The devices of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterDevices(Vec<DeviceTraits>);

impl ClusterDevices {
    /// So many that are alike.
    pub fn alike(count: usize, bytes: Option<u64>) -> Self {
        Self(vec![DeviceTraits { compute: 1.0, memory: 1.0, bytes }; count])
    }

    /// Those that are so many times as fast as the slowest one, by rank.
    pub fn of_speeds(speeds: &[f64]) -> Self {
        Self(speeds.iter().map(|speed| DeviceTraits { compute: *speed, memory: *speed, bytes: None }).collect())
    }

    /// Those of ranks, by rank.
    pub fn new(traits: Vec<DeviceTraits>) -> Self {
        Self(traits)
    }

    /// The same, each with so many bytes.
    pub fn with_bytes(mut self, bytes: Option<u64>) -> Self {
        self.0.iter_mut().for_each(|device| device.bytes = bytes);
        self
    }

    /// Whether all are.
    pub fn are_alike(&self) -> bool {
        self.0.iter().all(|device| *device == self.0[0])
    }

    /// Whether the memory of any is bounded.
    pub fn are_bounded(&self) -> bool {
        self.0.iter().any(|device| device.bytes.is_some())
    }

    /// What these ranks are together, as the slices of a layer.
    ///
    /// # Panics
    ///
    /// Without a rank.
    pub fn together(&self, ranks: &[usize]) -> DeviceTraits {
        ranks[1..].iter().fold(self.0[ranks[0]], |together, rank| together.with(self.0[*rank]))
    }

    /// The ranks that are left without the slowest devices, without the two slowest kinds, and so on; and without the smallest ones.
    pub fn better(&self) -> Vec<Vec<usize>> {
        let bytes = |device: &DeviceTraits| device.bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
        let mut all: Vec<Vec<usize>> = Vec::new();
        for of in [|device: &DeviceTraits| device.compute, bytes] {
            let mut steps: Vec<f64> = self.0.iter().map(of).collect();
            steps.sort_by(f64::total_cmp);
            steps.dedup();
            // Without the largest one nobody is left.
            for step in &steps[..steps.len() - 1] {
                let ranks: Vec<usize> = (0..self.0.len()).filter(|rank| of(&self.0[*rank]) > *step).collect();
                all.extend((!all.contains(&ranks)).then_some(ranks));
            }
        }
        all
    }

    /// These ranks alone, numbered anew.
    pub fn among(&self, ranks: &[usize]) -> Self {
        Self(ranks.iter().map(|rank| self.0[*rank]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_work_together_are_as_the_slowest_and_smallest() {
        let device = |compute: f64, bytes: u64| DeviceTraits { compute, memory: compute, bytes: Some(bytes) };
        let devices = ClusterDevices::new(vec![device(2.0, 32), device(1.0, 80), device(2.0, 16)]);
        assert_eq!(devices.together(&[0, 1]), device(1.0, 32));
        assert_eq!(devices.together(&[0]), device(2.0, 32));
        assert_eq!(devices.better(), [vec![0, 2], vec![0, 1], vec![1]]);
        assert_eq!(devices.among(&[2, 1]), ClusterDevices::new(vec![device(2.0, 16), device(1.0, 80)]));
        assert!(!devices.are_alike() && ClusterDevices::alike(3, None).better().is_empty());
    }
}
