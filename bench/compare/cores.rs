//! One core for the proxy, the others for the load and the upstreams, so that neither takes the other's time.

use std::io;
use std::process::{Child, Command};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which cores are whose.
pub struct Cores {
    bench: CpuSet,
    proxy: CpuSet,
}

impl Cores {
    /// Gives the proxy the last core that this process may use, and this thread, with all that it starts, the others. With a
    /// single core both share it.
    pub fn divide() -> io::Result<Cores> {
        let allowed = sched_getaffinity(None)?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core));
        let last = last.ok_or_else(|| io::Error::other("no core may be used"))?;
        let mut proxy = CpuSet::new();
        proxy.set(last);
        let mut bench = allowed;
        if allowed.count() > 1 {
            bench.unset(last);
        }
        sched_setaffinity(None, &bench)?;
        Ok(Cores { bench, proxy })
    }

    /// Starts a program on the proxy's core: kvpin serves with a thread a core, so with one.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // A process may run where the thread may that starts it.
        sched_setaffinity(None, &self.proxy)?;
        let spawned = command.spawn();
        sched_setaffinity(None, &self.bench)?;
        spawned
    }
}

/// Thousands of streams take two files each, here and in the proxies, which inherit the limit.
pub fn raise_open_files() -> io::Result<()> {
    let granted = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: granted.maximum, maximum: granted.maximum })?)
}
