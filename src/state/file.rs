//! The state file: written whole or not at all, and never in the way of a start.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::codec::{Damage, Frame, Head, Reader, Writer};

/// Only its owner may read it: it has the secret that session ids are hashed with.
const MODE: u32 = 0o600;

/// A state file that was found whole.
pub struct Stored {
    pub head: Head,
    file: File,
}

/// What is at the path of a state file.
pub enum Found {
    Nothing,
    State(Stored),
    Damaged(Damage),
}

/// Looks for a state file, and reads it through once. Nothing of it is kept, so that its size costs no memory.
pub fn find(path: &Path) -> Found {
    match File::open(path) {
        Ok(file) => Stored::check(file).map_or_else(Found::Damaged, Found::State),
        Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
        Err(error) => Found::Damaged(Damage::Unreadable(error)),
    }
}

impl Stored {
    fn check(file: File) -> Result<Stored, Damage> {
        let (mut reader, head) = Reader::begin(BufReader::new(&file))?;
        while reader.frame()?.is_some() {}
        Ok(Stored { head, file })
    }

    /// Shows every model and all of its records to `take`.
    ///
    /// # Errors
    /// When the file has changed since it was checked.
    pub fn read(mut self, mut take: impl FnMut(Frame)) -> Result<(), Damage> {
        self.file.rewind()?;
        let (mut reader, _) = Reader::begin(BufReader::new(&self.file))?;
        while let Some(frame) = reader.frame()? {
            take(frame);
        }
        Ok(())
    }
}

/// Replaces the state file by what `fill` writes, and says how many bytes that are. A crash at any moment leaves the old
/// file or the new one.
pub fn save(
    path: &Path,
    head: Head,
    fill: impl FnOnce(&mut Writer<BufWriter<File>>) -> io::Result<()>,
) -> io::Result<u64> {
    let unfinished = with_suffix(path, ".tmp");
    let saved = write(&unfinished, head, fill).and_then(|bytes| {
        fs::rename(&unfinished, path)?;
        sync_directory(path)?;
        Ok(bytes)
    });
    if saved.is_err() {
        // What is left of it only takes room. That it can't be removed is no news where it could not be written.
        fs::remove_file(&unfinished).ok();
    }
    saved
}

/// Puts a file that is no state out of the way, so that somebody can look at it, and says where it is.
pub fn set_aside(path: &Path, unix_s: u64) -> io::Result<PathBuf> {
    let aside = with_suffix(path, &format!(".damaged-{unix_s}"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn write(
    path: &Path,
    head: Head,
    fill: impl FnOnce(&mut Writer<BufWriter<File>>) -> io::Result<()>,
) -> io::Result<u64> {
    // One that an earlier process has left behind. The new one must not be somebody else's, nor lead elsewhere.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    let mut writer = Writer::begin(BufWriter::with_capacity(256 << 10, file), head)?;
    fill(&mut writer)?;
    let file = writer.end()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// A rename is on the disk when its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn head(saved_at_ms: u64) -> Head {
        Head { saved_at_ms, key_secret: [1; 16], kvpin: "0".into() }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_state_replaces_the_one_before_it_and_only_its_owner_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        assert!(matches!(find(&path), Found::Nothing));
        for saved_at in [1, 2] {
            let bytes = save(&path, head(saved_at), |writer| writer.model("m", Vec::new())).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
            let Found::State(stored) = find(&path) else { panic!("no state") };
            assert_eq!(stored.head, head(saved_at));
            let mut frames = Vec::new();
            stored.read(|frame| frames.push(frame)).unwrap();
            assert_eq!(frames, [Frame::Model { name: "m".into(), replicas: Vec::new() }]);
        }
        assert_eq!(names(directory.path()), ["state"]);
    }

    #[test]
    fn what_fails_leaves_the_old_state_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        save(&path, head(1), |_| Ok(())).unwrap();
        assert!(save(&path, head(2), |_| Err(io::Error::other("full"))).is_err());
        let Found::State(stored) = find(&path) else { panic!("no state") };
        assert_eq!(stored.head, head(1));
        assert_eq!(names(directory.path()), ["state"]);
        assert!(save(&directory.path().join("not-there/state"), head(3), |_| Ok(())).is_err());
    }

    #[test]
    fn a_link_in_place_of_the_unfinished_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("state"), directory.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("state.tmp")).unwrap();
        save(&path, head(1), |_| Ok(())).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert!(matches!(find(&path), Found::State(_)));
    }

    #[test]
    fn what_is_no_state_is_put_aside_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        fs::write(&path, "something else").unwrap();
        assert!(matches!(find(&path), Found::Damaged(Damage::Foreign)));
        let aside = set_aside(&path, 1_700_000_000).unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), "something else");
        assert_eq!(names(directory.path()), ["state.damaged-1700000000"]);
        fs::create_dir(&path).unwrap();
        assert!(matches!(find(&path), Found::Damaged(Damage::Unreadable(_))));
    }
}
