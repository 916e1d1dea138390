//! The files that a configuration names and that hold secrets. They are read with it, so that a reload takes all or nothing.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path as FilePath, PathBuf};

use super::bounds;
use super::error::Problems;
use super::file::File;
use super::keys::{self, Keys};
use super::locate::Path;
use super::secret::Secret;
use super::{model, read};

/// A secret, and where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFile {
    pub file: PathBuf,
    /// Printable ASCII without spaces: it goes into a header.
    pub secret: Secret,
    pub(super) warning: Option<String>,
}

/// What the files say.
#[derive(Default)]
pub(super) struct NamedFiles {
    pub(super) keys: Option<Keys>,
    pub(super) admin_token: Option<SecretFile>,
    /// By the name of the model.
    pub(super) upstream_keys: BTreeMap<String, SecretFile>,
}

/// Where a file that the configuration names is: from the directory of the configuration on.
pub(super) fn locate(directory: &FilePath, named: &str) -> PathBuf {
    directory.join(named)
}

impl NamedFiles {
    /// Reads every file that is named. What is wrong with one is a problem of the key that names it.
    pub(super) fn read(file: &File, directory: &FilePath, problems: &mut Problems) -> Self {
        let top = Path::default();
        let secret = |at: Path, named: &str, bytes_min, problems: &mut Problems| {
            let file = locate(directory, named);
            match read_secret(&file, bytes_min) {
                Ok(secret) => Some(secret),
                Err(reason) => {
                    problems.add(at, format!("{}: {reason}", file.display()));
                    None
                }
            }
        };
        let admin_token = file
            .admin_token_file
            .as_deref()
            .and_then(|named| secret(top.key("admin_token_file"), named, bounds::ADMIN_TOKEN_BYTES_MIN, problems));
        let mut upstream_keys = BTreeMap::new();
        for (name, model) in &file.models.0 {
            let at = model::path(name).key("upstream_key_file");
            if let Some(key) = model.upstream_key_file.as_deref().and_then(|named| secret(at, named, 1, problems)) {
                upstream_keys.insert(name.clone(), key);
            }
        }
        let keys = file.keys_file.as_deref().and_then(|named| read_keys(locate(directory, named), problems));
        NamedFiles { keys, admin_token, upstream_keys }
    }
}

fn read_keys(file: PathBuf, problems: &mut Problems) -> Option<Keys> {
    let at = Path::default().key("keys_file");
    let text = match read(&file, bounds::KEYS_FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(err) => {
            let hint = if err.kind() == io::ErrorKind::NotFound { "; `kvpin keys add` makes it" } else { "" };
            problems.add(at, format!("{}: {err}{hint}", file.display()));
            return None;
        }
    };
    match keys::parse(&text) {
        Ok(keys) => {
            let mut warnings: Vec<_> = permission_warning(&file).into_iter().collect();
            if keys.is_empty() {
                warnings.push(format!("{}: it has no key, so nobody can ask", file.display()));
            }
            Some(Keys { file, keys, warnings })
        }
        Err(err) => {
            for problem in err.problems() {
                problems.add(at.clone(), format!("{}: {problem}", file.display()));
            }
            None
        }
    }
}

fn read_secret(file: &FilePath, bytes_min: usize) -> Result<SecretFile, String> {
    let text = read(file, bounds::SECRET_BYTES_MAX as u64 + 2).map_err(|err| err.to_string())?;
    let secret = one_word(&text, bytes_min)?;
    Ok(SecretFile { file: file.to_owned(), secret, warning: permission_warning(file) })
}

/// The one word of a text, with at most a line end behind it. What is wrong is said without quoting anything.
pub fn one_word(text: &str, bytes_min: usize) -> Result<Secret, String> {
    let word = text.trim_end_matches(['\r', '\n']);
    let max = bounds::SECRET_BYTES_MAX;
    if word.is_empty() {
        return Err("there is nothing in it".to_owned());
    }
    if !(bytes_min..=max).contains(&word.len()) {
        return Err(format!("what is in it has {} bytes, and not {bytes_min} to {max}", word.len()));
    }
    if !word.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("there is more in it than one word of printable ASCII".to_owned());
    }
    Ok(Secret::new(word))
}

/// A secret of every user of the machine is none, and who can write to the file can let himself in.
fn permission_warning(file: &FilePath) -> Option<String> {
    const OTHERS_READ: u32 = 0o004;
    const OTHERS_WRITE: u32 = 0o002;
    let mode = std::fs::metadata(file).ok()?.mode();
    let what = match (mode & OTHERS_READ != 0, mode & OTHERS_WRITE != 0) {
        (false, false) => return None,
        (true, false) => "read",
        (false, true) => "write to",
        (true, true) => "read and write to",
    };
    Some(format!("{}: every user of this machine can {what} it; `chmod o= {0}` changes that", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_word_and_its_line_end_is_none_of_it() {
        for text in ["secret", "secret\n", "secret\r\n"] {
            assert_eq!(one_word(text, 1), Ok(Secret::new("secret")), "{text:?}");
        }
        for text in ["", "\n", "two words", "two\nlines", " secret", "sécret", "a\0b"] {
            let refusal = one_word(text, 1).expect_err(text);
            assert!(!refusal.contains("secret"), "{refusal}");
        }
        assert!(one_word("short", 6).is_err());
        assert!(one_word(&"x".repeat(bounds::SECRET_BYTES_MAX + 1), 1).is_err());
    }
}
