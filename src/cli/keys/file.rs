//! The keys file on disk: changed by one process at a time, and never half.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use crate::config::KeysText;

/// For its owner alone, until an operator says otherwise.
const MODE: u32 = 0o600;

/// What a file that exists keeps of its permissions: its group may read it, such as that of the service. Nobody else.
const MODE_KEPT: u32 = 0o640;

/// A keys file, locked against other changes while this lives.
pub struct KeysFile {
    path: PathBuf,
    /// The directory. A lock on the file itself would end up on the old file when the new one takes its place.
    directory: File,
}

impl KeysFile {
    /// Waits until nobody else changes files in the directory.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        // The file that a link leads to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = File::open(parent).with_context(|| format!("can't open {}", parent.display()))?;
        directory.lock().with_context(|| format!("can't lock {}", parent.display()))?;
        Ok(KeysFile { path, directory })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self) -> anyhow::Result<KeysText> {
        let text =
            std::fs::read_to_string(&self.path).with_context(|| format!("can't read {}", self.path.display()))?;
        KeysText::parse(text).map_err(|error| anyhow!("{}: {error}", self.path.display()))
    }

    /// As [`Self::read`]; a file that isn't there has nothing in it yet.
    pub fn read_or_new(&self) -> anyhow::Result<KeysText> {
        match self.path.try_exists() {
            Ok(false) => KeysText::parse(String::new()).map_err(|error| anyhow!("{error}")),
            Ok(true) | Err(_) => self.read(),
        }
    }

    /// Puts a new file in the place of the old one: whoever reads meanwhile has one of them, whole.
    pub fn write(&self, keys: &KeysText) -> anyhow::Result<()> {
        let name = self.path.file_name().ok_or_else(|| anyhow!("{} is no file", self.path.display()))?;
        let new = self.path.with_file_name(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
        let written = self.write_new(&new, keys).and_then(|()| std::fs::rename(&new, &self.path));
        if written.is_err() {
            // It may not have been made.
            std::fs::remove_file(&new).ok();
        }
        written.with_context(|| format!("can't write {}", self.path.display()))?;
        self.directory.sync_all().context("the directory can't be synced")
    }

    fn write_new(&self, new: &Path, keys: &KeysText) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(new)?;
        if let Some(old) = exists(&self.path)? {
            let now = file.metadata()?;
            if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
                fchown(&file, Some(old.uid()), Some(old.gid()))?;
            }
            file.set_permissions(Permissions::from_mode(old.mode() & MODE_KEPT | MODE))?;
        }
        file.write_all(keys.text().as_bytes())?;
        file.sync_all()
    }
}

fn exists(path: &Path) -> io::Result<Option<std::fs::Metadata>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KeyConfig, KeyHash};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    fn add(path: &Path, name: &str) {
        let file = KeysFile::open(path).unwrap();
        let keys = file.read_or_new().unwrap().with(KeyConfig::new(name, KeyHash::of(name.as_bytes()))).unwrap();
        file.write(&keys).unwrap();
    }

    #[test]
    fn a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_group_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.yaml");
        add(&path, "first");
        assert_eq!(mode(&path), 0o600);
        for (before, after) in [(0o640, 0o640), (0o666, 0o640), (0o604, 0o600)] {
            std::fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            add(&path, &format!("after-{before:o}"));
            assert_eq!(mode(&path), after, "{before:o}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn many_who_add_at_once_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.yaml");
        std::thread::scope(|scope| {
            for number in 0..16 {
                let path = &path;
                scope.spawn(move || add(path, &format!("key-{number}")));
            }
        });
        assert_eq!(KeysFile::open(&path).unwrap().read().unwrap().keys().len(), 16);
    }

    #[test]
    fn behind_a_link_the_file_is_changed_and_the_link_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("keys.yaml"), directory.path().join("link"));
        add(&path, "first");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        add(&link, "second");
        assert!(link.is_symlink());
        assert_eq!(KeysFile::open(&path).unwrap().read().unwrap().keys().len(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.yaml");
        std::fs::write(&path, "alice: [").unwrap();
        assert!(KeysFile::open(&path).unwrap().read_or_new().is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "alice: [");
    }
}
