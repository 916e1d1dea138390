//! `nvml` and `gpus`: where the GPUs' figures come from, and which of them a replica runs on.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use super::bounds;
use super::error::Problems;
use super::locate::Path;

/// Where the GPUs' figures come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlConfig {
    /// The driver's library, where there is one.
    Auto,
    Off,
    /// A library at an absolute path.
    At(PathBuf),
}

/// A GPU as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuId {
    /// As `nvidia-smi` numbers them, which is in the order of their PCI bus.
    Index(u32),
    /// `GPU-` and a UUID, as `nvidia-smi -L` writes it, in lower case.
    Uuid(String),
}

/// As the file has it: a number or a text.
pub(super) enum GpuFile {
    Index(u64),
    Text(String),
}

const UUID_PREFIX: &str = "GPU-";
/// Of a UUID without its prefix.
const UUID_LENGTH: usize = 36;

/// A relative path would depend on where the process was started, and a bare name on what the loader finds.
pub(super) fn nvml(file: Option<&str>, problems: &mut Problems) -> NvmlConfig {
    match file {
        None | Some("auto") => NvmlConfig::Auto,
        Some("off") => NvmlConfig::Off,
        Some(path) if path.starts_with('/') && !path.ends_with('/') => NvmlConfig::At(path.into()),
        Some(other) => {
            let reason = format!("`{other}` is not `auto`, `off` or the absolute path of a library");
            problems.add(Path::default().key("nvml"), reason);
            NvmlConfig::Off
        }
    }
}

/// The GPUs of a server with so many replicas, which share them evenly.
pub(super) fn gpus(server: &Path, file: Vec<GpuFile>, replicas: u16, problems: &mut Problems) -> Vec<GpuId> {
    let at = server.key("gpus");
    if file.len() > bounds::GPUS_MAX {
        problems.add(at, format!("{} GPUs are more than {}", file.len(), bounds::GPUS_MAX));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut gpus = Vec::new();
    for (i, entry) in file.into_iter().enumerate() {
        match gpu(entry) {
            Err(reason) => problems.add(at.index(i), reason),
            Ok(gpu) if !seen.insert(gpu.clone()) => problems.add(at.index(i), format!("`{gpu}` is given already")),
            Ok(gpu) => gpus.push(gpu),
        }
    }
    if !gpus.len().is_multiple_of(usize::from(replicas)) {
        let reason = format!("{} GPUs can't be shared evenly by {replicas} ranks", gpus.len());
        problems.add(at, reason);
    }
    gpus
}

/// What the rank of a server with so many replicas has of its GPUs: vLLM gives each rank the next ones in turn.
pub(super) fn share(gpus: &[GpuId], rank: Option<u16>, replicas: u16) -> Vec<GpuId> {
    let each = gpus.len() / usize::from(replicas);
    match rank {
        None => gpus.to_vec(),
        Some(rank) => gpus.iter().skip(usize::from(rank) * each).take(each).cloned().collect(),
    }
}

fn gpu(file: GpuFile) -> Result<GpuId, String> {
    let text = match file {
        GpuFile::Index(index) if index <= bounds::GPU_INDEX_MAX => return Ok(GpuId::Index(index as u32)), // Lossless: 255 at most.
        GpuFile::Index(index) => return Err(format!("{index} is more than {}", bounds::GPU_INDEX_MAX)),
        GpuFile::Text(text) => text,
    };
    if text.starts_with("MIG-") {
        return Err(format!("`{text}` is a part of a GPU, which has no figures of its own: name the GPU"));
    }
    match text.strip_prefix(UUID_PREFIX) {
        Some(uuid) if is_uuid(uuid) => Ok(GpuId::Uuid(format!("{UUID_PREFIX}{}", uuid.to_ascii_lowercase()))),
        _ => {
            Err(format!("`{text}` is not the number of a GPU or its UUID, GPU-xxxxxxxx-..., as `nvidia-smi -L` has it"))
        }
    }
}

fn is_uuid(text: &str) -> bool {
    let fits = |(i, byte): (usize, u8)| match i {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == UUID_LENGTH && text.bytes().enumerate().all(fits)
}

impl fmt::Display for NvmlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NvmlConfig::Auto => f.write_str("auto"),
            NvmlConfig::Off => f.write_str("off"),
            NvmlConfig::At(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuId::Index(index) => index.fmt(f),
            GpuId::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl<'de> Deserialize<'de> for GpuFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IndexOrUuid;

        impl Visitor<'_> for IndexOrUuid {
            type Value = GpuFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a GPU or its UUID")
            }

            fn visit_u64<E: Error>(self, index: u64) -> Result<GpuFile, E> {
                Ok(GpuFile::Index(index))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<GpuFile, E> {
                Ok(GpuFile::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(IndexOrUuid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const UUID: &str = "GPU-00000000-0000-4000-8000-00000000000a";

    fn with(nvml: &str, replica: &str) -> String {
        format!(
            "nvml: {nvml}\nmodels: {{m: {{max_num_seqs: 8, replicas: [{{url: 'http://127.0.0.1:8000', {replica}}}]}}}}\n"
        )
    }

    fn claimed(replica: &str) -> Vec<String> {
        let config = Config::from_yaml(&with("auto", replica)).unwrap_or_else(|error| panic!("{replica}: {error}"));
        let gpus = |gpus: &[GpuId]| gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        config.models[0].replicas.iter().map(|replica| gpus(&replica.gpus)).collect()
    }

    #[test]
    fn a_replica_has_the_gpus_that_its_entry_names_and_ranks_share_them_in_their_order() {
        assert_eq!(claimed("name: x"), [""]);
        assert_eq!(claimed("gpus: [1, 0]"), ["1 0"]);
        assert_eq!(claimed(&format!("gpus: [{}]", UUID.replace("00a", "00A"))), [UUID]);
        assert_eq!(claimed("data_parallel_size: 2, gpus: [4, 5, 6, 7]"), ["4 5", "6 7"]);
        assert_eq!(claimed("data_parallel_size: 2"), ["", ""]);
    }

    #[test]
    fn the_library_is_the_systems_none_or_the_one_at_a_path() {
        for (text, expected) in [
            ("auto", NvmlConfig::Auto),
            ("off", NvmlConfig::Off),
            ("/usr/lib/libnvidia-ml.so.1", NvmlConfig::At("/usr/lib/libnvidia-ml.so.1".into())),
        ] {
            let config = Config::from_yaml(&with(text, "name: x")).unwrap();
            assert_eq!((&config.nvml, config.nvml.to_string()), (&expected, text.to_owned()));
        }
    }

    #[test]
    fn what_names_no_gpu_is_refused_with_its_place() {
        for (nvml, replica, reason) in [
            ("auto", "gpus: [256]", "gpus[0]: 256 is more than 255"),
            ("auto", "gpus: [0, first]", "gpus[1]: `first` is not the number of a GPU or its UUID"),
            ("auto", "gpus: [GPU-0]", "gpus[0]: `GPU-0` is not"),
            ("auto", "gpus: [MIG-0]", "gpus[0]: `MIG-0` is a part of a GPU"),
            ("auto", "gpus: [3, 3]", "gpus[1]: `3` is given already"),
            ("auto", "data_parallel_size: 2, gpus: [0, 1, 2]", "gpus: 3 GPUs can't be shared evenly by 2 ranks"),
            ("libnvidia-ml.so", "name: x", "nvml: `libnvidia-ml.so` is not `auto`, `off`"),
        ] {
            let error = Config::from_yaml(&with(nvml, replica)).expect_err(replica).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let many = (0..65).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
        let error = Config::from_yaml(&with("auto", &format!("gpus: [{many}]"))).expect_err("many").to_string();
        assert!(error.contains("65 GPUs are more than 64"), "{error}");
    }

    #[test]
    fn a_reload_tells_what_changes() {
        let old = Config::from_yaml(&with("auto", "name: x, gpus: [0]")).unwrap();
        let new = Config::from_yaml(&with("off", "name: x, gpus: [1, 2]")).unwrap();
        assert_eq!(old.changes(&new), ["nvml: auto -> off", "model m: replica x: gpus: [0] -> [1, 2]"]);
        assert_eq!(old.restart_needed(&new), [""; 0]);
    }
}
