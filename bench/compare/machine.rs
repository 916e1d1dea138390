//! The machine that measured.

use std::fs::read_to_string;

use serde::Serialize;

/// What is worth knowing of it.
#[derive(Debug, Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_gb: u64,
    kernel: String,
    load_before: String,
    pub load_after: String,
}

impl Machine {
    pub fn describe() -> Machine {
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
        let memory_kb: u64 = memory.trim().trim_end_matches(" kB").parse().unwrap_or_default();
        Machine {
            processor: value(&cpuinfo, "model name"),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_gb: memory_kb.div_ceil(1 << 20),
            kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load_before: load(),
            load_after: String::new(),
        }
    }

    pub fn line(&self) -> String {
        format!(
            "{}, {} cores, {} GB, Linux {}; load average {} before, {} after",
            self.processor, self.cores, self.memory_gb, self.kernel, self.load_before, self.load_after
        )
    }
}

/// Of the last one, five and fifteen minutes.
pub fn load() -> String {
    let text = read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn value(cpuinfo: &str, key: &str) -> String {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned());
    values.next().unwrap_or_else(|| "unknown processor".to_owned())
}
