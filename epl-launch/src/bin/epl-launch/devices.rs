//! The GPUs of this machine, and which of them a run gets.

use std::collections::HashSet;
use std::process::Command;

use crate::arguments::{Arguments, Start};

/// What Burn's BURN_DEVICE may name that is no GPU.
const HOSTS: [&str; 3] = ["flex", "ndarray", "cpu"];

/// The GPUs for so many ranks, by the numbers or names that CUDA_VISIBLE_DEVICES takes; none where there are none, or the
/// program computes on the host, as BURN_DEVICE says.
///
/// Between processes over NCCL each rank has a GPU of its own. Threads, and processes over MPI, whose tensors travel
/// through the host, may share what there is, and need none.
///
/// # Errors
///
/// When a GPU is asked for that is not there, or too few may be used.
pub(crate) fn choose(arguments: &Arguments, ranks: usize) -> Result<Vec<String>, String> {
    let host = std::env::var("BURN_DEVICE").ok().filter(|name| HOSTS.contains(&name.as_str()));
    match (host, arguments.run_visible_devices.is_empty()) {
        (None, _) => {}
        (Some(_), true) => return Ok(Vec::new()),
        (Some(host), false) => {
            return Err(format!(
                "--run_visible_devices {}, and BURN_DEVICE={host} computes on the host; leave one of them out",
                arguments.run_visible_devices.join(",")
            ));
        }
    }
    let may_share = matches!(arguments.start, Start::Mpi | Start::Threads);
    let (allowed, source) = if arguments.run_visible_devices.is_empty() {
        match std::env::var("CUDA_VISIBLE_DEVICES") {
            // Set and empty: no GPU is to be used.
            Ok(list) => (visible(&list), "CUDA_VISIBLE_DEVICES"),
            Err(_) => (free(), "those on which nothing runs"),
        }
    } else {
        (
            arguments.run_visible_devices.iter().map(|device| device.trim().to_string()).collect(),
            "--run_visible_devices",
        )
    };
    let all = present();
    if all.is_empty() && !arguments.run_visible_devices.is_empty() {
        return Err(format!("--run_visible_devices {}: this machine shows no GPU", allowed.join(",")));
    }
    if all.is_empty() || (allowed.is_empty() && source == "CUDA_VISIBLE_DEVICES") {
        return Ok(Vec::new());
    }
    let mut once = HashSet::new();
    if let Some(twice) = allowed.iter().find(|device| !once.insert(device.as_str())) {
        return Err(format!("GPU {twice} is given twice ({source}); each rank has one of its own"));
    }
    if source == "--run_visible_devices" {
        are_present(&allowed, &all)?;
    }
    if allowed.len() < ranks && !may_share {
        return Err(format!(
            "{ranks} ranks on this machine need as many GPUs, and {} of {} may be used ({source}: {}); start fewer, or say \
             which by --run_visible_devices; BURN_DEVICE=flex computes on the host",
            allowed.len(),
            all.len(),
            allowed.join(",")
        ));
    }
    Ok(allowed.into_iter().take(ranks).collect())
}

/// Refuses what is not among the GPUs that the driver shows. It shows no parts of GPUs.
fn are_present(asked: &[String], present: &[Vec<String>]) -> Result<(), String> {
    // CUDA takes the beginning of a name, too.
    let is_there = |device: &&String| {
        let is_it = |gpu: &Vec<String>| match gpu.as_slice() {
            [number, name, ..] => *number == **device || (device.starts_with("GPU-") && name.starts_with(*device)),
            _ => false,
        };
        device.starts_with("MIG-") || present.iter().any(is_it)
    };
    let Some(missing) = asked.iter().find(|device| !is_there(device)) else { return Ok(()) };
    let numbers: Vec<&str> = present.iter().filter_map(|gpu| gpu.first()).map(String::as_str).collect();
    Err(format!(
        "--run_visible_devices {}: there is no GPU `{missing}`; this machine has {}: {}",
        asked.join(","),
        numbers.len(),
        numbers.join(",")
    ))
}

/// Whether the numbers of GPUs are the driver's own: all but those of CUDA_VISIBLE_DEVICES, which are CUDA's.
pub(crate) fn by_bus(arguments: &Arguments) -> bool {
    !arguments.run_visible_devices.is_empty() || std::env::var_os("CUDA_VISIBLE_DEVICES").is_none()
}

/// Those of one worker of this machine: a GPU for each of its ranks; where there are fewer, workers share them, one after
/// the other.
pub(crate) fn of_worker(devices: &[String], local: usize, ranks: usize) -> Vec<String> {
    let own = (local * ranks..).take(ranks.min(devices.len()));
    own.map(|rank| devices[rank % devices.len()].clone()).collect()
}

/// The devices of a list, up to the first that is none, as CUDA reads it: `-1` hides all.
fn visible(list: &str) -> Vec<String> {
    let is_device = |name: &&str| {
        let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        is_number || name.starts_with("GPU-") || name.starts_with("MIG-")
    };
    list.split(',').map(str::trim).take_while(is_device).map(String::from).collect()
}

/// What the driver's program says, a line a thing; nothing where there is no driver.
fn ask(question: &str) -> Vec<Vec<String>> {
    let output = Command::new("nvidia-smi").args([question, "--format=csv,noheader"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    parse(&String::from_utf8_lossy(&text))
}

fn parse(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split(',').map(|field| field.trim().to_string()).collect()).collect()
}

/// All GPUs: number and name.
fn present() -> Vec<Vec<String>> {
    ask("--query-gpu=index,uuid")
}

/// The numbers of those on which nothing computes.
fn free() -> Vec<String> {
    unused(&present(), &ask("--query-compute-apps=gpu_uuid"))
}

fn unused(present: &[Vec<String>], used: &[Vec<String>]) -> Vec<String> {
    let is_used = |name: &String| used.iter().any(|fields| fields.first() == Some(name));
    let unused = present.iter().filter_map(|fields| match fields.as_slice() {
        [number, name] if !is_used(name) => Some(number.clone()),
        _ => None,
    });
    unused.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_where_it_names_no_device() {
        assert_eq!(visible("0, 2,GPU-a"), ["0", "2", "GPU-a"]);
        assert_eq!(visible("0,-1,1"), ["0"]);
        assert!(visible("-1").is_empty() && visible("").is_empty() && visible("NoDevFiles").is_empty());
    }

    #[test]
    fn a_gpu_that_is_not_there_is_named() {
        let present = parse("0, GPU-abc\n1, GPU-bcd\n");
        let asked = |list: &str| are_present(&visible(list), &present);
        assert_eq!(asked("1,GPU-ab,MIG-x"), Ok(()));
        let error = asked("0,9").expect_err("there is none");
        assert!(error.contains("no GPU `9`; this machine has 2: 0,1"), "{error}");
        assert!(asked("GPU-c").is_err());
    }

    #[test]
    fn workers_have_gpus_of_their_own_or_share_those_there_are() {
        let devices = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
        assert_eq!(of_worker(&devices(4), 1, 2), ["2", "3"]);
        assert_eq!(of_worker(&devices(3), 1, 2), ["2", "0"]);
        assert_eq!(of_worker(&devices(1), 1, 2), ["0"]);
        assert!(of_worker(&[], 1, 2).is_empty());
    }

    #[test]
    fn gpus_on_which_something_runs_are_left_alone() {
        let present = parse("0, GPU-a\n1, GPU-b\n2, GPU-c\n");
        assert_eq!(unused(&present, &parse("GPU-b\nGPU-b\n")), ["0", "2"]);
        assert_eq!(unused(&present, &parse("")), ["0", "1", "2"]);
        assert!(unused(&[], &[]).is_empty());
    }
}
