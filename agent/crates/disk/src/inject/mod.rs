//! Files put into a file system of a disk, or taken out of it (deploy section 10).
//!
//! The file system may be hostile: paths are looked up by [`ImageRoot`], which no link leads out of. Contents are streamed,
//! whatever their size.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, fchown};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, unlinkat};
use rustix::io::Errno;

pub use crate::boot::foreign::ImageRoot;
pub use crate::volume::{VolumeError, identify, with_volume};

use crate::configdrive::encoding;

/// Pieces in which contents are copied.
const PIECE_BYTES: usize = 64 << 10;
/// Rights of what is made anew, as a file of root usually has.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// A file could not be put where it belongs. Paths are those within the file system.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// A directory is missing and cannot be made.
    #[error("making the directory /{path}")]
    Directory {
        /// Directory.
        path: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The file cannot be opened.
    #[error("opening /{path} for writing")]
    Open {
        /// File.
        path: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The content cannot be read.
    #[error("reading the content for /{path}")]
    Content {
        /// File.
        path: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The content cannot be written.
    #[error("writing /{path} after {written_bytes} bytes")]
    Write {
        /// File.
        path: String,
        /// What was written before.
        written_bytes: u64,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// Owner or rights cannot be set.
    #[error("setting the {what} of /{path}")]
    Attribute {
        /// File or directory.
        path: String,
        /// `mode`, or `owner and group`.
        what: &'static str,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The file cannot be deleted.
    #[error("deleting /{path}")]
    Delete {
        /// File.
        path: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

/// Owner and rights; what is `None` stays as it is, or as it usually is for a new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Rights of the file.
    pub mode: Option<u32>,
    /// Rights of the directory that the file is in, where that is made.
    pub dir_mode: Option<u32>,
    /// User.
    pub owner: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// The file system has neither owners nor rights (FAT): what it refuses is no failure.
    pub may_be_refused: bool,
}

/// Whether there is a directory, or a link to one within the file system.
pub fn has_directory(image: &ImageRoot, path: &str) -> bool {
    directory(image, path).is_ok()
}

/// Writes a file, with missing directories, in the place of what the file may have held; a link is followed within the file
/// system. `path` is without a slash at its beginning. Gives what the file system could not keep.
///
/// # Errors
/// Any [`InjectError`]; the file may then be incomplete.
pub fn write(
    image: &ImageRoot,
    path: &str,
    attributes: &Attributes,
    content: &mut dyn Read,
) -> Result<Vec<&'static str>, InjectError> {
    let mut refused = Vec::new();
    if let Some((parent, _)) = path.rsplit_once('/') {
        make_directories(image, parent, attributes, &mut refused)?;
    }
    let mut file = open(image, path).map_err(|source| InjectError::Open { path: path.to_owned(), source })?;
    copy(&mut file, path, content)?;
    // In this order: a change of the owner takes the set-user-ID bit away.
    if attributes.owner.is_some() || attributes.group.is_some() {
        let done = fchown(&file, attributes.owner, attributes.group);
        settle(done, path, "owner and group", attributes, &mut refused)?;
    }
    if let Some(mode) = attributes.mode {
        let done = file.set_permissions(Permissions::from_mode(mode));
        settle(done, path, "mode", attributes, &mut refused)?;
    }
    // What the disk does not take shows here, not when the file system is taken away.
    let written_bytes = file.metadata().map_or(0, |file| file.len());
    file.sync_all().map_err(|source| InjectError::Write { path: path.to_owned(), written_bytes, source })?;
    Ok(refused)
}

/// Deletes a file, or a link itself; `false` when there is none.
///
/// # Errors
/// [`InjectError::Delete`], for a directory too.
pub fn delete(image: &ImageRoot, path: &str) -> Result<bool, InjectError> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("/", path));
    let gone = directory(image, parent).and_then(|parent| Ok(unlinkat(&parent, name, AtFlags::empty())?));
    match gone {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(InjectError::Delete { path: path.to_owned(), source }),
    }
}

/// What a text in base64 stands for. White space in it does not count, and padding may be missing.
pub fn base64(text: &str) -> impl Read + '_ {
    encoding::decode(text.as_bytes())
}

/// Whether a text is base64.
pub fn is_base64(text: &str) -> bool {
    io::copy(&mut base64(text), &mut io::sink()).is_ok()
}

fn directory(image: &ImageRoot, path: &str) -> io::Result<OwnedFd> {
    image.look_up_or_make(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Makes what is missing of a path. Only the last directory gets the rights that were asked for, and only if it is new.
fn make_directories(
    image: &ImageRoot,
    path: &str,
    attributes: &Attributes,
    refused: &mut Vec<&'static str>,
) -> Result<(), InjectError> {
    if has_directory(image, path) {
        return Ok(());
    }
    let failed = |source| InjectError::Directory { path: path.to_owned(), source };
    let mut at = directory(image, "/").map_err(failed)?;
    for end in path.match_indices('/').map(|(index, _)| index).chain([path.len()]) {
        let here = path.get(..end).unwrap_or(path);
        at = match directory(image, here) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = here.rsplit('/').next().unwrap_or(here);
                // A single name, and never through a link: it is made here or not at all.
                mkdirat(&at, name, Mode::from_raw_mode(DIRECTORY_MODE)).map_err(|error| failed(error.into()))?;
                let made = File::from(directory(image, here).map_err(failed)?);
                if let (Some(mode), true) = (attributes.dir_mode, end == path.len()) {
                    let done = made.set_permissions(Permissions::from_mode(mode));
                    settle(done, path, "mode", attributes, refused)?;
                }
                made.into()
            }
            Err(error) => return Err(failed(error)),
        };
    }
    Ok(())
}

/// Opens a regular file for writing and empties it.
fn open(image: &ImageRoot, path: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let file = File::from(image.look_up_or_make(path, flags, Mode::from_raw_mode(FILE_MODE))?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    file.set_len(0)?;
    Ok(file)
}

fn copy(file: &mut File, path: &str, content: &mut dyn Read) -> Result<(), InjectError> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut written_bytes = 0;
    loop {
        let count = match content.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(InjectError::Content { path: path.to_owned(), source }),
        };
        file.write_all(piece.get(..count).unwrap_or_default()).map_err(|source| InjectError::Write {
            path: path.to_owned(),
            written_bytes,
            source,
        })?;
        written_bytes += u64::try_from(count).unwrap_or(0);
    }
}

/// Notes what a file system without owners and rights does not take.
fn settle(
    done: io::Result<()>,
    path: &str,
    what: &'static str,
    attributes: &Attributes,
    refused: &mut Vec<&'static str>,
) -> Result<(), InjectError> {
    match done {
        Err(error) if attributes.may_be_refused && error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            refused.push(what);
            Ok(())
        }
        Err(source) => Err(InjectError::Attribute { path: path.to_owned(), what, source }),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
