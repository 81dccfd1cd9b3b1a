//! The classes and files of a folder.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::vision::error::{Error, Result};

/// The endings of files that are read, in small letters.
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// What a folder holds.
pub(super) struct Listing {
    /// The names of the classes: those given, or the folders' in order.
    pub classes: Vec<String>,
    /// Every image with its class, class by class, each in the order of its files' names.
    pub files: Vec<(PathBuf, usize)>,
    /// How many files are no images by their names, or belong to no class.
    pub others: usize,
}

/// Lists a folder; with `known` classes, their numbers are kept.
pub(super) fn list(root: &Path, known: Option<&[String]>) -> Result<Listing> {
    let (folders, loose) = entries(root)?.into_iter().partition::<Vec<_>, _>(|path| path.is_dir());
    if folders.is_empty() {
        return Err(Error::NoClasses { folder: root.to_path_buf() });
    }
    let names: Vec<String> = folders.iter().map(|folder| class_name(folder)).collect::<Result<_>>()?;
    let classes = known.map_or(names.clone(), <[String]>::to_vec);
    let numbers: HashMap<&str, usize> = classes.iter().map(String::as_str).zip(0..).collect();
    let (mut files, mut others) = (Vec::new(), loose.len());
    for (folder, name) in folders.iter().zip(&names) {
        let Some(label) = numbers.get(name.as_str()) else {
            return Err(Error::UnknownClass { folder: folder.clone(), classes: classes.len() });
        };
        let (images, rest) = entries(folder)?.into_iter().partition::<Vec<_>, _>(|path| is_image(path));
        if images.is_empty() {
            return Err(Error::NoImages { folder: folder.clone(), others: rest.len() });
        }
        files.extend(images.into_iter().map(|path| (path, *label)));
        others += rest.len();
    }
    Ok(Listing { classes, files, others })
}

/// What is in a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    let mut paths = read().map_err(|cause| Error::Read { path: folder.to_path_buf(), cause })?;
    paths.sort();
    Ok(paths)
}

fn class_name(folder: &Path) -> Result<String> {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.map(str::to_string).ok_or_else(|| Error::ClassName { folder: folder.to_path_buf() })
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) && path.is_file()
}
