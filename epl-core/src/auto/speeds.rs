//! How fast the ranks' devices are beside each other.

use super::together::of_each;
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::offload::is_host;

/// Devices whose times differ by less, as a factor, are taken to be alike: as much as the same one's differ from run to run.
const ALIKE: f64 = 1.25;

/// By rank, how many times as fast as the slowest one, as `auto.speeds` says.
///
/// # Errors
///
/// When these are of other ranks.
pub(super) fn given(epl: &Epl) -> Result<Option<Vec<f64>>> {
    let ranks = epl.cluster().world_size();
    let Some(given) = &epl.config().auto.speeds else { return Ok(None) };
    let slowest = given.iter().copied().min().unwrap_or(0);
    match given.len() == ranks && slowest > 0 {
        true => Ok(Some(given.iter().map(|speed| *speed as f64 / slowest as f64).collect())),
        false => Err(Error::invalid(format!(
            "auto.speeds = {given:?}, of {ranks} ranks; give a number above 0 for each, or leave it out, so that speeds are measured"
        ))),
    }
}

/// By rank, how many times as fast as the slowest one, by the seconds that each took for the same things: this one `own`; none where
/// nothing was measured. Ranks that compute on the processor of one host have that in common. Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn measured(epl: &Epl, own: f64) -> Result<Option<Vec<f64>>> {
    // Seconds of all ranks, and which of them compute on a processor.
    let told = of_each(epl.world(), [own, f64::from(is_host(epl.place().device()))])?;
    let hosts = epl.cluster().hosts_of_ranks();
    let shared = |rank: usize| {
        let alike = (0..told.len()).filter(|other| hosts[*other] == hosts[rank] && told[*other][1] > 0.0);
        match told[rank][1] > 0.0 {
            true => alike.map(|other| told[other][0]).fold(0.0, f64::max),
            false => told[rank][0],
        }
    };
    let seconds: Vec<f64> = (0..told.len()).map(shared).collect();
    Ok(seconds.iter().all(|seconds| *seconds > 0.0).then(|| relative(&seconds)))
}

/// By times, how many times as fast as the slowest each is; what is nearly alike is.
pub(super) fn relative(seconds: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..seconds.len()).collect();
    order.sort_by(|one, other| seconds[*other].total_cmp(&seconds[*one]));
    let mut speeds = vec![1.0; seconds.len()];
    let (slowest, mut rest) = (seconds[order[0]], &order[..]);
    while let Some(first) = rest.first() {
        let (alike, faster) =
            rest.split_at(rest.iter().take_while(|rank| seconds[*first] < ALIKE * seconds[**rank]).count().max(1));
        let mean = alike.iter().map(|rank| seconds[*rank]).sum::<f64>() / alike.len() as f64;
        // The first ones are the slowest.
        let speed = if rest.len() == order.len() { 1.0 } else { slowest / mean };
        alike.iter().for_each(|rank| speeds[*rank] = speed);
        rest = faster;
    }
    speeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_alike_is_alike() {
        assert_eq!(relative(&[1.0, 1.1, 0.95, 1.05]), [1.0; 4]);
        assert_eq!(relative(&[2.0, 1.0, 2.1, 1.0]), [1.0, 2.1, 1.0, 2.1]);
        assert_eq!(relative(&[4.0, 2.0, 1.0]), [1.0, 2.0, 4.0]);
        assert_eq!(relative(&[3.0]), [1.0]);
    }
}
