//! What is freed on the host is taken again.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::ffi::OsString;

use epl_core::{Config, launch};

/// The bytes of pages that the system has given this process so far.
fn given() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to memory that lives as long as the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) }, 0);
    // SAFETY: a call that succeeds has filled it. The other takes a number, and gives one.
    let (usage, page) = unsafe { (usage.assume_init(), libc::sysconf(libc::_SC_PAGESIZE)) };
    usage.ru_minflt as u64 * page as u64
}

/// What a rank is given for 40 MiB that it has freed just before, in MiB. None where the environment says how memory is kept. (It
/// may have the arena of the test's thread, which keeps one such block.)
fn given_again(keeps: bool) -> Option<u64> {
    let says = |(name, value): (OsString, OsString)| {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        name.starts_with("MALLOC_") || (name == "GLIBC_TUNABLES" && value.contains("glibc.malloc."))
    };
    if std::env::vars_os().any(says) {
        return None;
    }
    // SAFETY: it takes numbers. No page is a huge one, which counts as one.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
    let mut config = Config::new();
    config.cluster.keep_freed_memory = keeps;
    let touch = || std::hint::black_box(vec![1_u8; 40 << 20]);
    let ran = launch(&config, |_| {
        drop(touch());
        let before = given();
        drop(touch());
        Ok((given() - before) >> 20)
    });
    Some(ran.unwrap()[0])
}

#[test]
fn what_is_freed_is_taken_again() {
    epl_testing::alone(|| {
        let given = given_again(true).unwrap_or_default();
        assert!(given < 4, "{given} MiB were given anew");
    });
}

#[test]
fn without_the_option_the_system_takes_it_back() {
    epl_testing::alone(|| {
        let given = given_again(false).unwrap_or(40);
        assert!(given >= 39, "only {given} MiB were given anew");
    });
}
