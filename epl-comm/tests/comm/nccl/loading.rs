//! A library that is not there, is not NCCL, or too old.

use epl_comm::Error;
use epl_comm::nccl::{Launcher, Library};

use crate::fake::{Fake, build};
use crate::host_memory::HostMemory;

fn refused(result: Result<std::sync::Arc<Library>, Error>, parts: &[&str]) {
    let Err(error @ Error::Engine { .. }) = result else { panic!("{result:?}") };
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_library_that_is_missing_is_an_error_with_the_names_tried() {
    refused(Library::at("/nowhere/libnccl.so.2"), &["/nowhere/libnccl.so.2", "name a file that is there"]);
    if let Err(error) = Library::open() {
        // Where there is none.
        refused(Err(error), &["`libnccl.so.2`", "`libnccl.so`", "LD_LIBRARY_PATH", "EPL_NCCL_LIBRARY"]);
    }
}

#[test]
fn a_library_without_a_function_is_an_error_that_names_it() {
    let path = build(&["--cfg", "without_split"]);
    refused(Library::at(&path), &["ncclCommSplit", "older than 2.18"]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn another_library_is_not_nccl() {
    refused(Library::at("libc.so.6"), &["ncclGetVersion", "is not NCCL"]);
}

#[test]
fn an_old_one_is_an_error_with_its_version() {
    let fake = Fake::with("version", "21705");
    let again = Library::at(fake.path());
    refused(again, &["is NCCL 2.17.5", "install 2.18 or newer"]);
    assert_eq!(fake.library.version(), "2.30.1");
}

/// Where NCCL itself is: its functions are found, and what it says of a machine without a GPU is an error of ours.
#[test]
fn nccl_itself_if_it_is_here() {
    let Ok(library) = Library::open() else { return };
    let text = format!("{library:?}");
    assert!(text.starts_with("NCCL 2."), "{text}");
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let fake = Fake::new();
    let memory = |rank| Ok(HostMemory::new(&fake, rank, true));
    let ended = Launcher::new(2).library(library).run_on(memory, |group| group.barrier());
    let (_, error) = ended.unwrap_err();
    assert!(matches!(error, Error::Engine { .. }), "{error}");
}
