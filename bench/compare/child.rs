//! A proxy as a process of its own, with what it has used of the machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::cores::Cores;

/// How much of a log is shown of a proxy that did not start.
const LOG_SHOWN_LINES: usize = 15;

/// A running process. Dropping it ends it and what it has started.
pub struct Child {
    process: std::process::Child,
    files: TempDir,
}

impl Child {
    /// Starts it on the proxy's core. Its configuration is in `files`, and its log will be.
    pub fn start(mut command: Command, files: TempDir, cores: &Cores) -> anyhow::Result<Child> {
        use std::os::unix::process::CommandExt as _;
        let log = File::create(log_in(files.path()))?;
        command
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir(files.path())
            .process_group(0);
        let process = cores.spawn(&mut command).with_context(|| format!("can't start {:?}", command.get_program()))?;
        Ok(Child { process, files })
    }

    pub fn log(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(log_in(self.files.path()))?).into_owned())
    }

    /// The end of its log.
    pub fn last_words(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_SHOWN_LINES)..].join("\n")
    }

    /// An error if it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("it ended with {status}"),
        }
    }

    /// CPU time of all its threads, and of the processes that it has started, so far. No proxy here ends threads while it
    /// serves, so none is missed.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut ran_ns = 0;
        for pid in self.tree()? {
            for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                let schedstat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
                ran_ns += schedstat.split(' ').next().context("no time in schedstat")?.parse::<u64>()?;
            }
        }
        Ok(Duration::from_nanos(ran_ns))
    }

    /// Bytes of memory that it and the processes that it has started have resident.
    pub fn memory_bytes(&self) -> anyhow::Result<u64> {
        let mut resident_kb = 0;
        for pid in self.tree()? {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
            resident_kb += line.trim().trim_end_matches(" kB").parse::<u64>()?;
        }
        Ok(resident_kb * 1024)
    }

    fn tree(&self) -> anyhow::Result<Vec<u32>> {
        let mut pids = vec![self.process.id()];
        let mut looked_at = 0;
        while let Some(pid) = pids.get(looked_at) {
            for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                // Kernels without this file have no way to tell, and then there is but the one process to be seen.
                let children = std::fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
                let children: Result<Vec<u32>, _> = children.split_whitespace().map(str::parse).collect();
                pids.extend(children?);
            }
            looked_at += 1;
        }
        Ok(pids)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.process);
        // Its process has not been waited for, so that the group is still its own. It fails where the process ended by itself.
        if kill_process_group(group, Signal::KILL).is_ok() && self.process.wait().is_err() {
            eprintln!("process {} was not waited for", self.process.id());
        }
    }
}

fn log_in(files: &Path) -> PathBuf {
    files.join("log")
}
