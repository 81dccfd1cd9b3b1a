//! A disk that remembers every change, and tells what would be on it had the machine stopped after any of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use epl_core::checkpoint::durable::{Disk, DiskFile, FileSystem};

/// One change.
#[derive(Clone, Debug)]
pub enum Change {
    CreateFolder(PathBuf),
    Create(PathBuf),
    /// Bytes at the end of the file that was created under this path.
    Write(PathBuf, Vec<u8>),
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SyncFolder(PathBuf),
}

/// Passes everything on to the file system, and remembers it. Full after so many bytes.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    changes: Arc<Mutex<Vec<Change>>>,
    /// How many bytes may still be written; none: as many as one likes.
    room: Arc<Mutex<Option<usize>>>,
}

impl Recorder {
    pub fn changes(&self) -> Vec<Change> {
        self.locked().clone()
    }

    /// From now on, only so many bytes can be written.
    pub fn set_room(&self, room: Option<usize>) {
        *self.room.lock().unwrap() = room;
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Change>> {
        self.changes.lock().unwrap()
    }

    /// Makes a change and remembers it as one: what other threads do comes before or after.
    fn change<T>(&self, change: Change, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut changes = self.locked();
        let made = make()?;
        changes.push(change);
        Ok(made)
    }

    fn take_room(&self, bytes: usize) -> io::Result<()> {
        match &mut *self.room.lock().unwrap() {
            Some(room) if *room < bytes => Err(io::Error::from(io::ErrorKind::StorageFull)),
            Some(room) => {
                *room -= bytes;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk for Recorder {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.change(Change::CreateFolder(path.into()), || FileSystem.create_folder(path))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.change(Change::Create(path.into()), || FileSystem.create(path))?;
        Ok(Box::new(RecordedFile { path: path.into(), file, disk: self.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(Change::Rename(from.into(), to.into()), || FileSystem.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change(Change::Remove(path.into()), || FileSystem.remove_file(path))
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        // As the system does it: one name after the other.
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(path)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
        entries.sort();
        for entry in entries.iter().rev() {
            if entry.is_dir() { self.remove_folder(entry)? } else { self.remove_file(entry)? }
        }
        self.change(Change::Remove(path.into()), || std::fs::remove_dir(path))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.change(Change::SyncFolder(path.into()), || FileSystem.sync_folder(path))
    }
}

struct RecordedFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    disk: Recorder,
}

impl Write for RecordedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.take_room(bytes.len())?;
        let (file, change) = (&mut self.file, Change::Write(self.path.clone(), bytes.to_vec()));
        self.disk.change(change, || file.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for RecordedFile {
    fn sync(&mut self) -> io::Result<()> {
        let (file, change) = (&mut self.file, Change::Sync(self.path.clone()));
        self.disk.change(change, || file.sync())
    }
}

/// What a machine that stops leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nothing: the process was killed.
    Nothing,
    /// Bytes; names are kept.
    Bytes,
    /// Bytes and names.
    All,
}

#[derive(Debug)]
enum Node {
    /// Its bytes, and those that are durable.
    File(Vec<u8>, Vec<u8>),
    /// Its names, and those that are durable.
    Folder(BTreeMap<OsString, usize>, BTreeMap<OsString, usize>),
}

/// A tree of files, as it is and as it would be after a stop.
#[derive(Debug)]
pub struct Tree(Vec<Node>);

const ROOT: usize = 0;

impl Tree {
    pub fn new() -> Self {
        Self(vec![Node::Folder(BTreeMap::new(), BTreeMap::new())])
    }

    /// Makes a change, of a path below `root`.
    pub fn apply(&mut self, change: &Change, root: &Path) {
        let below = |path: &Path| path.strip_prefix(root).unwrap().to_path_buf();
        match change {
            Change::CreateFolder(path) => self.create_folder(&below(path)),
            Change::Create(path) => {
                let new = self.add(Node::File(Vec::new(), Vec::new()));
                self.name(&below(path), new);
            }
            Change::Write(path, bytes) => {
                let file = self.find(&below(path)).unwrap();
                if let Node::File(now, _) = &mut self.0[file] {
                    now.extend_from_slice(bytes);
                }
            }
            Change::Sync(path) => {
                let file = self.find(&below(path)).unwrap();
                if let Node::File(now, durable) = &mut self.0[file] {
                    durable.clone_from(now);
                }
            }
            Change::Rename(from, to) => {
                let node = self.unname(&below(from));
                self.name(&below(to), node);
            }
            Change::Remove(path) => drop(self.unname(&below(path))),
            Change::SyncFolder(path) => {
                let folder = self.find(&below(path)).unwrap();
                if let Node::Folder(now, durable) = &mut self.0[folder] {
                    durable.clone_from(now);
                }
            }
        }
    }

    fn add(&mut self, node: Node) -> usize {
        self.0.push(node);
        self.0.len() - 1
    }

    fn names(&mut self, folder: usize) -> &mut BTreeMap<OsString, usize> {
        match &mut self.0[folder] {
            Node::Folder(now, _) => now,
            Node::File(..) => panic!("a file is no folder"),
        }
    }

    fn find(&self, path: &Path) -> Option<usize> {
        path.components().try_fold(ROOT, |folder, part| match (&self.0[folder], part) {
            (Node::Folder(now, _), Component::Normal(name)) => now.get(name).copied(),
            _ => None,
        })
    }

    fn parent(&self, path: &Path) -> (usize, OsString) {
        (self.find(path.parent().unwrap()).unwrap(), path.file_name().unwrap().to_os_string())
    }

    fn name(&mut self, path: &Path, node: usize) {
        let (folder, name) = self.parent(path);
        self.names(folder).insert(name, node);
    }

    fn unname(&mut self, path: &Path) -> usize {
        let (folder, name) = self.parent(path);
        self.names(folder).remove(&name).unwrap()
    }

    fn create_folder(&mut self, path: &Path) {
        let mut folder = ROOT;
        for part in path.components() {
            let name = part.as_os_str().to_os_string();
            let there = self.names(folder).get(&name).copied();
            let new = there.unwrap_or_else(|| {
                let new = self.add(Node::Folder(BTreeMap::new(), BTreeMap::new()));
                self.names(folder).insert(name, new);
                new
            });
            folder = new;
        }
    }

    /// Writes into a folder what a stop now would leave.
    pub fn leave(&self, lost: Lost, into: &Path) {
        self.leave_node(ROOT, lost, into);
    }

    fn leave_node(&self, node: usize, lost: Lost, into: &Path) {
        match &self.0[node] {
            Node::File(now, durable) => {
                std::fs::write(into, if lost == Lost::Nothing { now } else { durable }).unwrap();
            }
            Node::Folder(now, durable) => {
                std::fs::create_dir_all(into).unwrap();
                for (name, node) in if lost == Lost::All { durable } else { now } {
                    self.leave_node(*node, lost, &into.join(name));
                }
            }
        }
    }
}
