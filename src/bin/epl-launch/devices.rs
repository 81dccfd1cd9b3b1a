//! The GPUs of this machine, and which of them a run gets.

use std::collections::HashSet;
use std::process::Command;

use crate::arguments::Arguments;

/// The GPUs for so many ranks, by the numbers or names that CUDA_VISIBLE_DEVICES takes; none where there are none.
///
/// # Errors
///
/// When there are GPUs, and too few that may be used.
pub fn choose(arguments: &Arguments, ranks: usize) -> Result<Vec<String>, String> {
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
    if allowed.len() < ranks {
        return Err(format!(
            "{ranks} ranks on this machine need as many GPUs, and {} of {} may be used ({source}: {}); start fewer, or say \
             which by --run_visible_devices",
            allowed.len(),
            all.len(),
            allowed.join(",")
        ));
    }
    Ok(allowed.into_iter().take(ranks).collect())
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
    fn gpus_on_which_something_runs_are_left_alone() {
        let present = parse("0, GPU-a\n1, GPU-b\n2, GPU-c\n");
        assert_eq!(unused(&present, &parse("GPU-b\nGPU-b\n")), ["0", "2"]);
        assert_eq!(unused(&present, &parse("")), ["0", "1", "2"]);
        assert!(unused(&[], &[]).is_empty());
    }
}
