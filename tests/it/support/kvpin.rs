//! The built kvpin as a process: started on ports that the kernel chooses, watched through its log and its admin page.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::call::Call;
use super::client::{Reply, Wire, call};
use super::until;

pub const BINARY: &str = env!("CARGO_BIN_EXE_kvpin");

/// A running kvpin. It is killed when dropped.
pub struct Kvpin {
    child: Child,
    directory: TempDir,
    log: Log,
    pub address: SocketAddr,
    pub admin: SocketAddr,
}

/// Resident memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub now: usize,
    pub peak: usize,
}

/// What the process has written to stderr.
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

/// A configuration for `models`: ports from the kernel, and looks at the replicas that are frequent enough for a test.
pub fn config(models: Value) -> Value {
    json!({
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0",
        "scrape_interval_ms": 50, "shutdown_grace_s": 60,
        "health": { "interval_ms": 50, "backoff_max_ms": 100, "ramp_s": 1 },
        "models": models,
    })
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).env_remove("RUST_LOG").output().expect("kvpin runs")
}

/// Starts the binary with both of its outputs at hand. It logs all that an operator may ask for while looking for a fault.
pub fn spawn(arguments: &[&str]) -> Child {
    spawn_in(arguments, &[])
}

/// The same with more in its environment.
fn spawn_in(arguments: &[&str], environment: &[(&str, &str)]) -> Child {
    let mut command = Command::new(BINARY);
    command.args(arguments).env("RUST_LOG", "debug").envs(environment.iter().copied()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kvpin starts")
}

impl Kvpin {
    /// Serves `models` and waits until each of their replicas has been seen up.
    pub async fn serve(models: Value) -> Self {
        Kvpin::start(&config(models)).await
    }

    /// Starts with `config`, which is YAML as every JSON is, and waits until each replica has been seen up.
    pub async fn start(config: &Value) -> Self {
        let kvpin = Kvpin::launch(config).await;
        kvpin.until_health("up", |_| true).await;
        kvpin
    }

    /// Starts with `config` and waits until it listens.
    pub async fn launch(config: &Value) -> Self {
        Kvpin::launch_with(config, &[]).await
    }

    /// As [`Kvpin::launch`], with more files in the directory of the configuration.
    pub async fn launch_with(config: &Value, files: &[(&str, &str)]) -> Self {
        Kvpin::launch_in(config, files, &[]).await
    }

    /// As [`Kvpin::launch_with`], with more in its environment.
    pub async fn launch_in(config: &Value, files: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).expect("writes a file");
        }
        let file = directory.path().join("kvpin.yaml");
        std::fs::write(&file, config.to_string()).expect("writes the configuration");
        let mut child = spawn_in(&["run", "--config", file.to_str().expect("a path of text")], environment);
        let log = Log::of(child.stderr.take().expect("its stderr"));
        let address = log.address_after("listening on ").await;
        let admin = log.address_after("admin on ").await;
        Kvpin { child, directory, log, address, admin }
    }

    /// A file in the directory of the configuration, `kvpin.yaml`.
    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("a path of text").to_owned()
    }

    /// Writes a file there, and has the configuration read again; says whether it was applied.
    pub async fn reload_with(&self, name: &str, text: &str) -> bool {
        let before = self.reloads().await;
        std::fs::write(self.file(name), text).expect("writes a file");
        self.reloaded_since(before).await
    }

    /// Bytes of memory that the process has.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line VmRSS");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Waits until the health of every replica whose name `which` accepts is `health`.
    pub async fn until_health(&self, health: &str, which: impl Fn(&str) -> bool) {
        until(&format!("the replicas are {health}"), async || {
            let status = self.status().await;
            let mut replicas = replicas(&status).filter(|replica| which(replica["name"].as_str().unwrap_or_default()));
            replicas.all(|replica| replica["health"] == *health).then_some(())
        })
        .await;
    }

    pub async fn call(&self, request: &Call) -> Reply {
        call(self.address, request).await
    }

    pub async fn connect(&self) -> Wire {
        Wire::connect(self.address).await
    }

    pub async fn status(&self) -> Value {
        call(self.admin, &Call::get("/api/v1/status")).await.json()
    }

    pub async fn metrics(&self) -> String {
        call(self.admin, &Call::get("/metrics")).await.text()
    }

    /// The sum of the series that begin with `series`, such as `kvpin_reloads_total{outcome="applied"`.
    pub async fn metric(&self, series: &str) -> f64 {
        sum_of(&self.metrics().await, series)
    }

    /// Turns in flight over all replicas, as the status has them.
    pub async fn in_flight(&self) -> u64 {
        let status = self.status().await;
        replicas(&status).filter_map(|replica| replica["in_flight"].as_u64()).sum()
    }

    /// What the status says of a replica of the first model.
    pub async fn replica(&self, name: &str) -> Value {
        let status = self.status().await;
        let found = replicas(&status).find(|replica| replica["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("no replica {name} in {status}"))
    }

    /// Writes a new configuration, has it read, and waits until that was done; says whether it was applied.
    pub async fn reload(&self, config: &Value) -> bool {
        self.reload_text(&config.to_string()).await
    }

    /// Replaces the configuration that is read next, whoever reads it at this moment.
    pub fn configure(&self, config: &Value) {
        let [new, file] = ["new", "kvpin.yaml"].map(|name| self.directory.path().join(name));
        std::fs::write(&new, config.to_string()).expect("writes the configuration");
        std::fs::rename(&new, &file).expect("puts the configuration in its place");
    }

    /// As [`Kvpin::reload`], with any text for a file.
    pub async fn reload_text(&self, text: &str) -> bool {
        let before = self.reloads().await;
        std::fs::write(self.directory.path().join("kvpin.yaml"), text).expect("writes the configuration");
        self.reloaded_since(before).await
    }

    /// Has the configuration read again, and waits until that was done; says whether it was applied.
    async fn reloaded_since(&self, before: (f64, f64)) -> bool {
        self.signal("HUP");
        let after = until("the reload is counted", async || {
            let after = self.reloads().await;
            (after != before).then_some(after)
        })
        .await;
        after.0 > before.0
    }

    /// Reloads so far: applied and refused.
    pub async fn reloads(&self) -> (f64, f64) {
        let page = self.metrics().await;
        let outcome = |outcome: &str| sum_of(&page, &format!("kvpin_reloads_total{{outcome=\"{outcome}\"}}"));
        (outcome("applied"), outcome("refused"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", signal, &pid]).status();
        assert!(sent.expect("sh runs").success(), "{signal} was sent");
    }

    /// Waits for the process's end, and for all of its log.
    pub async fn exit(&mut self) -> ExitStatus {
        let (child, log) = (&mut self.child, &self.log);
        until("kvpin ends", async || {
            let status = child.try_wait().expect("its status can be asked for")?;
            log.is_complete().then_some(status)
        })
        .await
    }

    /// What its memory is and was.
    pub fn memory(&self) -> Memory {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the process's status");
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the line is there");
            let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
            kib << 10
        };
        Memory { now: bytes("VmRSS:"), peak: bytes("VmHWM:") }
    }

    /// All it has logged so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Waits until the log has a line with `part`.
    pub async fn until_logged(&self, part: &str) -> String {
        self.log.until_line(part).await
    }
}

impl Drop for Kvpin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kvpin's log:\n{}", self.log.text());
        }
        // An error means that it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Log {
    /// Reads on a thread of its own until the process ends.
    fn of(stderr: ChildStderr) -> Log {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                seen.lock().expect("the log").push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Log { lines, reader }
    }

    fn is_complete(&self) -> bool {
        self.reader.is_finished()
    }

    fn text(&self) -> String {
        self.lines.lock().expect("the log").join("\n")
    }

    async fn until_line(&self, part: &str) -> String {
        until(&format!("a line with {part:?} is logged"), async || {
            self.lines.lock().expect("the log").iter().find(|line| line.contains(part)).cloned()
        })
        .await
    }

    async fn address_after(&self, words: &str) -> SocketAddr {
        let line = self.until_line(words).await;
        let address = line.split(words).nth(1).unwrap_or_default();
        address.trim().parse().unwrap_or_else(|_| panic!("an address in {line:?}"))
    }
}

/// The replicas of all models in a status.
pub fn replicas(status: &Value) -> impl Iterator<Item = &Value> {
    let models = status["models"].as_array().into_iter().flatten();
    models.flat_map(|model| model["replicas"].as_array().into_iter().flatten())
}

/// The sum of the series of a metrics page that begin with `series`.
pub fn sum_of(page: &str, series: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(series));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}
