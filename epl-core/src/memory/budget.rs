//! Whether an estimate fits a device, by how much not, and with which setting it would.

use std::fmt;

use super::display::Amount;
use super::estimate::MemoryEstimate;
use super::kind::Tier;
use crate::config::{OffloadLevel, ZeroLevel};

/// A setting by which less memory of the device may be needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `gradient_checkpoint.type = auto`.
    Recompute,
    /// `zero.level`.
    Zero(ZeroLevel),
    /// `offload.level`.
    Offload(OffloadLevel),
    /// So many replicas.
    Replicas(u64),
}

/// Settings with which it would fit, and what would be needed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fits {
    /// Together.
    pub settings: Vec<Setting>,
    /// The bytes of the device.
    pub needed: u64,
}

/// More is needed than there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Bytes of the device.
    pub budget: u64,
    /// Bytes that are needed at the peak of a step.
    pub needed: u64,
    /// Whether something is not known, so that it may be more.
    pub at_least: bool,
    /// The first settings that were found to fit; none: none was.
    pub fits: Option<Fits>,
}

/// The most replicas that are proposed.
const MOST_REPLICAS: u64 = 1 << 20;

/// Checks whether an estimate fits into so many bytes of a device.
///
/// `with` is the estimate with other settings, none where they cannot be. They are tried in this order: recomputation,
/// ZeRO v0 to v3, offload v0 and v1, each alone; then together; then more replicas than the `replicas` that there are, by
/// the settings as they are, and under v3.
///
/// ```
/// # use epl_core::{config::ZeroLevel, memory::{MemoryInputs, ParamMemory, Setting, StoredActivations, check}};
/// // A million parameters in f32 on each of four replicas, with their gradients and Adam's two moments.
/// let mut inputs = MemoryInputs::new(vec![ParamMemory::new(1_000_000).with_replicas(4)]);
/// inputs.activations = StoredActivations::formula(1_000_000, "eight rows");
/// let with = |settings: &[Setting]| inputs.with(settings).map(|inputs| inputs.estimate());
/// let over = check(&inputs.estimate(), 25_000_000, inputs.replicas(), with).unwrap_err();
/// assert!(over.needed > over.budget && !over.at_least);
/// assert_eq!(over.fits.expect("dividing the moments is enough").settings, [Setting::Zero(ZeroLevel::V0)]);
/// ```
///
/// # Errors
///
/// By how much it does not fit, and the first settings that would.
pub fn check(
    estimate: &MemoryEstimate,
    budget: u64,
    replicas: u64,
    with: impl Fn(&[Setting]) -> Option<MemoryEstimate>,
) -> Result<(), OverBudget> {
    let needed = estimate.peak(Tier::Device);
    if needed <= budget {
        return Ok(());
    }
    let at_least = estimate.unknown().any(|line| line.tier == Tier::Device);
    let needs = |settings: &[Setting]| with(settings).map(|estimate| estimate.peak(Tier::Device));
    let fits = |settings: Vec<Setting>| {
        needs(&settings).filter(|needed| *needed <= budget).map(|needed| Fits { settings, needed })
    };
    let single = [Setting::Recompute]
        .into_iter()
        .chain([ZeroLevel::V0, ZeroLevel::V1, ZeroLevel::V2, ZeroLevel::V3].map(Setting::Zero))
        .chain([OffloadLevel::V0, OffloadLevel::V1].map(Setting::Offload));
    let single: Vec<Setting> = single.collect();
    let pairs = (0..single.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    let together = pairs.map(|(first, second)| vec![single[first], single[second]]);
    let more = |rest: &[Setting]| {
        let with = |factor: u64| [rest, &[Setting::Replicas(replicas * factor)]].concat();
        least(MOST_REPLICAS / replicas.max(1), |factor| fits(with(factor)).is_some())
            .and_then(|factor| fits(with(factor)))
    };
    let v3 = Setting::Zero(ZeroLevel::V3);
    let tried = single.iter().map(|setting| vec![*setting]).chain(together);
    let fits = tried.filter_map(fits).next().or_else(|| more(&[])).or_else(|| more(&[v3]));
    let fits = fits.or_else(|| more(&[v3, Setting::Offload(OffloadLevel::V0)]));
    Err(OverBudget { budget, needed, at_least, fits })
}

/// The least factor above 1 that holds, of those up to `most`, if a larger one always holds where a smaller one does.
fn least(most: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (1, 2);
    while !holds(high) {
        if high >= most {
            return None;
        }
        (low, high) = (high, (high * 2).min(most));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(high)
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recompute => f.write_str("gradient_checkpoint.type = auto"),
            Self::Zero(level) => write!(f, "zero.level = {level}"),
            Self::Offload(level) => write!(f, "offload.level = {level}"),
            Self::Replicas(replicas) => write!(f, "{replicas} replicas (dist.data_parallel_size)"),
        }
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, needed, at_least, fits } = self;
        let least = if *at_least { "at least " } else { "" };
        write!(
            f,
            "a step needs {least}{} of the device, and there are {}: {least}{} too few",
            Amount(*needed),
            Amount(*budget),
            Amount(needed - budget)
        )?;
        match fits {
            None => f.write_str("; no setting and no number of replicas was found with which it fits"),
            Some(Fits { settings, needed }) => {
                let settings: Vec<String> = settings.iter().map(Setting::to_string).collect();
                write!(f, "; with {} it needs {least}{}", settings.join(" and "), Amount(*needed))
            }
        }
    }
}

impl std::error::Error for OverBudget {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryInputs, ParamMemory, StoredActivations};

    const GB: u64 = 1_000_000_000;

    /// 10⁹ parameters on 8 ranks in 10 segments; activations of 6 GB, of which 1 GB is left where segments are run again.
    fn inputs() -> MemoryInputs {
        let parameters = vec![ParamMemory::new(100_000_000).with_replicas(8); 10];
        MemoryInputs {
            bucket: GB,
            segment: 4 * GB / 10,
            two_segments: 8 * GB / 10,
            activations: StoredActivations::formula(6 * GB, ""),
            recomputed: Some(StoredActivations::formula(GB, "")),
            ..MemoryInputs::new(parameters)
        }
    }

    fn over(budget: u64) -> OverBudget {
        let inputs = inputs();
        let with = |settings: &[Setting]| inputs.with(settings).map(|inputs| inputs.estimate());
        check(&inputs.estimate(), budget, 8, with).unwrap_err()
    }

    fn settings(budget: u64) -> String {
        let fits = over(budget).fits.unwrap();
        assert!(fits.needed <= budget);
        fits.settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_fits_is_no_error() {
        let inputs = inputs();
        // 12 bytes a parameter, a bucket, and activations, which are more than gradients.
        assert_eq!(inputs.estimate().peak(Tier::Device), 19 * GB);
        assert_eq!(check(&inputs.estimate(), 19 * GB, 8, |_| None), Ok(()));
    }

    #[test]
    fn the_first_setting_that_fits_is_named() {
        assert_eq!(settings(18 * GB), "gradient_checkpoint.type = auto");
        assert_eq!(settings(16 * GB), "zero.level = v0");
        assert_eq!(settings(6 * GB), "zero.level = v3");
        // Which runs segments again by itself, and refuses to be asked for it.
        assert_eq!(settings(4 * GB), "offload.level = v0");
        for other in [Setting::Zero(ZeroLevel::V3), Setting::Offload(OffloadLevel::V0)] {
            for both in [[Setting::Recompute, other], [other, Setting::Recompute]] {
                assert!(inputs().with(&both).is_none(), "{both:?}");
            }
            assert!(
                inputs().with(&[other]).is_some_and(|other| other.with(&[Setting::Recompute]).is_none()),
                "{other:?}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let message = over(16 * GB).to_string();
        assert!(message.contains("needs 19000000000 bytes (19.00 GB, 17.70 GiB)"), "{message}");
        assert!(message.contains("3000000000 bytes (3.00 GB, 2.79 GiB) too few; with zero.level = v0"), "{message}");
        assert!(over(1).to_string().ends_with("no number of replicas was found with which it fits"), "{}", over(1));
    }

    #[test]
    fn the_least_number_of_replicas_is_found() {
        assert_eq!(least(100, |factor| factor >= 37), Some(37));
        assert_eq!(least(100, |factor| factor >= 2), Some(2));
        assert_eq!((least(100, |factor| factor >= 100), least(100, |_| false)), (Some(100), None));
        // Without offload or recomputation, of which this model has none.
        let inputs = MemoryInputs { recomputed: None, activations: StoredActivations::formula(0, ""), ..inputs() };
        let with = |settings: &[Setting]| match settings.iter().any(|setting| matches!(setting, Setting::Offload(_))) {
            true => None,
            false => inputs.with(settings).map(|inputs| inputs.estimate()),
        };
        let found = check(&inputs.estimate(), 2 * GB, 8, with).unwrap_err().fits.unwrap();
        let Some(Setting::Replicas(replicas)) = found.settings.last().copied() else { panic!("{found:?}") };
        let needs =
            |replicas| with(&[Setting::Zero(ZeroLevel::V3), Setting::Replicas(replicas)]).unwrap().peak(Tier::Device);
        assert!(needs(replicas) <= 2 * GB && needs(replicas - 8) > 2 * GB, "{replicas}");
    }
}
