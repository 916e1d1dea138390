//! kvpin as it ships, but for what the bench needs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Setting, each};
use crate::rig::MODEL;

/// The kvpin that cargo built with this bench, or the one that `KVPIN_BIN` names.
pub fn program() -> PathBuf {
    std::env::var_os("KVPIN_BIN").map_or(PathBuf::from(env!("CARGO_BIN_EXE_kvpin")), PathBuf::from)
}

pub fn other_program() -> Option<PathBuf> {
    std::env::var_os("KVPIN_OTHER_BIN").map(PathBuf::from)
}

pub fn command(program: &Path, setting: &Setting<'_>) -> io::Result<Command> {
    let file = setting.files.join("kvpin.yaml");
    std::fs::write(&file, configuration(setting))?;
    let mut command = Command::new(program);
    command.arg("run").arg("--config").arg(file).env_remove("RUST_LOG");
    Ok(command)
}

/// No access log, as with the others. All clients have one address here, which is given more connections for it. The stubs don't
/// tell how many requests they take at a time, so what vLLM takes by default is said here.
fn configuration(setting: &Setting<'_>) -> String {
    let listen = match setting.certificate {
        None => "127.0.0.1:0".to_owned(),
        Some(certificate) => format!(
            "\n  - address: 127.0.0.1:0\n    tls: {{certificate: {}, key: {}}}",
            certificate.certificate().display(),
            certificate.key().display()
        ),
    };
    let replicas = each(setting.upstreams, |_, address| format!("\n      - http://{address}"));
    format!(
        "listen: {listen}\nadmin: off\naccess_log: {{to: off}}\nlimits: {{connections_per_address_max: 16384}}\nmodels:\n  {MODEL}:\n    max_num_seqs: 256\n    replicas:{replicas}\n"
    )
}
