//! A library that answers kvpin's questions about GPUs in the place of NVIDIA's, built from `tests/nvml/standin.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Two GPUs, and a file that says what goes wrong with them.
pub struct StandIn {
    directory: TempDir,
}

impl StandIn {
    /// Builds it with a compiler's `options`; `script` is what goes wrong from the start.
    pub fn build(options: &[&str], script: &str) -> StandIn {
        let standin = StandIn { directory: tempfile::tempdir().expect("a directory") };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/standin.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Wall", "-Werror", "-O1", "-shared", "-fPIC"]).args(options);
        let built = compiler.arg("-o").arg(standin.library()).arg(source).output().expect("cc runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        standin.play(script);
        standin
    }

    /// The library's path.
    pub fn library(&self) -> PathBuf {
        self.directory.path().join("libnvidia-ml.so.1")
    }

    /// What kvpin's environment has to have.
    pub fn script_file(&self) -> PathBuf {
        self.directory.path().join("script")
    }

    /// From its next call on, this goes wrong.
    pub fn play(&self, script: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, script).expect("writes the script");
        std::fs::rename(&new, self.script_file()).expect("puts the script in its place");
    }
}
