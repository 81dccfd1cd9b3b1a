//! A store of files: for processes of one host.

use core::time::Duration;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use epl_comm::{LaunchError, Result, Store};

pub struct FileStore(pub PathBuf);

impl FileStore {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "_"))
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), LaunchError> {
        let new = self.path(&format!("{key}.new{}", std::process::id()));
        fs::write(&new, value).unwrap();
        // Unlike a rename, a link does not replace what is there.
        let set = fs::hard_link(&new, self.path(key));
        let _ = fs::remove_file(new);
        set.map_err(|error| LaunchError::Joining { message: format!("`{key}`: {error}") })
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>, LaunchError> {
        let begun = Instant::now();
        loop {
            match fs::read(self.path(key)) {
                Ok(value) => return Ok(value),
                Err(_) if begun.elapsed() >= wait => {
                    return Err(LaunchError::Unset { key: key.to_string(), waited: begun.elapsed() });
                }
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}
