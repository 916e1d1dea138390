//! What the process takes of the machine, under the names that every program has for it. Read from /proc when it is asked for;
//! what can't be read has no series.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::{Family, Kind};

/// Ticks a second in which the kernel tells CPU time, whatever its own clock (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

/// Of `/proc/self/stat`, behind the name: the time in user mode and in the kernel, in ticks.
const STAT_UTIME: usize = 11;
const STAT_STIME: usize = 12;

/// What the process takes.
pub(super) struct Usage {
    cpu_s: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    threads: Option<f64>,
    open_files: Option<f64>,
    open_files_max: Option<f64>,
}

pub(super) const USAGE: &[Family<Usage>] = &[
    Family {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        help: "CPU time of the process, in user mode and in the kernel.",
        label: "",
        values: |usage| known(usage.cpu_s),
    },
    Family {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        help: "Memory that the process has.",
        label: "",
        values: |usage| known(usage.resident_bytes),
    },
    Family {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        help: "Address space that the process has reserved.",
        label: "",
        values: |usage| known(usage.virtual_bytes),
    },
    Family {
        name: "process_threads",
        kind: Kind::Gauge,
        help: "Threads of the process.",
        label: "",
        values: |usage| known(usage.threads),
    },
    Family {
        name: "process_open_fds",
        kind: Kind::Gauge,
        help: "File descriptors that are open; a connection has one.",
        label: "",
        values: |usage| known(usage.open_files),
    },
    Family {
        name: "process_max_fds",
        kind: Kind::Gauge,
        help: "File descriptors that may be open at a time.",
        label: "",
        values: |usage| known(usage.open_files_max),
    },
];

impl Usage {
    pub(super) fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Usage {
            cpu_s: fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_s(&stat)),
            resident_bytes: kib(&status, "VmRSS:"),
            virtual_bytes: kib(&status, "VmSize:"),
            threads: number(&status, "Threads:"),
            // The descriptor that lists them is one of them.
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1) as f64),
            // Unlimited is what no series says.
            open_files_max: getrlimit(Resource::Nofile).current.map(|files| files as f64),
        }
    }
}

/// The name of the program, in brackets, may have anything in it.
fn cpu_s(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = rest.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(STAT_UTIME)? + ticks(STAT_STIME)?) / TICKS_PER_S)
}

fn kib(status: &str, key: &str) -> Option<f64> {
    number(status, key).map(|kib| kib * 1024.0)
}

fn number(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn known(value: Option<f64>) -> Vec<(&'static str, f64)> {
    value.map(|value| ("", value)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_of_any_kind() {
        let stat = "4242 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 8 0 99 1 2";
        assert_eq!(cpu_s(stat), Some(1.75));
        assert_eq!(cpu_s("4242 (cut"), None);
    }

    #[test]
    fn what_this_process_takes_is_known() {
        let held: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let usage = Usage::read();
        assert!(usage.open_files.is_some_and(|files| files > held.len() as f64));
        assert!(usage.open_files <= usage.open_files_max);
        assert!(usage.resident_bytes.is_some_and(|bytes| bytes > 1e6) && usage.resident_bytes < usage.virtual_bytes);
        assert!(usage.threads.is_some_and(|threads| threads >= 1.0) && usage.cpu_s.is_some());
    }
}
