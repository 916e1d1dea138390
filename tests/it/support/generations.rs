//! One kvpin over several processes: ended and started anew, or replaced while it serves. Its ports, its directory and its
//! log stay the same.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::call::Call;
use super::client::{Reply, call};
use super::kvpin::{BINARY, config, replicas, run, sum_of};
use super::reserved::ReservedPort;
use super::until;

/// All processes of one kvpin. Those that still run are killed when it is dropped.
pub struct Generations {
    directory: TempDir,
    listen: ReservedPort,
    admin: ReservedPort,
    environment: Vec<(String, String)>,
    log: Arc<Mutex<Vec<String>>>,
    /// Those that were started here; the others are their children.
    started: Vec<Child>,
    /// The process that serves.
    pub pid: u32,
}

impl Generations {
    /// Starts one that keeps its state in its directory, and waits until each replica has been seen up.
    pub async fn start(models: Value) -> Self {
        Generations::start_with(models, &[]).await
    }

    /// The same with more in its environment.
    pub async fn start_with(models: Value, environment: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut generations = Generations {
            directory: tempfile::tempdir().expect("a directory"),
            listen: ReservedPort::new(),
            admin: ReservedPort::new(),
            environment: environment.iter().map(own).collect(),
            log: Arc::default(),
            started: Vec::new(),
            pid: 0,
        };
        generations.configure(&generations.config(models));
        generations.begin().await;
        generations.until_up().await;
        generations
    }

    /// A configuration for `models` on its own ports, with its own state file.
    pub fn config(&self, models: Value) -> Value {
        let mut config = config(models);
        config["listen"] = json!(self.address().to_string());
        config["admin"] = json!(self.admin().to_string());
        config["state_file"] = json!(self.state_file());
        config
    }

    /// Writes the configuration that is read next.
    pub fn configure(&self, config: &Value) {
        self.write("kvpin.yaml", config.to_string().as_bytes());
    }

    pub fn address(&self) -> SocketAddr {
        self.listen.address()
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin.address()
    }

    pub fn state_file(&self) -> PathBuf {
        self.path("state")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).expect("writes a file");
    }

    /// The names of what is in its directory, beside its configuration.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("reads the directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| name != "kvpin.yaml").collect();
        names.sort();
        names
    }

    /// Starts a process, and waits until it serves.
    pub async fn begin(&mut self) {
        let lines = self.lines_with("listening on");
        let child = self.spawn();
        self.pid = child.id();
        self.started.push(child);
        until("it serves", async || (self.lines_with("listening on") > lines).then_some(())).await;
    }

    /// Has the process that serves finish what is open and end.
    pub async fn stop(&mut self) {
        self.signal("TERM");
        self.ends(self.pid).await;
    }

    /// Ends the process at once, as a crash does.
    pub async fn kill(&mut self) {
        self.signal("KILL");
        self.ends(self.pid).await;
    }

    /// Waits for the end of a process.
    pub async fn ends(&mut self, pid: u32) {
        let started = self.started.iter_mut().find(|child| child.id() == pid);
        match started {
            Some(child) => {
                until("it ends", async || child.try_wait().expect("its status can be asked for")).await;
            }
            None => until("it ends", async || (!is_alive(pid)).then_some(())).await,
        }
    }

    /// Has a new process take over, by `kvpin upgrade`, and gives the one before it.
    pub async fn upgrade(&mut self) -> u32 {
        let upgraded = self.run(&["upgrade", "--admin", &self.admin().to_string()]).await;
        assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
        let before = self.pid;
        self.pid = self.status().await["kvpin"]["pid"].as_u64().expect("a process id") as u32;
        assert_ne!(self.pid, before, "another process serves");
        before
    }

    /// Runs the binary to its end, without holding up what else this process does.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let run = move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        spawn_blocking(run).await.expect("it runs")
    }

    /// Sends a signal to the process that serves.
    pub fn signal(&self, signal: &str) {
        send(signal, self.pid);
    }

    pub async fn call(&self, request: &Call) -> Reply {
        call(self.address(), request).await
    }

    pub async fn status(&self) -> Value {
        call(self.admin(), &Call::get("/api/v1/status")).await.json()
    }

    /// The sum of the series that begin with `series`.
    pub async fn metric(&self, series: &str) -> f64 {
        sum_of(&call(self.admin(), &Call::get("/metrics")).await.text(), series)
    }

    /// Waits until each replica has been seen up.
    pub async fn until_up(&self) {
        until("the replicas are up", async || {
            let status = self.status().await;
            replicas(&status).all(|replica| replica["health"] == "up").then_some(())
        })
        .await;
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("the log").join("\n")
    }

    /// Waits until the log has a line with `part`.
    pub async fn until_logged(&self, part: &str) -> String {
        until(&format!("a line with {part:?} is logged"), async || {
            self.log.lock().expect("the log").iter().find(|line| line.contains(part)).cloned()
        })
        .await
    }

    /// The newest line with `part` in it, once there are more than `before`.
    pub fn newest_line_with(&self, part: &str, before: usize) -> Option<String> {
        let log = self.log.lock().expect("the log");
        log.iter().filter(|line| line.contains(part)).skip(before).last().cloned()
    }

    /// How many lines of the log have `part` in them.
    pub fn lines_with(&self, part: &str) -> usize {
        self.log.lock().expect("the log").iter().filter(|line| line.contains(part)).count()
    }

    fn spawn(&self) -> Child {
        let mut command = Command::new(BINARY);
        command.arg("run").arg("--config").arg(self.path("kvpin.yaml"));
        command.env("RUST_LOG", "info").env_remove("STATE_DIRECTORY").env_remove("NOTIFY_SOCKET");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kvpin starts");
        self.read(child.stderr.take().expect("its stderr"));
        child
    }

    /// Reads on a thread of its own until the process and all that it has started have ended.
    fn read(&self, stderr: impl Read + Send + 'static) {
        let log = Arc::clone(&self.log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                log.lock().expect("the log").push(String::from_utf8_lossy(&line).into_owned());
            }
        });
    }
}

impl Drop for Generations {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kvpin's log:\n{}", self.log());
        }
        // Whatever took over from one that was started here stands in the log.
        let log = self.log();
        let successors =
            log.lines().filter_map(|line| line.split("upgrade: process ").nth(1)?.split(' ').next()?.parse().ok());
        for pid in successors.filter(|pid| is_alive(*pid)) {
            send("KILL", pid);
        }
        for child in &mut self.started {
            // An error means that it has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Sends a signal to a process.
pub fn send(signal: &str, pid: u32) {
    let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", signal, &pid.to_string()]).status();
    assert!(sent.expect("sh runs").success(), "{signal} was sent to {pid}");
}

/// Whether a process runs. One that has ended and waits for its parent doesn't.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
