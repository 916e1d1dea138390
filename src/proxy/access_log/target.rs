//! Where lines go.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::AccessLogTo;

/// Readable for the account and its group: who asked when is nobody else's business.
const MODE: u32 = 0o640;

/// An open end of the log.
#[derive(Debug)]
pub enum Target {
    Nowhere,
    Stderr,
    File(File),
}

/// Why a file can't be had.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct CannotOpen {
    file: PathBuf,
    reason: String,
}

/// What came of a write of several lines.
pub struct Written {
    /// Bytes of the lines that are whole.
    pub whole: usize,
    pub error: Option<io::Error>,
}

impl Target {
    /// Opens a file to extend it, or makes it.
    pub fn open(to: &AccessLogTo) -> Result<Self, CannotOpen> {
        match to {
            AccessLogTo::Off => Ok(Target::Nowhere),
            AccessLogTo::Stderr => Ok(Target::Stderr),
            AccessLogTo::File(path) => {
                let opened = open(path).map_err(|error| error.to_string());
                opened.map(Target::File).map_err(|reason| CannotOpen { file: path.clone(), reason })
            }
        }
    }

    /// Writes lines. Of one that could be written in part, nothing is left, or at least it ends.
    pub fn write(&mut self, lines: &[u8]) -> Written {
        let mut done = 0;
        let error = loop {
            if done == lines.len() {
                return Written { whole: done, error: None };
            }
            match self.write_some(&lines[done..]) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        let whole = lines[..done].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.take_back((done - whole) as u64);
        Written { whole, error: Some(error) }
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Nowhere => Ok(bytes.len()),
            // Not buffered: it is one system call.
            Target::Stderr => io::stderr().lock().write(bytes),
            Target::File(file) => file.write(bytes),
        }
    }

    /// Takes the beginning of a line back that has no end. Where that can't be, the next line begins behind a line end of its
    /// own, if there is room for that.
    fn take_back(&mut self, torn: u64) {
        if torn == 0 {
            return;
        }
        let is_cut = match self {
            Target::Nowhere | Target::Stderr => false,
            Target::File(file) => {
                // Unless another process has written behind it, as the one that takes over may.
                let end = file.stream_position().and_then(|end| Ok((end == file.metadata()?.len()).then_some(end)));
                end.is_ok_and(|end| end.is_some_and(|end| file.set_len(end.saturating_sub(torn)).is_ok()))
            }
        };
        if !is_cut {
            self.write_some(b"\n").ok();
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for somebody to read it.
    if path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo() || metadata.file_type().is_socket()) {
        return Err(io::Error::other("it is no file"));
    }
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_extended_and_what_cannot_be_one_is_refused_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        for line in ["one\n", "two\n"] {
            let mut target = Target::open(&AccessLogTo::File(path.clone())).unwrap();
            assert_eq!(target.write(line.as_bytes()).whole, 4);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        for bad in [directory.path().to_owned(), directory.path().join("none/access.log"), path.join("x")] {
            let refused = Target::open(&AccessLogTo::File(bad.clone())).expect_err("refused").to_string();
            assert!(refused.starts_with(&format!("{}: ", bad.display())), "{refused}");
        }
    }

    #[test]
    fn of_a_full_disk_everything_is_told_and_nothing_written() {
        let mut full = Target::open(&AccessLogTo::File("/dev/full".into())).unwrap();
        let written = full.write(b"a line\n");
        assert_eq!((written.whole, written.error.map(|error| error.kind())), (0, Some(io::ErrorKind::StorageFull)));
    }

    #[test]
    fn a_line_that_was_torn_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let mut target = Target::open(&AccessLogTo::File(path.clone())).unwrap();
        target.write(b"whole\ntor");
        target.take_back(3);
        target.write(b"next\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\nnext\n");
    }
}
